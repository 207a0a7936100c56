"""The workspace before and after a run, and the tree in which its checks run.

``begin`` is called before the agent starts, ``end`` when it has ended. The tree is that of the
repository around the working directory, or of the working directory itself. Its files are stored in
a repository of corral's own, so nothing is written to the user's.

The clean tree has the files that the agent left. With ``verify_from="before"``, files that judge
(``judging``) are put back as they were, and those that the run has added are left out; with
``put_back`` in the workspace, too, so that what is checked is what is there. Files that
git ignores are left out too, but for dependencies: ignored folders with a name of ``DEPENDENCIES``,
submodules, and what ``verify_with`` names. They are provided if they were the same before and after
the run. Blocking.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral._system import fs, paths
from corral._system.folder_stamps import FolderStamp, take_stamp
from corral._system.git import repository, scan
from corral._system.git import tree as git_tree
from corral._system.git.folder_store import Entries, FolderStore
from corral._system.git.repository import TreeDifference, TreeEntry
from corral._system.git.scan import Rules
from corral._verification.judging import MAKEFILES, Judges, Place, included_by
from corral._verification.tree_links import leads_to
from corral.errors import StorageFailed
from corral.events import FileKind
from corral.receipt import (
    CleanTreeFacts,
    LeftOut,
    Receipt,
    ReceiptFile,
    TreeState,
    VerifyFrom,
)
from corral.values import path_from_printable, printable_path

DEPENDENCIES = (
    *(".venv/", "venv/", "env/", "node_modules/", "bower_components/", "vendor/", "Pods/"),
    *(".bundle/", ".yarn/", "deps/", "third_party/", "external/", ".direnv/"),
)
"""Ignored folders in which dependencies are installed. Others, such as ``build``, are left out:
what is made of the work is made again."""
STORE = "trees.git"
LARGEST_MAKEFILE = 256 * 1024
"""Bytes of a Makefile whose targets are read."""
_LONG_AGO, _UNCHANGED = 1_000_000_000, 1_000_000_001
"""Seconds since the epoch."""
MOST_INCLUDES = 4
"""Makefiles that are read because the one before includes them."""
MOST_FILES = 5_000
"""Changed files that a receipt lists."""


class TreeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about the clean tree."""

    verify_from: VerifyFrom = "before"
    judge_files: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    """What the run may have changed, as patterns from the working directory."""
    verify_with: tuple[str, ...] = ()
    """Patterns of ignored files and folders that the checks need."""
    commands: tuple[str, ...] = ()
    """Those that are run."""
    provides_all: bool = False
    """Dependencies that the run installed or changed are provided, too, as it left them."""


class WorkTrees(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did to the workspace, and what its checks may see."""

    root: Path
    inside: str
    store: Path
    """Where the trees are stored."""
    before: TreeState
    after: TreeState
    changes: tuple[TreeDifference, ...]
    clean: CleanTreeFacts
    provided: dict[str, FolderStamp]
    """Path from the root → how it was at the end of the run."""
    entries: Entries
    """Of the clean tree."""
    before_entries: Entries
    """Of the tree from before the run."""
    after_entries: Entries
    """Of what the run left."""
    new: frozenset[bytes]
    """What the run has added to the clean tree."""
    withheld: tuple[LeftOut, ...]
    """Dependencies that are not provided."""
    fresh_bytecode: bool
    """Python's compiled modules in what is provided changed during the run: none is used."""
    gaps: tuple[str, ...]
    before_files: frozenset[str]
    """From the working directory."""
    judge: Judges

    def judges(self, path: bytes) -> bool:
        """Whether a file that a check has added judges. What it has built does not."""
        return self.judge.decides_by_name(path, is_new=True)

    def times(self, entries: Entries) -> dict[bytes, int]:
        """The times of files that get none of now. A file of the run that says that something was
        made already is older than what it is made of; what the run changed is newer than the rest.
        """
        times = dict.fromkeys(entries, _UNCHANGED) if self.judge.knows_targets else {}
        for change in self.changes:
            times.pop(change.path, None)
            is_made = change.old is None or self.judge.is_target(change.path)
            if is_made and change.path in entries:
                times[change.path] = _LONG_AGO
        return times

    @property
    def unchecked(self) -> bool:
        """Whether the run has added files that the clean tree has not."""
        return any(path in self.after_entries and path not in self.entries for path in self.new)

    @property
    def of_before(self) -> WorkTrees:
        """The same, with the files from before the run as the clean tree."""
        clean = CleanTreeFacts(tree=self.before.tree)
        return msgspec.structs.replace(
            self, clean=clean, entries=self.before_entries, new=frozenset()
        )

    @property
    def as_left(self) -> WorkTrees:
        """The same, with all files that the run left as the clean tree."""
        clean = CleanTreeFacts(tree=self.after.tree)
        return msgspec.structs.replace(self, clean=clean, entries=self.after_entries)

    def changed_files(self) -> dict[str, FileKind]:
        """What the run changed, from the working directory."""
        changed: dict[str, FileKind] = {}
        for change in self.changes:
            kind: FileKind = "modified"
            if change.old is None or change.new is None:
                kind = "created" if change.old is None else "deleted"
            name = os.path.relpath(os.fsdecode(change.path), self.inside or ".")
            changed[name] = kind
        return changed

    def changed_environments(self) -> list[str]:
        """Folders of the tree in which programs are installed and that the run changed: virtual
        environments and ``node_modules``. What is compiled there does not count."""
        environments = {
            os.path.dirname(path)
            for path in self.before_entries
            if os.path.basename(path) == b"pyvenv.cfg"
        }
        found: set[bytes] = set()
        for change in self.changes:
            if b"__pycache__" in change.path.split(b"/"):
                continue
            for folder in _folders_above(change.path):
                if folder in environments or os.path.basename(folder) == b"node_modules":
                    found.add(folder)
        return [printable_path(os.fsdecode(each)) for each in sorted(found)]

    @property
    def changed_nothing(self) -> bool:
        """What the run changed does not count, or there is nothing."""
        return self.clean.tree == self.before.tree


class RepeatedTrees(msgspec.Struct, frozen=True, kw_only=True):
    """What a receipt is repeated with."""

    work: WorkTrees
    stale: tuple[str, ...]
    """Files that are not as the receipt says."""
    uncommitted: tuple[str, ...]
    """Files that judge, that the receipt says were not committed before the run, and that do not
    count."""


class RunTrees:
    """All methods block. They raise ``StorageFailed``, also if the folder is too large."""

    def __init__(
        self, cwd: str, own: Path, choice: TreeChoice, *, more: Path | None = None
    ) -> None:
        """``own``: a folder in which the trees are stored. ``more``: one in which earlier trees
        are."""
        found = scan.find_repository(Path(cwd))
        self.root = Path(cwd) if found is None or found.top is None else found.top
        self.is_repository: bool = found is not None and found.top is not None
        below = os.path.relpath(os.path.abspath(cwd), self.root)
        self.inside: str = "" if below == "." else below
        self._choice = choice
        key = blake2b(os.fsencode(self.root), digest_size=10).hexdigest()
        known = paths.cache() / "trees" / key
        earlier = None if more is None else more / STORE
        self._store = FolderStore(own / STORE, self.root, known=known, more=earlier)
        self._before: TreeState | None = None
        self._stamps: dict[str, FolderStamp | None] = {}

    def begin(self) -> None:
        tree = self._store.take()
        self._before = self._state(tree)
        self._stamps = {path: self._stamp(path) for path in self._dependencies(tree)}

    def begin_at_commit(self) -> None:
        """As ``begin``, for a folder in which the work was done already: the state before it is the
        current commit, and dependencies are those that are there now."""
        tree = self._store.take()
        self._before = TreeState(tree=self._store.base())
        self._stamps = {path: self._stamp(path) for path in self._dependencies(tree)}

    def restore(self, tree: str) -> frozenset[str]:
        """Put the files back to a tree that was stored. Returns the paths of those that differed,
        from the working directory. What was there is stored as well. Files that git ignores stay as
        they are."""
        store = self._store.own
        current = self._store.take(tree)
        changes = [*self._store.differences(current, tree)]
        git_tree.update(store, self.root, changes, force=True)
        inside = self.inside or "."
        return frozenset(os.path.relpath(os.fsdecode(each.path), inside) for each in changes)

    def put_back(self) -> CleanTreeFacts:
        """Put the files that judge back as they were before the run, and remove those that it has
        added."""
        clean = self.end().clean
        self.restore(clean.tree)
        return clean

    def end(self) -> WorkTrees:
        if self._before is None:
            raise RuntimeError("the trees before the run were not taken")
        before = self._before
        after = TreeState(tree=self._store.take(before.tree))
        if self._choice.provides_all:
            self._stamps = {path: self._stamp(path) for path in self._dependencies(after.tree)}
        return self.work(before, after, self._stamp)

    def repeat(
        self, receipt: Receipt, file: Path, base: str | None, *, uncommitted: bool = False
    ) -> RepeatedTrees:
        """What a run changed from the commit ``base`` to the files of now; None: from the state
        that the receipt names. ``uncommitted``: with what it says was not committed then. If the
        ``file`` with the receipt is in the tree, it counts as it was at the end of the run. Raises
        ``StorageFailed`` if files from before the run are not here."""
        if receipt.before is None or receipt.clean is None:
            raise StorageFailed("the receipt has no trees")
        claimed = receipt.before
        store, now = self._store.own, self._store.take()
        at_commit = self._store.entries(claimed.commit) if claimed.commit else {}
        old = _with_changes(at_commit, claimed.uncommitted)
        expected = _with_changes(old, receipt.changed)
        if base is not None:
            before = self._state_at(base, claimed if uncommitted else None)
        elif repository.check(store, "cat-file", "-e", f"{claimed.tree}^{{tree}}"):
            before, expected = (
                claimed,
                _with_changes(self._store.entries(claimed.tree), receipt.changed),
            )
        elif self._made(old) == claimed.tree:
            before = claimed
        else:
            raise _not_here()
        now = self._store.take(before.tree)
        found = self._store.entries(now)
        name = os.fsencode(os.path.relpath(fs.real_path(file), fs.real_path(self.root)))
        if found.get(name) != expected.get(name):
            found = {path: each for path, each in found.items() if path != name}
            if name in expected:
                found[name] = expected[name]
            now = git_tree.make_tree(store, found)
        known_names = found.keys() | expected.keys()
        names = [path for path in known_names if found.get(path) != expected.get(path)]
        self._before = before
        is_own = base is None
        self._stamps = {
            path: self._stamp(path)
            for path in self._dependencies(now)
            if not is_own or path in receipt.clean.provided
        }
        stamps = dict(self._stamps)
        work = self.work(before, TreeState(tree=now), lambda path: stamps[path])
        return RepeatedTrees(
            work=work,
            stale=tuple(printable_path(os.fsdecode(path)) for path in sorted(names)),
            uncommitted=() if is_own or uncommitted else _judging(claimed, work.judge),
        )

    def _state_at(self, commit: str, claimed: TreeState | None) -> TreeState:
        """The files of a commit, with those of ``claimed`` that were not committed."""
        tree = repository.tree_of(self._store.own, commit)
        if claimed is None:
            return TreeState(tree=tree, commit=commit)
        if claimed.commit != commit:
            raise StorageFailed(
                f"the run did not start from {commit[:12]}: what was not committed then cannot be"
                " counted",
                hint="Name the commit that it started from: --before COMMIT.",
            )
        if not self._made(_with_changes(self._store.entries(commit), claimed.uncommitted)):
            raise _not_here()
        return claimed

    def _made(self, entries: Entries) -> str:
        """The id of the tree with these files; empty if one is not here."""
        try:
            return git_tree.make_tree(self._store.own, entries)
        except StorageFailed:
            return ""

    def work(
        self, before: TreeState, after: TreeState, stamp: Callable[[str], FolderStamp | None]
    ) -> WorkTrees:
        """What differs between two states that are stored, and the clean tree."""
        store = self._store.own
        changes = tuple(self._store.differences(before.tree, after.tree))
        old, left = self._store.entries(before.tree), self._store.entries(after.tree)
        judge = self._judges(old)
        entries, restored, left_out = self._clean(left, changes, judge)
        tree = after.tree if entries == left else git_tree.make_tree(store, entries)
        provided, others, fresh_bytecode = self._compare_dependencies(stamp)
        inside = os.fsencode(self.inside) + b"/" if self.inside else b""
        return WorkTrees(
            root=self.root,
            inside=self.inside,
            store=store,
            before=before,
            after=after,
            changes=changes,
            entries=entries,
            before_entries=old,
            after_entries=left,
            clean=CleanTreeFacts(
                tree=tree,
                restored=restored,
                left_out=(*left_out, *others),
                provided=tuple(map(printable_path, provided)),
            ),
            provided=provided,
            new=frozenset(each.path for each in changes if each.old is None),
            withheld=tuple(others),
            fresh_bytecode=fresh_bytecode,
            gaps=tuple(_links_out(_links(store, old), _links(store, entries))),
            before_files=frozenset(
                os.fsdecode(path.removeprefix(inside)) for path in old if path.startswith(inside)
            ),
            judge=judge,
        )

    def _judges(self, before: Entries) -> Judges:
        """Which files judge."""
        makefiles = self._makefiles(before)
        choice, root = self._choice, str(self.root)
        return Judges(
            before,
            work=choice.work,
            patterns=choice.judge_files,
            commands=choice.commands,
            place=Place(self.inside, (root, fs.real_path(root))),
            makefiles=makefiles,
            links=_links(self._store.own, before),
        )

    def _makefiles(self, before: Entries) -> dict[bytes, bytes]:
        """The Makefiles, and what they include, by its name at any depth."""
        contents: dict[bytes, bytes] = {}
        names: set[bytes] = set()
        for _ in range(MOST_INCLUDES):
            found = {
                path: each.id
                for path, each in before.items()
                if path not in contents
                and (MAKEFILES.fullmatch(path) or path.rpartition(b"/")[2] in names)
            }
            if not found:
                break
            blobs = repository.blobs(self._store.own, [*found.values()], LARGEST_MAKEFILE)
            contents |= {path: blobs.get(blob, b"") for path, blob in found.items()}
            texts = (contents[path].decode("utf-8", "replace") for path in found)
            names |= {
                os.fsencode(os.path.basename(name)) for text in texts for name in included_by(text)
            }
        return contents

    def _state(self, tree: str) -> TreeState:
        if not self._store.commit:
            return TreeState(tree=tree)
        changes = git_tree.compare_entries(self._store.base_entries, self._store.entries(tree))
        commit = self._store.commit
        return TreeState(tree=tree, commit=commit, uncommitted=receipt_files(changes))

    def _clean(
        self, left: Entries, changes: Iterable[TreeDifference], judge: Judges
    ) -> tuple[Entries, tuple[str, ...], tuple[LeftOut, ...]]:
        """The files of the clean tree, those that were put back, and those that are left out."""
        entries = dict(left)
        if self._choice.verify_from == "after":
            return entries, (), ()
        back: Entries = {}
        left_out: list[bytes] = []
        for change in changes:
            if not judge.decides(change.path, is_new=change.old is None):
                continue
            if change.old is None:
                entries.pop(change.path)
                left_out.append(change.path)
            else:
                back[change.path] = change.old
        # Where a file stood, the run may have made a folder, or the other way round.
        above_back = {folder for path in back for folder in _folders_above(path)}
        for path in [*entries] if back else ():
            if path in above_back or not back.keys().isdisjoint(_folders_above(path)):
                entries.pop(path)
                left_out.append(path)
        reason = "the run added it, and it judges the work"
        if self._choice.work:
            reason = "the run added it, and it is not part of the work"
        return (
            entries | back,
            tuple(printable_path(os.fsdecode(path)) for path in sorted(back)),
            tuple(LeftOut(printable_path(os.fsdecode(path)), reason) for path in left_out),
        )

    def _dependencies(self, tree: str) -> list[str]:
        """The ignored folders and files that checks may need, from the root."""
        rules = Rules("\n".join((*DEPENDENCIES, *self._choice.verify_with)).encode())
        entries = self._store.entries(tree)
        found = [path for path, entry in entries.items() if entry.mode == git_tree.SUBMODULE]

        def take(path: bytes, is_folder: bool) -> None:
            parts = path.split(b"/")
            if any(
                rules.verdict(parts[:depth], is_folder=is_folder or depth < len(parts))
                for depth in range(1, len(parts) + 1)
            ):
                found.append(path)

        scope = self._store.scope()
        for _ in scan.files(self.root, scope, (), on_ignored=take):
            pass
        return [os.fsdecode(path) for path in found]

    def _stamp(self, path: str) -> FolderStamp | None:
        return take_stamp(os.path.join(self.root, path))

    def _compare_dependencies(
        self, stamp: Callable[[str], FolderStamp | None]
    ) -> tuple[dict[str, FolderStamp], list[LeftOut], bool]:
        """Those that did not change, those that did, and whether bytecode did."""
        provided: dict[str, FolderStamp] = {}
        others: list[LeftOut] = []
        fresh_bytecode = False
        for path, old in self._stamps.items():
            new = stamp(path)
            if old is None or new is None or old.files != new.files:
                reason = "it changed during the run"
                if old is None or new is None:
                    reason = "it cannot be read, or is too large to be compared"
                others.append(LeftOut(printable_path(path), reason))
            else:
                provided[path] = new
                fresh_bytecode = fresh_bytecode or old.bytecode != new.bytecode
        return provided, others, fresh_bytecode


def _judging(claimed: TreeState, judge: Judges) -> tuple[str, ...]:
    """The files that were not committed and judge."""
    return tuple(
        each.path
        for each in claimed.uncommitted
        if judge.decides(os.fsencode(path_from_printable(each.path)), is_new=each.before is None)
    )


def _not_here() -> StorageFailed:
    return StorageFailed(
        "the files from before the run are not here",
        hint="They were not committed then. Repeat it where the run was made.",
    )


def _folders_above(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def _with_changes(entries: Entries, changes: Iterable[ReceiptFile]) -> Entries:
    """The files after these changes."""
    found = dict(entries)
    for change in changes:
        path = os.fsencode(path_from_printable(change.path))
        if change.after is None:
            found.pop(path, None)
        else:
            mode, _, name = change.after.partition(":")
            found[path] = TreeEntry(mode, name)
    return found


def receipt_files(changes: Iterable[TreeDifference]) -> tuple[ReceiptFile, ...]:
    found = [
        ReceiptFile(
            printable_path(os.fsdecode(each.path)),
            None if each.old is None else f"{each.old.mode}:{each.old.id}",
            None if each.new is None else f"{each.new.mode}:{each.new.id}",
        )
        for each in changes
    ]
    return tuple(found[:MOST_FILES])


def _links_out(before: Mapping[str, str], clean: Mapping[str, str]) -> Iterable[str]:
    """Links that the run made to lead out of the tree: what they lead to is not checked."""
    for path in sorted(clean):
        place = leads_to(path, clean)
        if place.startswith(("/", "../")) and (
            path not in before or leads_to(path, before) != place
        ):
            yield f"the run made a link that leads out of the folder: {printable_path(path)}"


def _links(store: Path, entries: Entries) -> dict[str, str]:
    """The links of a tree, and what is in them."""
    found = {path: each.id for path, each in entries.items() if each.mode == git_tree.LINK}
    targets = repository.blobs(store, sorted({*found.values()}), 4096) if found else {}
    return {os.fsdecode(path): os.fsdecode(targets.get(blob, b"/")) for path, blob in found.items()}
