"""``corral.merge_queue.run``: add branches to a merge queue, and merge what is queued.

How a queue works is in ``merger``, its states are in ``queue``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Final, Unpack

import msgspec

from corral._core.argument_checks import check_text, check_texts
from corral._core.display import Card, Displayed
from corral._merging import owners, queue
from corral._merging.merger import POLL, Merger, OnEntry, conflict_text
from corral._merging.owners import Ask, BranchOwner
from corral._merging.queue import MergeEntry, MergeQueue, QueueStore
from corral._merging.rebase import HEADS, merged_tip, rebase, tip_of
from corral._system import config, fs
from corral._system.git import repository, source_repository, worktree
from corral._system.git.worktree import name_part
from corral._system.threads import in_thread, short_traceback_async, sync_twin
from corral._verification.command_check import command_succeeds
from corral.errors import ConfigError, StorageFailed
from corral.options import RunOptions
from corral.run_kwargs import RunKwargs

REMOVED = "removed from the queue"
TIMEOUT = 1800.0
"""Default of seconds for a gate command."""
ROUNDS = 2
"""How often the owner of a branch is asked by default."""
GATE_SANDBOXES = ("auto", "require")


class MergeReport(Displayed, msgspec.Struct, frozen=True, kw_only=True):
    """What a merge queue has done.

    ::

        report = await merge_queue.run(["feature"], into="main", gates=["make test"])
        print(report.merged, report.failed, report.pending)
    """

    queue: str
    """Its id."""
    into: str
    tip: str
    """The last commit: of the target, or of the branch that ``pending`` names."""
    entries: list[MergeEntry] = []
    """The branches that were queued or open when the call began, or were added since. For a run,
    only its own."""
    pending: str = ""
    """What to do, if the target is checked out with changes that are not committed."""
    elsewhere: bool = False
    """Another process merges this queue; the branches were only added to it."""

    @property
    def merged(self) -> int:
        return sum(entry.state == "merged" for entry in self.entries)

    @property
    def failed(self) -> int:
        return sum(entry.state == "failed" for entry in self.entries)

    @property
    def ok(self) -> bool:
        """Whether no branch has failed."""
        return not self.failed

    @property
    def cost_usd(self) -> float:
        return sum(entry.cost_usd for entry in self.entries)

    @property
    def reasons(self) -> list[str]:
        """Why branches were not merged: a text for each."""
        left = (entry for entry in self.entries if entry.state != "merged")
        return [f"{entry.branch} {entry.state}: {entry.reason}" for entry in left]

    @property
    def summary(self) -> str:
        """How many were merged, the ``reasons``, and what is ``pending``."""
        reasons = self.reasons
        count = f"{self.merged} merged into {self.into}"
        count += f", {len(reasons)} not" if reasons else ""
        return "\n".join(filter(None, [count, *reasons, self.pending]))

    def _card(self) -> Card:
        facts = (f"{self.merged} merged", f"{self.failed} failed")
        lines = [f"{entry.branch}: {entry.reason}" for entry in self.entries if entry.reason]
        return Card(f"MergeReport into {self.into}", facts, "\n".join(lines))


@short_traceback_async
async def run(  # noqa: PLR0913
    branches: Sequence[str] = (),
    *,
    into: str,
    gates: Sequence[str] = (),
    batch: str | None = None,
    rounds: int | None = None,
    gate_timeout: float | None = None,
    gate_sandbox: str | None = None,
    gate_env: Sequence[str] = (),
    agent: str | None = None,
    dry_run: bool = False,
    wait: bool = False,
    on_entry: OnEntry | None = None,
    **options: Unpack[RunKwargs],
) -> MergeReport:
    """Add branches to the merge queue of the branch ``into``, and merge all that is queued.

    ``branches``: names of branches, or patterns such as ``"corral/nightly/*"``; none: continue with
    what is queued. ``batch``: the branches of this batch, too. ``gates``: commands that must
    succeed in a clean worktree before ``into`` is moved; they are stored with the queue.
    ``rounds``: how often the session that made a branch is asked to resolve a conflict or to repair
    what the gate found (2). ``agent``: asked for branches that no session of corral made.
    ``gate_timeout``: seconds for each command. ``gate_sandbox``: ``"auto"`` or ``"require"``.
    ``gate_env``: names of variables that the commands see. ``dry_run``: tell what would conflict,
    and change nothing. ``wait``: until the branches have left the queue, if another process merges
    it. ``on_entry`` is called with each entry that changes, and with one of number 0 before the
    gate runs on ``into`` itself. ``options`` are those of ``corral.run`` for the sessions that are
    asked, with ``cwd``, the folder of the repository.

    Raises ``ConfigError`` before anything is changed: no repository, an unknown branch, no gate, or
    a gate that fails on ``into`` itself. Another process may merge the same queue: then the
    branches are only added, unless ``wait``. What was interrupted is continued by the next call.

    ::

        report = await merge_queue.run(["feature-1", "feature-2"], into="main", gates=["make test"])
    """
    folder = Path(options.pop("cwd", None) or ".")
    RunOptions.build("corral", {**options})  # raises before anything is merged
    if agent is not None:
        config.find_agent(agent)
    order = MergeOrder(
        branches=branches,
        into=into,
        batch=batch,
        gates=gates,
        rounds=ROUNDS if rounds is None else rounds,
        timeout=TIMEOUT if gate_timeout is None else gate_timeout,
        sandbox=gate_sandbox or "",
        pass_env=gate_env,
        wait=wait,
    )
    if dry_run:
        order.check()
        return await in_thread(_try, folder, order)
    return await run_order(
        folder,
        order,
        on_entry or (lambda _entry: None),
        ask=partial(owners.ask, options=options),
        fallback=None if agent is None else BranchOwner(agent=agent),
    )


class MergeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Branches, and how they are merged. The other fields are the parameters of ``run``."""

    id: str = ""
    """Of the attempt of a run that gives the order. An order that is given again after a crash does
    no branch again that has ended, and its report has no branches of others."""
    branches: Sequence[str]
    into: str
    gates: Sequence[str]
    batch: str | None = None
    rounds: int = ROUNDS
    timeout: float = TIMEOUT
    sandbox: str = ""
    pass_env: Sequence[str] = ()
    wait: bool = False

    def check(self) -> None:
        """Raises ``ConfigError``."""
        check_text("into", self.into)
        for what, values in (
            ("branches", self.branches), ("gates", self.gates), ("gate_env", self.pass_env),
        ):  # fmt: skip
            check_texts(what, values)
        for gate in self.gates:
            if not gate.strip():
                raise ConfigError("a gate is empty", hint="Name a command, such as 'make test'.")
            command_succeeds(gate, timeout=self.timeout)
        if self.rounds < 0:
            raise ConfigError(f"rounds must be at least 0, got: {self.rounds}")
        if self.sandbox not in ("", *GATE_SANDBOXES):
            modes = " or ".join(GATE_SANDBOXES)
            raise ConfigError(f"gate_sandbox must be {modes}, got: {self.sandbox!r}")


async def run_order(
    folder: Path, order: MergeOrder, on_entry: OnEntry, *, ask: Ask, fallback: BranchOwner | None
) -> MergeReport:
    """``run``, with the function that asks the session of a branch, and the owner of branches that
    have none. Raises as ``run``."""
    order.check()
    root = await in_thread(_main_folder, folder)
    wanted = await in_thread(_find_branches, root, order)
    store = QueueStore.of(root, order.into)
    own = await in_thread(_add, store, root, order, wanted, fallback)
    merger = Merger(root, store, on_entry, ask, fallback)
    while True:
        with store.working() as is_ours:
            if is_ours:
                if not order.id:
                    own |= await in_thread(_unreported_numbers, store)
                await merger.run({*own} if order.id else own)
            elif not order.wait:
                return await in_thread(_report, store, root, own, elsewhere=True)
        # Another process may have added a branch just before the lock was free.
        still_open = await in_thread(_open_numbers, store)
        if not still_open or (not is_ours and not still_open & own):
            return await in_thread(_report, store, root, own)
        if not is_ours:
            await asyncio.sleep(POLL)


def _main_folder(folder: Path) -> Path:
    """The main work tree of the repository around a folder, which may be in another one: all of
    them have the same queues. Raises ``ConfigError``."""
    top, _ = worktree.repository_root(folder)
    common = Path(fs.real_path(repository.locate(top).common))
    return common.parent if common.name == ".git" else top


run_sync: Final = sync_twin(run)


def remove(
    branches: Sequence[str], *, into: str, cwd: str | os.PathLike[str] = "."
) -> list[MergeEntry]:
    """Take branches out of the merge queue of ``into``; the branches stay. Raises ``ConfigError``
    if one is not queued, or another process is merging it.

    ::

        merge_queue.remove(["feature-2"], into="main")
    """
    check_texts("branches", branches)
    store = QueueStore.of(_main_folder(Path(cwd)), into)
    with store.working() as is_ours:

        def change(stored: MergeQueue) -> list[MergeEntry]:
            by_name = {entry.branch: entry for entry in stored.open}
            for name in branches:
                entry = by_name.get(name)
                if entry is None:
                    raise ConfigError(
                        f"the branch {name!r} is not queued for {into}",
                        hint=f"Queued: {', '.join(by_name) or 'none'}.",
                    )
                if entry.state != "queued" and not is_ours:
                    raise ConfigError(
                        f"another process is merging {name}", hint="Interrupt it first, or wait."
                    )
            removed = [queue.end(by_name[name], "failed", REMOVED) for name in branches]
            for entry in removed:
                entry.unreported = False  # whoever removes it knows
            return removed

        return store.change(change)


def _find_branches(root: Path, order: MergeOrder) -> dict[str, str]:
    """The branches and their commits. Raises ``ConfigError``."""
    branches, batch, into = order.branches, order.batch, order.into
    if into.startswith("refs/") or tip_of(root, into) is None:
        raise ConfigError(f"{root} has no branch {into!r}", hint="`git branch` lists the branches.")
    listed = repository.run(root, "for-each-ref", "--format=%(refname)", HEADS).splitlines()
    names = [name.removeprefix(HEADS) for name in listed]
    patterns = [*branches]
    if batch is not None:
        patterns.append(f"corral/{name_part(batch)}/*")
    found: dict[str, str] = {}
    for pattern in patterns:
        matching = [pattern] if tip_of(root, pattern) is not None else []
        if not matching and any(sign in pattern for sign in "*?["):
            matching = [name for name in names if fnmatchcase(name, pattern) and name != into]
        if not matching:
            what = f"the batch {batch} has no branch" if pattern not in branches else ""
            raise ConfigError(
                what or f"{root} has no branch {pattern!r}",
                hint="`git branch` lists the branches. A batch makes one for each task that changes"
                " files, with --worktree.",
            )
        for name in matching:
            found[name.removeprefix(HEADS)] = tip_of(root, name) or ""
    if into in found:
        raise ConfigError(f"{into} cannot be merged into itself")
    for reference, top in repository.checkouts(root).items():
        name = reference.removeprefix(HEADS)
        if name in found and source_repository.has_changes(top):
            raise ConfigError(
                f"{name} is checked out in {top} with changes that are not committed",
                hint="Commit or stash them: only what is committed is merged.",
            )
    return found


def _add(
    store: QueueStore,
    root: Path,
    order: MergeOrder,
    wanted: dict[str, str],
    fallback: BranchOwner | None,
) -> set[int]:
    """Add the branches; the numbers of the entries of the order, without an id of all that are open
    then. Raises ``ConfigError``."""
    with store.locked():
        known = store.read()
        stored = known or MergeQueue(id=store.id, repository=str(root), into=order.into)
        if order.gates:
            stored.gates, stored.pass_env = list(order.gates), list(order.pass_env)
            stored.rounds, stored.timeout = order.rounds, order.timeout
            stored.sandbox, stored.green = order.sandbox, ""
        if not stored.gates:
            raise ConfigError(
                "no gate: which command must succeed before a branch is merged?",
                hint="Name one: --gate 'make test' (--gate true checks nothing).",
            )
        # A process that was killed at its end leaves a queue without open entries.
        if not wanted and known is None:
            raise ConfigError(
                f"nothing is queued for {stored.into}", hint="Name the branches to merge."
            )
        before = stored.entries if order.id else []
        of_order = {entry.branch: entry for entry in before if entry.order == order.id}
        for branch, commit in wanted.items():
            if branch not in of_order:
                owner = owners.find(root, branch) or fallback
                entry = stored.add(branch, commit, owner.agent if owner else "")
                entry.order = order.id or entry.order
                of_order[branch] = entry
        store.write(stored)
        own = of_order.values() if order.id else stored.open
        return {entry.number for entry in own}


def _unreported_numbers(store: QueueStore) -> set[int]:
    """The numbers of the entries that ended in a process that was killed."""
    stored = store.read()
    return set() if stored is None else {each.number for each in stored.entries if each.unreported}


def _open_numbers(store: QueueStore) -> set[int]:
    """The numbers of the entries that have not ended."""
    stored = store.read()
    return set() if stored is None else {entry.number for entry in stored.open}


def _report(
    store: QueueStore, root: Path, own: set[int], *, elsewhere: bool = False
) -> MergeReport:
    def change(stored: MergeQueue) -> MergeQueue:
        for entry in stored.entries:
            if entry.number in own and not entry.is_open and not elsewhere:
                entry.unreported = False
        return stored

    stored = store.change(change)
    return MergeReport(
        queue=store.id,
        into=stored.into,
        tip=merged_tip(root, stored.into) or "",
        entries=[entry for entry in stored.entries if entry.number in own],
        pending=stored.pending,
        elsewhere=elsewhere,
    )


def _try(folder: Path, order: MergeOrder) -> MergeReport:
    """What would conflict, without a gate."""
    root, into = _main_folder(folder), order.into
    wanted = _find_branches(root, order)
    tip, entries = tip_of(root, into) or "", list[MergeEntry]()
    for number, (branch, commit) in enumerate(wanted.items(), 1):
        entry = MergeEntry(number=number, branch=branch, commit=commit, base=tip)
        try:
            done = rebase(root, tip, commit, branch)
        except StorageFailed as error:
            queue.end(entry, "failed", error.message)
        else:
            entry.files = done.files
            if done.commit:
                tip = entry.result = done.commit
                queue.end(entry, "merged", "nothing to merge" if done.is_empty else "")
            else:
                queue.end(entry, "failed", conflict_text(done.files))
        entry.staged = entry.unreported = False  # nothing was merged
        entries.append(entry)
    return MergeReport(queue="", into=into, tip=tip, entries=entries)
