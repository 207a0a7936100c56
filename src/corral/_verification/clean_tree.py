"""The clean tree on disk, in which the checks of a run work.

It is made for the checks and removed afterwards, so what they write never reaches the workspace. It
has no ``.git``. Its files are read again and compared with their ids: an object of the repository
could have been exchanged. Between two checks, what one has changed in the files of the tree is put
back, because a check runs code that the agent wrote.

In the sandbox (bubblewrap) the tree stands where the workspace is, so absolute paths, as in
packages that are installed in place, lead into it; dependencies can only be read. Elsewhere the
checks work in a folder for temporary files, with links to the dependencies: what they change there
is found afterwards. Blocking.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from corral._system import clock, fs, paths
from corral._system.folder_stamps import FolderStamp, take_stamp
from corral._system.git import scan
from corral._system.git import tree as git_tree
from corral._system.git.folder_store import Entries
from corral._system.git.repository import Stamp, TreeDifference, stamp_of
from corral._system.paths import is_inside
from corral._system.sandbox.box import Bind
from corral._system.sandbox.sandbox import Sandbox
from corral._verification.check import CheckContext
from corral._verification.check_environment import TreePlaces
from corral._verification.run_trees import WorkTrees
from corral.errors import StorageFailed
from corral.values import printable_path

OLD = 24 * 3600.0


class CleanTree:
    """Used as a context manager. Raises ``StorageFailed`` if it cannot be made."""

    def __init__(self, trees: WorkTrees, sandbox: Sandbox | None) -> None:
        self._trees = trees
        self._given = sandbox
        self._own: Path | None = None
        self._entries: Entries = {}
        self._stamps: dict[bytes, Stamp] = {}
        self._dependencies: dict[str, FolderStamp] = {}

    def __enter__(self) -> CleanTree:
        self._own = own_folder()
        try:
            self._make()
        except OSError as error:
            self.__exit__()
            raise StorageFailed(f"the clean tree cannot be made: {error}") from error
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        own, self._own = self._own, None
        if own is not None:
            _make_removable(own)
            fs.remove_tree(own)

    def of_before(self) -> CleanTree:
        """The clean tree of the files from before the run."""
        return CleanTree(self._trees.of_before, self._given)

    def as_left(self) -> CleanTree:
        """The clean tree of the files that the run left, also of those that judge."""
        return CleanTree(self._trees.as_left, self._given)

    @property
    def _is_bound(self) -> bool:
        """Whether it stands in the place of the workspace."""
        return self._given is not None and self._given.support.method == "bubblewrap"

    @property
    def _place(self) -> Path:
        if self._own is None:
            raise RuntimeError("the clean tree is not there")
        return self._own / "tree"

    @property
    def folder(self) -> Path:
        """The working directory of the checks, as they see it."""
        root = Path(fs.real_path(self._trees.root)) if self._is_bound else self._place
        return root / self._trees.inside

    @property
    def outside_folder(self) -> Path:
        """The same folder, as this process sees it."""
        return self._place / self._trees.inside

    @property
    def scratch(self) -> Path:
        """A folder for temporary files, on this machine and in the sandbox."""
        return self._place.with_name("tmp")

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox of the run, around the clean tree and nothing else of the user."""
        given = self._given
        if given is None:
            return None
        root, place = fs.real_path(self._trees.root), str(self._place)
        readable = [
            path
            for path in (*given.box.readable, *given.box.writable)
            if not is_inside(fs.real_path(path), root)
        ]
        box = msgspec.structs.replace(
            given.box,
            cwd=str(self.folder),
            writable=(str(self.scratch), *(() if self._is_bound else (place,))),
            readable=(*readable, *(os.path.join(root, each) for each in self._trees.provided)),
            binds=(Bind(place, root),) if self._is_bound else (),
            read_only=(),
            absent=(),
            guarded=(),  # nobody uses a repository of this folder outside of the sandbox
            can_change_git=False,
        )
        return msgspec.structs.replace(given, box=box)

    def context(self, context: CheckContext) -> CheckContext:
        """The same, of a check in this tree."""
        return msgspec.structs.replace(
            context,
            folder=self.folder,
            outside_folder=self.outside_folder,
            sandbox=self.sandbox,
            env={**context.env, **self.env},
            scratch=self.scratch,
            places=self.places,
        )

    @property
    def places(self) -> TreePlaces:
        trees = self._trees
        programs = (git_tree.EXECUTABLE, git_tree.LINK)
        return TreePlaces(
            workspace=str(trees.root),
            inside=trees.inside,
            tree=fs.real_path(trees.root) if self._is_bound else str(self._place),
            outside_tree=str(self._place),
            provided=tuple(trees.provided),
            new_programs=frozenset(
                os.path.dirname(os.fsdecode(change.path)) or "."
                for change in trees.changes
                if change.new is not None
                and change.new.mode in programs
                and self._entries.get(change.path) == change.new
            ),
        )

    @property
    def env(self) -> dict[str, str]:
        """Variables that keep programs from writing into dependencies, or from running what the
        agent compiled there."""
        env = {"PYTHONDONTWRITEBYTECODE": "1"}
        if self._trees.fresh_bytecode:
            env["PYTHONPYCACHEPREFIX"] = str(self.scratch / "bytecode")
        return env

    def _make(self) -> None:
        trees, place = self._trees, self._place
        paths.make_dir(place)
        paths.make_dir(self.scratch)
        git_tree.fill(trees.store, place, trees.clean.tree, place.with_name("index"))
        self._entries = trees.entries
        base = os.fsencode(place)
        for path, seconds in trees.times(self._entries).items():
            with contextlib.suppress(OSError):
                os.utime(os.path.join(base, path), (seconds, seconds), follow_symlinks=False)
        if wrong := self._damaged(check_content=True):
            names = ", ".join(printable_path(os.fsdecode(path)) for path in sorted(wrong)[:3])
            raise StorageFailed(f"the repository's objects are damaged: {names}")
        (place / trees.inside).mkdir(parents=True, exist_ok=True)
        for name, stamp in trees.provided.items():
            self._provide(name, stamp)

    def _provide(self, name: str, stamp: FolderStamp) -> None:
        path, source = self._place / name, self._trees.root / name
        if os.path.lexists(path) and not _is_empty_folder(path):
            return  # the tree itself has files there
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._is_bound:
            if path.is_dir():
                path.rmdir()
            make_linked(str(source), str(path), self.places)
            self._dependencies[name] = stamp
        elif source.is_dir():
            path.mkdir(exist_ok=True)  # where it is mounted
        else:
            path.touch()

    def _damaged(self, *, check_content: bool = False) -> set[bytes]:
        """Files of the tree that are not as they must be."""
        base, wrong = os.fsencode(self._place), set[bytes]()
        for path, entry in self._entries.items():
            if entry.mode == git_tree.SUBMODULE:
                continue
            file = os.path.join(base, path)
            try:
                stamp = stamp_of(os.lstat(file))
            except OSError:
                wrong.add(path)
                continue
            if check_content:
                if git_tree.hash_blob(file, len(entry.id)) != entry.id:
                    wrong.add(path)
                self._stamps[path] = stamp
            elif self._stamps.get(path) != stamp:
                wrong.add(path)
        return wrong

    def repair(self) -> tuple[str, ...]:
        """Put back what a check has changed in the files of the tree, and remove what it has added
        there that judges. Returns the names of the files that it changed."""
        for name in self._dependencies:
            _remove(self._place / name)
        wrong = self._damaged()
        changes = [
            TreeDifference(path=path, old=self._entries[path], new=self._entries[path])
            for path in sorted(wrong)
        ]
        if changes:
            git_tree.update(self._trees.store, self._place, changes, force=True)
            self._damaged(check_content=True)
        for path in [*scan.files(self._place, None, ())]:
            if path not in self._entries and self._trees.judges(path):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(os.fsencode(self._place), path))
        for name, stamp in [*self._dependencies.items()]:
            self._provide(name, stamp)
        return tuple(printable_path(os.fsdecode(path)) for path in sorted(wrong))

    def changed_dependencies(self) -> list[str]:
        """Dependencies that the checks have changed."""
        return [
            name
            for name, old in self._dependencies.items()
            if (new := take_stamp(str(self._trees.root / name))) is None or new.files != old.files
        ]


def own_folder() -> Path:
    """An empty folder. What killed processes left is removed."""
    above = paths.make_dir(paths.runtime() / "checks")
    for name in fs.list_names(above):
        with contextlib.suppress(OSError):
            if clock.now() - fs.status(above / name).st_mtime > OLD:
                _make_removable(above / name)
                fs.remove_tree(above / name)
    import tempfile

    try:
        return Path(fs.real_path(tempfile.mkdtemp(prefix="run-", dir=above)))
    except OSError as error:
        raise StorageFailed(f"{above} cannot be written: {error.strerror}") from error


def _is_empty_folder(path: Path) -> bool:
    """As a submodule is in the tree."""
    return stat.S_ISDIR(os.lstat(path).st_mode) and not os.listdir(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        _make_removable(path)
        fs.remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _make_removable(folder: Path) -> None:
    """A check may have made folders that cannot be written."""
    for above, names, _ in os.walk(folder):
        for name in _folders(above, names):
            with contextlib.suppress(OSError):
                os.chmod(name, 0o700)


def _folders(above: str, names: Iterable[str]) -> Iterable[str]:
    return (path for name in names if not os.path.islink(path := os.path.join(above, name)))


LARGEST = 256 * 1024
"""Bytes of a file that may name the workspace."""
DEEPEST = 2
"""Folders below one of dependencies in which packages are: ``vendor/NAME/PACKAGE``."""


def make_linked(source: str, place: str, places: TreePlaces) -> None:
    """Make the folder ``place``, which must not be there: dependencies in the clean tree, without a
    sandbox that could show them there.

    It is a link to that of the workspace. But packages may be installed in place: files that name
    the workspace (``*.pth``, ``__editable__*``, programs whose first line names their Python) and
    links to other folders of it (workspaces of npm, path repositories of composer). They would lead
    checks to what the agent left. So where there are any, the folder is made of links to single
    files, these files name the tree, and these links lead into it."""
    leading = {*_leading(source, places)}
    if not leading:
        os.symlink(source, place)
        return
    folders = {folder for path in leading for folder in _above(path)}
    for folder in sorted(folders):
        os.mkdir(os.path.join(place, folder) if folder else place)
        with os.scandir(os.path.join(source, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if path not in folders:
                    _make_entry(entry, os.path.join(place, path), path in leading, places)


def _make_entry(entry: os.DirEntry[str], new: str, is_leading: bool, places: TreePlaces) -> None:
    if entry.is_symlink():
        target = os.readlink(entry.path)
        if is_leading:
            root = fs.real_path(places.workspace)
            below = os.path.relpath(fs.real_path(entry.path), root)
            target = os.path.join(places.tree, below)
        os.symlink(target, new)
    elif is_leading:
        with open(entry.path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            text = places.in_text(file.read())
        with open(new, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
        os.chmod(new, entry.stat().st_mode & 0o777)
    else:
        os.symlink(entry.path, new)


def _leading(source: str, places: TreePlaces) -> Iterator[str]:
    """The files that name the workspace and the links that lead into it, but for those that stay
    in the folder."""
    roots = {os.fsencode(places.workspace), os.fsencode(fs.real_path(places.workspace))}
    real, real_root = fs.real_path(source), fs.real_path(places.workspace)
    for folder in _package_folders(source):
        with os.scandir(os.path.join(source, folder)) as entries:
            for entry in entries:
                path = os.path.join(folder, entry.name)
                if entry.is_symlink():
                    target = fs.real_path(entry.path)
                    if is_inside(target, real_root) and not is_inside(target, real):
                        yield path
                elif entry.is_file() and entry.stat().st_size <= LARGEST:
                    with open(entry.path, "rb") as file:
                        data = file.read()
                    if any(root in data for root in roots):
                        yield path


def _package_folders(source: str) -> Iterator[str]:
    """The folders in which packages and programs are, from the folder."""
    for above, names, _ in os.walk(source):
        folder = os.path.relpath(above, source)
        folder = "" if folder == "." else folder
        depth = len(folder.split("/")) if folder else 0
        is_python = folder.startswith("lib") and depth < 3
        if os.path.basename(folder) == "site-packages" or (depth >= DEEPEST and not is_python):
            names.clear()
        yield folder


def _above(path: str) -> list[str]:
    """The folders above, from the one that all are in."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]
