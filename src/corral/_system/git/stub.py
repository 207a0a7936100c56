"""Git folders of corral's own, used in place of a repository's ``.git``.

A stub has its own ``config`` and ``info/attributes``. Its ``objects``, ``refs``,
``packed-refs`` and ``shallow`` are links to those of the repository, as git's own
``git-new-workdir`` makes them. So git reads and writes the repository's objects and branches, and
obeys none of its settings, attributes, hooks, grafts or submodules.

``info/attributes`` has the highest precedence and switches every conversion off: files are stored
and checked out byte for byte. Filters (git-lfs and others) do not run, because they obey the
repository's configuration. Line endings are not converted.

Alternates of the repository's object store are honored: they name more objects, and are data.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from corral._system import fs, paths
from corral.errors import StorageFailed

_CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tbare = true
\thooksPath = /dev/null
\tfsmonitor = false
\tlogAllRefUpdates = false
\tattributesFile = /dev/null
\texcludesFile = /dev/null
[gc]
\tauto = 0
[maintenance]
\tauto = false
[receive]
\tautogc = false
[uploadpack]
\tallowAnySHA1InWant = true
{more}"""
_ATTRIBUTES = (
    "* -text !eol -ident !working-tree-encoding !filter !diff !merge !conflict-marker-size"
    " !whitespace !export-subst !export-ignore !delta !encoding\n"
)
_HEAD = "ref: refs/heads/corral-uses-no-branch\n"
_LINKS = ("objects", "refs", "packed-refs", "shallow")
_OLD = 24 * 3600.0


def folder() -> Path:
    """Where stubs and temporary files are, on this machine. Raises ``StorageFailed``."""
    return paths.make_dir(paths.runtime() / "git")


@contextmanager
def temporary() -> Generator[Path]:
    """A private temporary folder, outside every folder that an agent may write."""
    import tempfile

    try:
        place = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder()))
    except OSError as error:
        raise StorageFailed(f"corral's folder cannot be written: {error}") from error
    try:
        yield place
    finally:
        fs.remove_tree(place)


def blank(object_format: str = "sha1") -> Path:
    """A stub of an empty repository."""
    return _made(folder() / f"blank-{object_format}", None, _config_of(object_format, {}))


def of(common: Path, object_format: str, core: Mapping[str, str]) -> Path:
    """The stub of a repository. ``core`` are settings to copy. Raises ``StorageFailed`` if the
    repository contains a file that git would wait for, or a link to another folder."""
    from hashlib import blake2b

    for name in _LINKS:
        _check(common / name, is_folder=name in ("objects", "refs"))
    _check(common / "objects" / "info" / "alternates", is_folder=False)
    branches = common / "refs" / "heads" / "corral"
    if branches.is_symlink():
        raise StorageFailed(f"the repository cannot be used: {branches} is a link")
    config = _config_of(object_format, core)
    digest = blake2b(os.fsencode(common) + b"\0" + config.encode(), digest_size=10).hexdigest()
    return _made(folder() / digest, common, config)


def _check(path: Path, *, is_folder: bool) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageFailed(f"the repository cannot be used: {error}") from error
    if not (stat.S_ISDIR(mode) if is_folder else stat.S_ISREG(mode)):
        kind = "folder" if is_folder else "regular file"
        raise StorageFailed(f"the repository cannot be used: {path} is not a {kind}")


def _config_of(object_format: str, core: Mapping[str, str]) -> str:
    more = "[core]\n" + "".join(f"\t{name} = {value}\n" for name, value in sorted(core.items()))
    if object_format == "sha1":
        return _CONFIG.format(version=0, more=more)
    more += f"[extensions]\n\tobjectFormat = {object_format}\n"
    return _CONFIG.format(version=1, more=more)


def _made(place: Path, common: Path | None, config: str) -> Path:
    if (place / "HEAD").exists():
        return place
    # Remove stubs of repositories that are gone, and what killed processes left.
    with contextlib.suppress(OSError):
        for each in folder().iterdir():
            if each.name.startswith("tmp-"):
                is_old = time.time() - each.stat().st_mtime > _OLD
            else:
                is_old = (each / "objects").is_symlink() and not (each / "objects").exists()
            if is_old:
                fs.remove_tree(each)
    try:
        with temporary() as draft:
            (draft / "info").mkdir()
            (draft / "info" / "attributes").write_text(_ATTRIBUTES)
            (draft / "config").write_text(config)
            for name in _LINKS:
                if common is not None:
                    (draft / name).symlink_to(common / name)
                elif name in ("objects", "refs"):
                    (draft / name).mkdir()
            (draft / "HEAD").write_text(_HEAD)
            with contextlib.suppress(OSError):  # another process has just made it
                draft.rename(place)
    except OSError as error:
        raise StorageFailed(f"corral's folder cannot be written: {error}") from error
    return place
