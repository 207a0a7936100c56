"""The repository that runs work in: a user's own on this machine, or a remote one.

Of a remote repository there is a bare copy in corral's folder. It stays there and is fetched again
when needed. git logs in as it does for the user (ssh keys, credential helpers). A URL with a
password or a token is an error, because it would be stored and shown. A bare repository on this
machine is read and written through a stub (see ``corral._system.git.stub``), so its hooks and
settings have no effect. Everything here blocks.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from corral._system import paths
from corral._system.git import command, repository, scan, tree
from corral._system.git.worktree import repository_root
from corral.errors import ConfigError, StorageFailed

_HOST_AND_PATH = re.compile(r"(?:[^/@:\s]+@)?[^/:\s]{2,}:[^:].*")
"""``git@host:path``; one letter before the colon would be a drive of Windows."""
_FETCH = ("fetch", "--quiet", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-gc")
_ALL = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    root: Path
    """Where git is called: the user's own folder, or our copy."""
    url: str = ""
    """The remote repository that ``root`` is a copy of; empty if it is not a copy."""

    def tip(self, branch: str) -> str | None:
        """The current commit of the branch; None if there is no such branch. Raises
        ``StorageFailed``."""
        name = f"refs/heads/{branch}"
        if self.url:
            name = f"refs/corral/{branch}"
            answer = _fetch(self.root, self.url, "--no-tags", f"+refs/heads/{branch}:{name}")
            if answer.code and "couldn't find remote ref" in answer.errors:
                return None
            if answer.code:
                raise StorageFailed(f"{command.redact(self.url)} cannot be read: {answer.errors}")
        answer = repository.call(
            self.root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"
        )
        return answer.text.strip() if not answer.code else None

    def advance(self, branch: str, new: str | None, old: str | None) -> bool:
        """Move the branch from ``old`` to ``new`` (None: it does not exist). Return False if it was
        moved by another process meanwhile. Raises ``StorageFailed``."""
        name = f"refs/heads/{branch}"
        if self.url:
            place, access = _location(self.url)
            lease = f"--force-with-lease={name}:{old or ''}"
            words = ("push", "--quiet", lease, "--", place, f"{new or ''}:{name}")
            answer = repository.call(self.root, *words, access=access)
        elif new is None:
            answer = repository.call(self.root, "update-ref", "-d", name, old or "")
        else:
            # An empty old value: the branch must not exist.
            answer = repository.call(self.root, "update-ref", name, new, old or "")
        if answer.code and self.tip(branch) == old:
            where = command.redact(self.url) or self.root
            raise StorageFailed(f"{where} cannot be written: {answer.errors}")
        return not answer.code


def _local(url: str) -> Path | None:
    """The folder that a name or a URL means, if it is on this machine."""
    path = unquote(urlsplit(url).path) if url.startswith("file://") else url
    return Path(path) if os.path.isdir(path) else None


def _fetch(root: Path, url: str, *words: str) -> command.GitOutput:
    options = [word for word in words if word.startswith("--")]
    names = [word for word in words if not word.startswith("--")]
    place, access = _location(url)
    return repository.call(root, *_FETCH, *options, "--", place, *names, access=access)


def _location(url: str) -> tuple[str, command.GitAccess]:
    """The address that git contacts, and how. For a repository on this machine, its stub."""
    if (path := _local(url)) is not None:
        return str(repository.stub_of(path)), command.GitAccess(protocols="file")
    return url, command.REMOTE


def is_remote(name: str) -> bool:
    """Whether the repository is copied: a URL, ``host:path``, or a bare repository on this
    machine, but not a folder with a work tree. Raises ``ConfigError``."""
    command.require("a repository")
    shown = command.redact(name)
    if not name.strip() or name.startswith("-") or "\0" in name or "\n" in name:
        raise ConfigError(f"{shown!r} is not a repository")
    if os.path.isdir(name):
        found = scan.find_repository(Path(name))
        return found is not None and found.top is None
    if "://" in name:
        refuse_secrets(name, "Remove it from the URL, and store it in a credential helper of git.")
        if (scheme := name.partition("://")[0]) not in command.NETWORK.split(":"):
            raise ConfigError(
                f"the protocol {scheme!r} is not allowed here",
                hint=f"Allowed are: {command.NETWORK.replace(':', ', ')}.",
            )
        return True
    if shown != name:
        raise ConfigError(
            f"{shown!r} contains a password", hint="Use user@host:path, and ssh keys."
        )
    if _HOST_AND_PATH.fullmatch(name) and not name.startswith((".", "/")):
        return True
    raise ConfigError(
        f"there is no repository {shown!r}", hint="Name a folder, a bare repository or a URL."
    )


def refuse_secrets(url: str, hint: str) -> None:
    """Raise ``ConfigError`` if a URL contains a password. The error does not show it. A user name
    in an HTTP URL may be a token, so it counts as a password."""
    try:
        parts = urlsplit(url)
        user, password, host = parts.username, parts.password, parts.hostname
    except ValueError as error:
        raise ConfigError("this is not a URL") from error
    is_token = user is not None and parts.scheme in ("http", "https")
    if password is not None or is_token:
        raise ConfigError(
            f"the {parts.scheme} URL of {host} contains a user name or a password", hint=hint
        )


def own(folder: Path) -> Repository:
    """The repository around a folder. Raises ``ConfigError``."""
    return Repository(root=repository_root(folder)[0])


def folder() -> Path:
    """The folder of the copies."""
    return paths.home() / "repositories"


def copy_of(url: str, *, fresh: bool = False) -> Repository:
    """The copy of a remote repository, made if there is none. With ``fresh`` it is fetched again.
    Raises ``StorageFailed``."""
    digest = blake2b(url.encode("utf-8", "replace"), digest_size=8).hexdigest()
    place = folder() / f"{digest}.git"
    paths.make_dir(place.parent)
    complete = place / "corral.complete"
    with command.locked(place.with_suffix(".gate")):
        if not (place / "HEAD").exists():
            repository.make_bare(place)
        if fresh or not complete.exists():
            # The stub of a repository on this machine has no own HEAD.
            path = _local(url)
            head = (repository.locate(path).head if path is not None else None) or "HEAD"
            answer = _fetch(place, url, "--prune", *_ALL, f"+{head}:refs/corral/HEAD")
            if answer.code:
                raise StorageFailed(f"{command.redact(url)} cannot be read: {answer.errors}")
            complete.touch()
    return Repository(root=place, url=url)


def find(source: Repository, name: str | None) -> str:
    """The commit with this name (a branch, a tag, an id); without a name, the commit of HEAD.
    Raises ``ConfigError``."""
    shown = command.redact(source.url) or str(source.root)
    if not source.url:
        names = [name or "HEAD"]
    elif name is None:
        names = ["refs/corral/HEAD"]
    else:
        names = [f"refs/remotes/origin/{name}", f"refs/tags/{name}", name]
    for each in names:
        with suppress(StorageFailed):
            return repository.commit_of(source.root, each)
    raise ConfigError(f"{shown} has no commit {name or 'HEAD'!r}")


def has_changes(folder: Path) -> bool:
    """Whether the work tree around a folder has changes that are not committed. The repository's
    filters are not applied. Raises ``StorageFailed``."""
    found = repository.locate(folder)
    if found.top is None:
        return False
    indexed = repository.read_index(found)
    if indexed is None:
        return False
    committed = repository.entries(folder, repository.commit_of(folder, "HEAD"))
    if {path: entry.id for path, entry in committed.items()} != {
        path: entry.blob for path, entry in indexed.items()
    }:
        return True
    top = os.fsencode(found.top)
    scope = scan.scope_below(found.top, found.top, found.common)
    for path, entry in indexed.items():
        if entry.mode == tree.SUBMODULE:
            continue
        file = os.path.join(top, path)
        try:
            is_still = entry.is_still(repository.stamp_of(os.lstat(file)))
        except OSError:
            return True
        if not is_still and tree.hash_blob(file, len(entry.blob)) != entry.blob:
            return True
    try:
        return any(path not in indexed for path in scan.files(found.top, scope, indexed.keys()))
    except scan.TooManyFiles:
        return True
