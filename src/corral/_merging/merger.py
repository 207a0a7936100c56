"""Merge finished branches, one after another, behind a gate: the process that works on a queue.

Theory of operation
-------------------
``queue`` has the states of the entries and their store; this is the process that works on them.
Each step takes the next entry:

1. its branch becomes one commit on the tip of the target (``rebase``), in git's objects;
2. the gate commands run in a clean worktree of that commit;
3. if they succeed, the target is moved to the commit, if it is still at the tip of step 1
   (compare and swap); otherwise the step is done again. Nothing is ever forced.

At a conflict or a failed gate the session that made the branch is asked (``owners``), in a worktree
of both sides. What it leaves becomes a commit of its branch, which is the next that is taken. Other
entries are merged meanwhile; one with a conflict in the same files waits. Nothing that a model
wrote gets to the target without the gate.

If the target is checked out somewhere, it is not moved. The tip is the branch ``corral/merge/INTO``
then, and only at the end the checkout is moved to it, as ``git merge --ff-only`` does: if it has no
changes, otherwise the report says what to do. If the target was moved meanwhile, that branch is
thrown away, and entries that are on it only are queued again.

Crashes: see ``queue``. Which entries are on the target is asked of git (``_settle``), before a
branch that has them is removed. The worktrees of the gate and of owners are made again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from corral._merging import owners, queue, repair
from corral._merging.owners import Ask, BranchOwner
from corral._merging.queue import MAX_OUTPUT, MergeEntry, MergeQueue, QueueStore
from corral._merging.rebase import Rebased, rebase, reference, staging_of, tip_of
from corral._system import fs, paths
from corral._system.git import repository, worktree
from corral._system.git.source_repository import Repository
from corral._system.process.tree import ProcessRegistry
from corral._system.threads import in_thread
from corral._verification.check import CheckContext
from corral._verification.command_check import command_succeeds
from corral.errors import ConfigError, CorralError, StorageFailed
from corral.options import RunOptions
from corral.policy import Policy
from corral.receipt import Evidence

OnEntry: TypeAlias = Callable[[MergeEntry], None]
"""Called with an entry whenever its state has changed."""
ASKED_AT_ONCE = 2
"""Owners that work at the same time."""
POLL = 0.5
"""Seconds between two looks for what other processes have changed in the queue."""
RESTARTS = 5
"""How often, one after another, the target or the branch may be moved by others while the gate
runs."""


def conflict_text(files: Sequence[str]) -> str:
    return f"conflict in {', '.join(files[:10])}"


def _moved_too_often(branch: str) -> StorageFailed:
    return StorageFailed(
        f"{branch} was moved {RESTARTS} times while the gate ran",
        hint="A gate must not move branches. If others do, call again later: what is not merged"
        " stays queued.",
    )


class Merger:
    """The process that merges a queue. It has the lock of the worker."""

    def __init__(
        self,
        root: Path,
        store: QueueStore,
        on_entry: OnEntry,
        ask: Ask,
        fallback: BranchOwner | None,
    ) -> None:
        """``fallback`` is asked about branches that no session of corral made."""
        self._root = root
        self._store = store
        self._on_entry = on_entry
        self._ask_owner = ask
        self._fallback = fallback
        self._source = Repository(root=root)
        self._into = ""
        self._tip_branch = ""
        """The branch whose tip is the end of what is merged."""
        self._checkout: Path | None = None
        """The work tree in which the target is checked out."""
        self._asked: dict[asyncio.Task[None], int] = {}
        self._behind: dict[int, int] = {}
        """Entries that wait for the owner of another one, because both change the same lines."""
        self._slots = asyncio.Semaphore(ASKED_AT_ONCE)
        self._in_vain = 0
        """How often the gate has run in vain since it last led to a merge."""

    async def run(self, own: set[int]) -> None:
        """Merge all that is queued. Numbers of entries that others add are added to ``own``."""
        await in_thread(ProcessRegistry(paths.process_registry()).reap)  # a gate of a dead process
        try:
            for _ in range(RESTARTS):
                await in_thread(self._recover)
                await self._check_target()
                await self._merge_all(own)
                if await in_thread(self._finish):
                    break
            else:
                raise _moved_too_often(self._into)
        finally:
            for task in self._asked:
                task.cancel()
            await asyncio.gather(*self._asked, return_exceptions=True)
            if self._tip_branch not in ("", self._into):
                await asyncio.shield(in_thread(self._remove_unused))

    def _remove_unused(self) -> None:
        """Remove the branch for a target that is checked out, if nothing was merged."""
        with contextlib.suppress(StorageFailed):
            tip = tip_of(self._root, self._into)
            if tip is not None and tip_of(self._root, self._tip_branch) == tip:
                self._source.advance(self._tip_branch, None, tip)

    async def _merge_all(self, own: set[int]) -> None:
        while True:
            stored = await in_thread(self._read)
            own |= {entry.number for entry in stored.open}
            asked = {*self._asked.values()}
            entry = stored.next([each for each, other in self._behind.items() if other in asked])
            if entry is not None:
                await self._step(entry.number)
            elif self._asked:
                await asyncio.wait(self._asked, timeout=POLL, return_when=asyncio.FIRST_COMPLETED)
            else:
                return
            for task in [task for task in self._asked if task.done()]:
                del self._asked[task]
                task.result()

    def _read(self) -> MergeQueue:
        return self._store.change(lambda stored: stored)

    # Before and after: the target, and its checkout.

    def _recover(self) -> None:
        """Find out what has happened, from git, and queue again what has not."""
        stored = self._read()
        self._into = stored.into
        into, staging = stored.into, staging_of(stored.into)
        self._checkout = repository.checkouts(self._root).get(reference(into))
        old, new = tip_of(self._root, into), stored.updating
        # A commit of the user since then must stay: such a target is not moved.
        is_next = old is not None and new and repository.is_ancestor(self._root, old, new)
        if old is not None and is_next and self._checkout is not None:
            with contextlib.suppress(StorageFailed):
                worktree.update_checkout(self._checkout, reference(into), old, new)
        tip, staged = tip_of(self._root, into), tip_of(self._root, staging)
        if tip is None:
            raise ConfigError(f"the branch {into} was deleted")
        if staged is not None and not self._is_own(stored, staged, tip):
            raise ConfigError(
                f"the branch {staging} has commits that this merge queue has not merged",
                hint=f"It is where corral keeps what is merged until {into} is moved. Rename it:"
                f" git branch -m {staging} NAME",
            )
        if staged is not None and not repository.is_ancestor(self._root, tip, staged):
            self._settle(tip, tip)
            self._source.advance(staging, None, staged)  # the target has moved since
            staged = None
        self._tip_branch = into if self._checkout is None else staging
        if self._checkout is None:
            if staged is not None and self._source.advance(into, staged, tip):
                self._settle(staged, staged)
                self._source.advance(staging, None, staged)
        elif staged is None:
            worktree.check_branches(self._root)
            self._source.advance(staging, tip, None)
        now = tip_of(self._root, into) or tip
        self._settle(now, tip_of(self._root, self._tip_branch) or now)
        self._store.change(lambda stored: setattr(stored, "pending", ""))

    def _settle(self, target: str, end: str) -> bool:
        """Correct the entries by what git says: which are on the commit ``target``, which only on
        ``end``, and which on neither. Those are queued again. False: one of them was merged."""

        def is_on(commit: str, entry: MergeEntry) -> bool:
            return bool(entry.result) and repository.is_ancestor(self._root, entry.result, commit)

        def correct(stored: MergeQueue) -> bool:
            stored.updating, is_complete = "", True
            for entry in stored.entries:
                is_tried = bool(entry.base) and not self._has_moved(entry)
                is_tried = entry.staged or (entry.is_open and is_tried)
                if is_tried and is_on(end, entry):
                    if entry.is_open:
                        queue.end(entry, "merged")
                    entry.staged = not is_on(target, entry)
                elif entry.staged:
                    stored.put_last(entry)
                    entry.ended, entry.staged, entry.unreported = None, False, False
                    is_complete = False
                elif entry.is_open and entry.number not in self._asked.values():
                    entry.state = "queued"
            return is_complete

        return self._store.change(correct)

    def _has_moved(self, entry: MergeEntry) -> bool:
        """Whether a branch has another commit than the one that was tried."""
        return tip_of(self._root, entry.branch) not in (None, entry.commit)

    def _is_own(self, stored: MergeQueue, staged: str, tip: str) -> bool:
        """Whether a commit was made by this queue, or has nothing that the target does not have."""
        made = {entry.result for entry in stored.entries}
        return staged in made or repository.is_ancestor(self._root, staged, tip)

    async def _check_target(self) -> None:
        """Raises ``ConfigError`` if the gate fails on the target itself."""
        stored = await in_thread(self._read)
        tip = await in_thread(tip_of, self._root, self._tip_branch) or ""
        if stored.green == tip or not stored.open:
            return
        self._on_entry(MergeEntry(number=0, branch=stored.into, commit=tip, state="checking"))
        found = await self._run_gates(stored, tip)
        if found is not None:
            raise ConfigError(
                f"the gate fails on {stored.into} itself: {found.complaint}",
                hint="Repair it first, or choose another gate. Nothing was merged.",
            )
        await in_thread(self._set_green, tip)

    def _set_green(self, commit: str) -> None:
        def change(stored: MergeQueue) -> None:
            stored.green = commit

        self._store.change(change)

    def _finish(self) -> bool:
        """Move the checkout of the target to what is merged. False: the target was moved meanwhile,
        so that some branches must be merged again."""
        root, top, into = self._root, self._checkout, self._into
        if top is None:
            tip = tip_of(root, into)
            return tip is not None and self._settle(tip, tip)
        tip, staged = tip_of(root, into), tip_of(root, self._tip_branch)
        if tip is None or staged is None or not repository.is_ancestor(root, tip, staged):
            return False
        pending = ""
        if tip != staged:
            self._store.change(lambda stored: setattr(stored, "updating", staged))
            try:
                worktree.update_checkout(top, reference(into), tip, staged)
            except StorageFailed as error:
                pending = (
                    f"{into} is checked out, and was not moved: {error.message.rstrip('.')}."
                    f" To move it: git -C {top} merge --ff-only {self._tip_branch}"
                )

        self._store.change(lambda stored: setattr(stored, "pending", pending))
        self._settle(tip if pending else staged, staged)
        if not pending:
            self._source.advance(self._tip_branch, None, staged)
        return True

    # One entry.

    async def _step(self, number: int) -> None:
        """Merge an entry, or find out why it cannot be merged."""
        root = self._root
        entry = self._begin(number)
        if entry is None:
            return
        commit = await in_thread(tip_of, root, entry.branch)
        if commit is None:
            self._end(number, "failed", f"the branch was deleted; it was at {entry.commit}")
            return
        tip = await in_thread(tip_of, root, self._tip_branch)
        if tip is None:
            await in_thread(self._recover)  # raises if the target was deleted
            return
        try:
            done = await in_thread(rebase, root, tip, commit, entry.branch)
        except StorageFailed as error:
            self._end(number, "failed", error.message)
            return
        entry = self._set(
            number, commit=commit, base=tip, files=done.files, result=done.commit, reason=""
        )
        if done.is_empty:
            self._end(number, "merged", "nothing to merge: its changes are there already")
            return
        if not done.commit:
            if self._waits_behind(entry):
                return
            self._ask(number, conflict_text(done.files), done, tip)
            return
        await self._check_and_merge(entry, done, tip)

    async def _check_and_merge(self, entry: MergeEntry, done: Rebased, tip: str) -> None:
        """Run the gate on an entry that is on the tip, and move the tip to it."""
        root, number = self._root, entry.number
        stored = self._read()
        self._set(number, state="checking")
        found = await self._run_gates(stored, done.commit)
        if found is not None:
            self._set(number, output=found.output[-MAX_OUTPUT:])
            tree = await in_thread(repository.tree_of, root, done.commit)
            done = Rebased(commit=done.commit, tree=tree)
            self._ask(number, f"the gate failed: `{found.name}` {found.reason}", done, tip)
            return
        if await in_thread(self._is_checkout_elsewhere):
            self._try_again(number, self._into)
            await in_thread(self._recover)
            return
        if await in_thread(tip_of, root, entry.branch) != entry.commit:
            self._try_again(number, entry.branch)  # it was moved or deleted meanwhile
            return
        if not await in_thread(self._source.advance, self._tip_branch, done.commit, tip):
            self._try_again(number, self._into)  # it was moved meanwhile
            return
        self._in_vain = 0
        self._set_green(done.commit)
        self._set(number, output="", files=())
        self._end(number, "merged")

    def _try_again(self, number: int, moved: str) -> None:
        """Queue an entry again, because this branch was moved while the gate ran. Raises
        ``StorageFailed`` if that happens all the time."""
        self._set(number, state="queued")
        self._in_vain += 1
        if self._in_vain == RESTARTS:
            raise _moved_too_often(moved)

    def _is_checkout_elsewhere(self) -> bool:
        """Whether the target was checked out, or left, since ``_recover``."""
        return repository.checkouts(self._root).get(reference(self._into)) != self._checkout

    def _begin(self, number: int) -> MergeEntry | None:
        """None if the entry was removed from the queue meanwhile."""

        def change(stored: MergeQueue) -> MergeEntry | None:
            entry = stored.find(number)
            if entry.state != "queued":
                return None
            entry.state, entry.base = "rebasing", ""
            return entry

        entry = self._store.change(change)
        if entry is not None:
            self._on_entry(entry)
        return entry

    def _set(self, number: int, **fields: object) -> MergeEntry:
        """Store these fields of an entry."""

        def change(stored: MergeQueue) -> MergeEntry:
            entry = stored.find(number)
            for name, value in fields.items():
                setattr(entry, name, value)
            return entry

        entry = self._store.change(change)
        if "state" in fields:
            self._on_entry(entry)
        return entry

    def _end(self, number: int, state: queue.EndState, reason: str = "") -> None:
        def change(stored: MergeQueue) -> MergeEntry:
            entry = stored.find(number)
            if state == "merged" and self._has_moved(entry):
                stored.put_last(entry)  # with what it has got meanwhile
                return entry
            return queue.end(entry, state, reason)

        self._on_entry(self._store.change(change))

    async def _run_gates(self, stored: MergeQueue, commit: str) -> Evidence | None:
        """The evidence of the command that fails in a clean worktree; None if all succeed."""
        place = worktree.task_folder(self._root, "merge", stored.into, "gate")
        async with repair.clean_worktree(self._root, commit, place) as tree:
            for gate in stored.gates:
                check = command_succeeds(gate, timeout=stored.timeout, pass_env=stored.pass_env)
                if not fs.is_dir(tree.place):
                    why = "was not run: a gate before it removed the folder"
                    return Evidence(kind="command", name=gate, outcome="failed", reason=why)
                context = CheckContext(folder=tree.place, left=tree.place)
                if stored.sandbox:
                    from corral._sessions import sandbox

                    policy = Policy(write="allow", shell="allow")
                    run = RunOptions.build("corral", {"sandbox": stored.sandbox, "policy": policy})
                    box = sandbox.for_user_command(run, str(tree.place), ())
                    context = msgspec.structs.replace(context, sandbox=box)
                evidence = await check.run(context)
                if not evidence.passed:
                    return evidence
        return None

    # The owner of a branch.

    def _waits_behind(self, entry: MergeEntry) -> bool:
        """Whether the owner of another branch works on a conflict in the same files. Then this one
        is tried again after it: its owner would repair it in vain."""
        stored = self._read()
        for number in self._asked.values():
            other = stored.find(number)
            if {*other.files} & {*entry.files}:
                self._behind[entry.number] = number
                reason = f"{conflict_text(entry.files)}, as {other.branch}"
                self._set(entry.number, state="queued", reason=reason)
                return True
        return False

    def _ask(self, number: int, problem: str, done: Rebased, tip: str) -> None:
        """Let the owner of the branch repair it, or end the entry with the problem."""
        stored = self._read()
        entry = stored.find(number)
        owner = owners.find(self._root, entry.branch) or self._fallback
        refused = self._reason_not_to_ask(entry, owner, stored.rounds)
        if owner is None or refused:
            self._end(number, "failed", f"{problem}; {refused}" if refused else problem)
            return
        entry = self._set(number, state="owner", reason=problem, owner=owner.agent)
        work = self._let_repair(entry, owner, done, tip)
        self._asked[asyncio.create_task(work)] = number

    def _reason_not_to_ask(self, entry: MergeEntry, owner: BranchOwner | None, rounds: int) -> str:
        if not rounds:
            return "its session is not asked (rounds 0)"
        if owner is None:
            return "no session made this branch (--agent names one that is asked)"
        if entry.rounds >= rounds:
            return f"its session has not repaired it in {rounds} rounds"
        if reference(entry.branch) in repository.checkouts(self._root):
            return "its session is not asked, because the branch is checked out"
        return ""

    async def _let_repair(
        self, entry: MergeEntry, owner: BranchOwner, done: Rebased, tip: str
    ) -> None:
        try:
            async with self._slots:
                reason, cost = await repair.repair(
                    self._root, entry, owner, done.tree, tip, self._ask_owner, into=self._into
                )
            # Only now: a round that a crash interrupted is not the owner's failure.
            self._set(entry.number, cost_usd=entry.cost_usd + cost, rounds=entry.rounds + 1)
        except CorralError as error:
            reason = f"its session could not be asked: {error.message}"
        if reason:
            self._end(entry.number, "failed", f"{entry.reason}; {reason}")
            return
        commit = await in_thread(tip_of, self._root, entry.branch)

        def queue_again(stored: MergeQueue) -> MergeEntry:
            found = stored.find(entry.number)
            found.commit, found.result, found.reason = commit or found.commit, "", ""
            stored.put_first(found)
            return found

        self._on_entry(self._store.change(queue_again))
