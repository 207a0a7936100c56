"""A repository that runs work in: a person's own on this machine, or one that lies elsewhere.

Of one elsewhere there is a bare copy in corral's folder, which stays and is fetched anew.
git logs in as it does for the person (ssh keys, credential helpers); a URL that holds a
password or a token is refused, as it would be kept and shown. Everything here blocks.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from corral.errors import ConfigError, StorageFailed
from corral.io import folders, git, worktrees

_HOST_AND_PATH = re.compile(r"(?:[^/@:\s]+@)?[^/:\s]{2,}:[^:].*")
"""``git@host:path``; one letter before the colon would be a drive of Windows."""
_NONE = "0" * 40
_FETCH = ("fetch", "--quiet", "--no-write-fetch-head", "--no-recurse-submodules")
_ALL = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*", "+HEAD:refs/corral/HEAD")


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    root: Path
    """Where git is called: the person's own folder, or our copy."""
    url: str = ""
    """Of which it is a copy."""

    def tip(self, branch: str) -> str | None:
        """The commit that the branch is at by now; None where it is not there. Raises
        ``StorageFailed``."""
        name = f"refs/heads/{branch}"
        if self.url:
            name = f"refs/corral/{branch}"
            wanted = f"+refs/heads/{branch}:{name}"
            code, _, said = git.tell(self.root, *_FETCH, "--no-tags", "origin", wanted)
            if code and "couldn't find remote ref" in said:
                return None
            if code:
                raise StorageFailed(f"{self.url} cannot be read: {said}")
        code, out, _ = git.tell(self.root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return out.strip() if not code else None

    def advance(self, branch: str, new: str | None, old: str | None) -> bool:
        """Move the branch (None: it is not there); False where somebody else has moved it
        meanwhile. Raises ``StorageFailed``."""
        name = f"refs/heads/{branch}"
        if self.url:
            lease = f"--force-with-lease={name}:{old or ''}"
            words = ["push", "--quiet", lease, "origin", f"{new or ''}:{name}"]
        elif new is None:
            words = ["update-ref", "-d", name, old or ""]
        else:
            words = ["update-ref", name, new, old or _NONE]
        code, _, said = git.tell(self.root, *words)
        if code and self.tip(branch) == old:
            raise StorageFailed(f"{self.url or self.root} cannot be written: {said}")
        return not code


def is_elsewhere(name: str) -> bool:
    """Whether it is cloned: a URL, ``host:path``, or a bare repository on this machine; not a
    folder that a person works in. Raises ``ConfigError``."""
    git.require("a repository")
    if not name.strip() or name.startswith("-") or "\0" in name or "\n" in name:
        raise ConfigError(f"{name!r} is no repository")
    if os.path.isdir(name):
        return git.tell(Path(name), "rev-parse", "--is-bare-repository")[1].strip() == "true"
    if "://" in name:
        refuse_secrets(name, "git's credential helpers know it: leave it out of the URL.")
        return True
    if _HOST_AND_PATH.fullmatch(name) and not name.startswith((".", "/")):
        return True
    raise ConfigError(
        f"there is no repository {name!r}", hint="Name a folder, a bare repository or a URL."
    )


def refuse_secrets(url: str, hint: str) -> None:
    """Raises ``ConfigError``, which does not repeat it. A name alone is one too where it may be
    a token."""
    try:
        parts = urlsplit(url)
        user, password, host = parts.username, parts.password, parts.hostname
    except ValueError as error:
        raise ConfigError("this is no URL") from error
    is_token = user is not None and parts.scheme in ("http", "https")
    if password is not None or is_token:
        raise ConfigError(f"the {parts.scheme} URL of {host} holds a name or a password", hint=hint)


def own(folder: Path) -> Repository:
    """The one around a folder. Raises ``ConfigError``."""
    return Repository(root=worktrees.root_of(folder)[0])


def folder() -> Path:
    """Of our copies."""
    return folders.home() / "repositories"


def copy_of(url: str, *, fresh: bool = False) -> Repository:
    """Our copy, made where there is none; ``fresh``: with all that is there by now. Raises
    ``StorageFailed``."""
    digest = blake2b(url.encode("utf-8", "replace"), digest_size=8).hexdigest()
    place = folder() / f"{digest}.git"
    place.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    whole = place / "corral.whole"
    with git.alone(place.with_suffix(".gate")):
        if not whole.exists():
            git.run(place.parent, "init", "--quiet", "--bare", str(place))
            git.run(place, "config", "remote.origin.url", url)
        if fresh or not whole.exists():
            code, _, said = git.tell(place, *_FETCH, "--prune", "origin", *_ALL)
            if code:
                raise StorageFailed(f"{url} cannot be read: {said}")
            whole.touch()
    return Repository(root=place, url=url)


def find(repository: Repository, name: str | None) -> str:
    """The commit that the name stands for there; without one, where its HEAD is. Raises
    ``ConfigError``."""
    shown = repository.url or str(repository.root)
    if not repository.url:
        names = [name or "HEAD"]
    elif name is None:
        names = ["refs/corral/HEAD"]
    else:
        names = [f"refs/remotes/origin/{name}", f"refs/tags/{name}", name]
    for each in names:
        with suppress(StorageFailed):
            return git.commit_of(repository.root, each)
    raise ConfigError(f"{shown} has no commit {name or 'HEAD'!r}")
