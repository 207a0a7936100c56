"""The verification of one run: the state before it, the checks after it, and the receipt.

Theory of operation
-------------------
A ``Verification`` belongs to one run, which may be several turns (corrections of a typed answer,
another agent after a rate limit, the rounds of ``until``).

1. ``begin`` before the agent may change anything. It stores the files of the workspace. Further
   calls do nothing.
2. ``conclude`` when the last turn has ended as a success, and all processes of the agent have too.
   It stores the files again, makes the clean tree, runs the checks in it, one after the other, and
   returns the receipt. With ``put_back``, files that judge are put back in the workspace before.

The verdict is ``verified`` only if every check passed, every check that reads files had something
of the run to judge, and nothing that decides about the checks was changed: what was checked is
what is there. Whatever else happens
is a gap with its reason: a check that hangs, its program is missing, the folder is too large, a
disk is full. An error never becomes ``verified``, and never fails the run, whose work is done.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from corral._core import durations, stored_formats
from corral._metering.budget import Budget
from corral._system import clock, fs, paths
from corral._system.clock import Stopwatch
from corral._system.folder_stamps import FolderStamp, take_stamp
from corral._system.git import command
from corral._system.git.scan import TooManyFiles
from corral._system.sandbox.sandbox import Sandbox
from corral._system.threads import in_thread
from corral._verification.check import (
    Check,
    CheckContext,
    FilesCheck,
    FunctionCheck,
    ResultFunction,
)
from corral._verification.clean_tree import CleanTree
from corral._verification.command_check import CommandCheck, command_succeeds
from corral._verification.run_trees import RunTrees, TreeChoice, WorkTrees, receipt_files
from corral.errors import ConfigError, CorralError
from corral.events import FileKind
from corral.receipt import CleanTreeFacts, Evidence, Receipt, RunFacts, Scope, VerifyFrom
from corral.result import Result
from corral.values import JsonObject, int_or_none, is_sequence, printable_path
from corral.version import __version__

TIMEOUT = 600.0
"""Seconds that one check may take, if neither it nor the run has a limit."""


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is verified with. Made by ``verify_options``."""

    checks: tuple[Check, ...]
    verify_from: VerifyFrom = "before"
    work: tuple[str, ...] = ()
    judge_files: tuple[str, ...] = ()
    put_back: bool = False
    verify_with: tuple[str, ...] = ()
    timeout: float = TIMEOUT
    commands: tuple[str, ...] = ()
    """Those of checks that are no ``CommandCheck``."""
    provides_all: bool = False
    """As in ``TreeChoice``."""
    writable: tuple[str, ...] = ()
    """Folders that the agent may write besides the working directory."""

    @property
    def runs_commands(self) -> bool:
        return any(check.kind in ("command", "scenarios") for check in self.checks)

    @property
    def reads_files(self) -> bool:
        return any(check.reads_files for check in self.checks)

    @property
    def scope(self) -> Scope | None:
        """Which rule says what judges."""
        if self.verify_from == "after" or not self.reads_files:
            return None
        return "work" if self.work else "names"

    @property
    def choice(self) -> TreeChoice:
        return TreeChoice(
            verify_from=self.verify_from,
            work=self.work,
            judge_files=self.judge_files,
            verify_with=self.verify_with,
            commands=(
                *self.commands,
                *(each.command for each in self.checks if isinstance(each, CommandCheck)),
            ),
            provides_all=self.provides_all,
        )


def make_checks(given: Sequence[object], timeout: float = TIMEOUT) -> tuple[Check, ...]:
    """The checks of the option ``verify``: texts are commands for the shell, which may take
    ``timeout`` seconds. Raises ``ConfigError``."""
    checks: list[Check] = []
    for each in given:
        match each:
            case str():
                checks.append(command_succeeds(each, timeout=timeout))
            case Check():
                checks.append(each)
            case _ if is_sequence(each) and all(isinstance(word, str) for word in each):
                checks.append(command_succeeds([str(word) for word in each], timeout=timeout))
            case _ if callable(each) and not isinstance(each, type):
                checks.append(FunctionCheck(cast("ResultFunction", each)))
            case _:
                raise ConfigError(
                    f"verify must be commands or checks, got: {type(each).__name__}",
                    hint="Give a command as text, files_exist(…), command_succeeds(…), a function"
                    " of the result, or a list of these.",
                )
    # Scenarios come last: nothing of them is left where another check runs.
    checks.sort(key=lambda each: each.kind == "scenarios")
    if any(each.reads_files for each in checks):
        command.require("verify")
    return tuple(checks)


class CheckSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What the commands of checks get."""

    sandbox: Sandbox | None = None
    budget: Budget | None = None
    """What the model calls of a check may use."""
    env: Mapping[str, str] = {}
    pass_env: tuple[str, ...] = ()
    secrets: Mapping[str, str] = {}


class Verification:
    """Of one run in the folder ``cwd``. ``own`` is a folder of corral's own, which stays as long as
    the receipt is to be repeated."""

    def __init__(self, options: VerifyOptions, cwd: str, own: Path) -> None:
        self.options = options
        self._cwd = cwd
        self._own = own
        self._trees: RunTrees | None = None
        self.problem: str = ""
        """Why the files could not be stored."""
        self._files: dict[str, FolderStamp | None] = {}
        self._programs: dict[str, FolderStamp | None] = {}
        self._writable: dict[str, FolderStamp | None] = {}
        self._put_back = CleanTreeFacts(tree="")
        self.is_begun: bool = False

    async def begin(self) -> None:
        """Store the state before the run. What goes wrong becomes a gap."""
        if self.is_begun:
            return
        self.is_begun = True
        if self.options.reads_files:
            await in_thread(self._begin)

    def _begin(self) -> None:
        self._files = self._stamps_of_files()
        self._programs = {path: take_stamp(path) for path in self._found_programs()}
        if self.options.runs_commands:
            self._writable = {path: take_stamp(path) for path in self.options.writable}
        try:
            trees = RunTrees(self._cwd, paths.make_dir(self._own), self.options.choice)
            trees.begin()
            self._trees = trees
        except (CorralError, OSError, TooManyFiles) as error:
            self.problem = f"the files before the run could not be stored: {error}"

    def _stamps_of_files(self) -> dict[str, FolderStamp | None]:
        named = (path for each in self.options.checks if isinstance(each, FilesCheck)
                 for path in each.paths)  # fmt: skip
        return {path: take_stamp(os.path.join(self._cwd, path)) for path in named}

    def _found_programs(self) -> list[str]:
        """The programs on PATH that the commands name."""
        words = {word for each in self.options.choice.commands for word in each.split()[:12]}
        found = (fs.find_program(word) for word in sorted(words) if "/" not in word)
        return [path for path in found if path is not None]

    async def conclude(
        self, result: Result, run: RunFacts, setting: CheckSetting, schema: Evidence | None = None
    ) -> Receipt:
        """Run the checks. ``schema`` is the evidence that the typed answer fits."""
        trees: WorkTrees | None = None
        if self.options.reads_files and not self.problem:
            try:
                trees = await in_thread(self._end)
            except (CorralError, OSError, TooManyFiles) as error:
                self.problem = f"the files that the run left could not be stored: {error}"
        evidence, gaps = await self.run_checks(trees, result, setting)
        if schema is not None:
            evidence.append(schema)
        return self._receipt(trees, evidence, gaps, run)

    async def restore(self, tree: str) -> frozenset[str]:
        """Put the workspace back to a state that a receipt names. Returns the paths of the files
        that differed, from the working directory. Raises ``StorageFailed``."""
        if self._trees is None:
            raise RuntimeError("there is no stored state")
        return await in_thread(self._trees.restore, tree)

    def put_back(self) -> None:
        """With the option ``put_back``, put the files that judge back in the workspace. Blocking.
        Raises ``StorageFailed``."""
        if not self.options.put_back or self._trees is None:
            return
        known, found = self._put_back, self._trees.put_back()
        restored = {*known.restored, *found.restored}
        left_out = dict.fromkeys((*known.left_out, *found.left_out))
        self._put_back = CleanTreeFacts(
            tree=found.tree, restored=tuple(sorted(restored)), left_out=tuple(left_out)
        )

    def _end(self) -> WorkTrees:
        if self._trees is None:
            raise RuntimeError("conclude comes after begin")
        self.put_back()
        trees = self._trees.end()
        if not self.options.put_back:
            return trees
        known = self._put_back
        left_out = tuple(dict.fromkeys((*known.left_out, *trees.clean.left_out)))
        clean = msgspec.structs.replace(trees.clean, restored=known.restored, left_out=left_out)
        return msgspec.structs.replace(trees, clean=clean)

    async def run_checks(
        self, trees: WorkTrees | None, result: Result | None, setting: CheckSetting
    ) -> tuple[list[Evidence], list[str]]:
        """The evidence of all checks, and what else is missing."""
        context = CheckContext(
            folder=Path(self._cwd),
            left=Path(self._cwd),
            result=result,
            env=setting.env,
            pass_env=setting.pass_env,
            secrets=setting.secrets,
            budget=setting.budget,
            timeout=self.options.timeout,
        )
        if trees is None:
            return [await self._run_check(check, context, self.problem)
                    for check in self.options.checks], []  # fmt: skip
        clean = CleanTree(trees, setting.sandbox)
        try:
            await in_thread(clean.__enter__)
        except (CorralError, OSError) as error:
            problem = f"the clean tree could not be made: {error}"
            return [await self._run_check(check, context, problem)
                    for check in self.options.checks], []  # fmt: skip
        try:
            context = msgspec.structs.replace(
                context, changed=self._changed(trees), before=self._before(trees)
            )
            return await self._run_in_tree(clean, clean.context(context), trees)
        finally:
            await asyncio.shield(in_thread(clean.__exit__))

    async def _run_in_tree(
        self, clean: CleanTree, context: CheckContext, trees: WorkTrees
    ) -> tuple[list[Evidence], list[str]]:
        evidence: list[Evidence] = []
        gaps = [*trees.gaps, *self._of_changed_judges(trees)]
        gaps += await in_thread(self._of_environment, context, trees)
        problem = ""
        for check in self.options.checks:
            if check.kind == "scenarios":
                found = await self._run_scenarios(clean, check, context)
            else:
                found = await self._run_check(check, context, problem)
            if found.details.get("skipped") and found.passed:
                found = await self._compare_skipped(check, context, clean, found)
            if check.kind == "command" and found.passed and trees.unchecked and not gaps:
                found = await self._check_as_left(check, context, clean, found)
            if check.reads_files and not problem:
                try:
                    changed = await in_thread(clean.repair)
                except (CorralError, OSError, TooManyFiles) as error:
                    problem = f"the clean tree could not be put back after {check.name}: {error}"
                    gaps.append(problem)
                    changed = ()
                if changed:
                    named: JsonObject = {"changed_files": [*changed[:100]]}
                    found = msgspec.structs.replace(found, details={**found.details, **named})
            if check.reads_files and trees.changed_nothing and found.passed_before is None:
                # It ran on the very files from before the run.
                found = msgspec.structs.replace(found, passed_before=found.passed)
            evidence.append(found)
        for name in await in_thread(clean.changed_dependencies):
            gaps.append(f"a check changed {name}, which it was only to read")
        for path in await in_thread(self._changed_programs):
            gaps.append(f"the program {path} changed during the run")
        return evidence, gaps

    async def _run_scenarios(
        self, clean: CleanTree, check: Check, context: CheckContext
    ) -> Evidence:
        """In a tree of the files that the agent left: what judges them is not among them. Each
        scenario has its own limit."""
        from corral._verification.scenarios.scenario_check import ScenarioCheck

        if isinstance(check, ScenarioCheck):
            context = msgspec.structs.replace(context, timeout=check.longest)
        return await self._run_in(clean.as_left(), check, context)

    def _of_changed_judges(self, trees: WorkTrees) -> list[str]:
        """What was checked is not what is there, one sentence for each file."""
        names = trees.clean.restored
        is_checked = any(check.kind == "command" for check in self.options.checks)
        if self.options.put_back or not is_checked or not names:
            return []
        gaps = [f"{name} was changed; {FROM_BEFORE}" for name in names[:MOST_NAMES]]
        if more := len(names) - MOST_NAMES:
            gaps += [f"{more:,} more files were changed; {FROM_BEFORE}"] if more > 0 else []
        return gaps

    async def _check_as_left(
        self, check: Check, context: CheckContext, clean: CleanTree, found: Evidence
    ) -> Evidence:
        """The evidence of a check that did not see what the run has added to the files that judge.
        It must pass with these files, too: they are there."""
        left = await self._run_in(clean.as_left(), check, context)
        if left.passed:
            return found
        reason = f"it passed only without the files that the run added: {left.reason}"
        return msgspec.structs.replace(found, outcome="failed", reason=reason, output=left.output)

    async def _run_in(self, clean: CleanTree, check: Check, context: CheckContext) -> Evidence:
        """The evidence of a check in a clean tree of its own."""
        try:
            await in_thread(clean.__enter__)
            return await self._run_check(check, clean.context(context))
        except (CorralError, OSError) as error:
            reason = f"the clean tree could not be made: {error}"
            return Evidence(kind=check.kind, name=check.name, outcome="missing", reason=reason)
        finally:
            await asyncio.shield(in_thread(clean.__exit__))

    async def _compare_skipped(
        self, check: Check, context: CheckContext, clean: CleanTree, found: Evidence
    ) -> Evidence:
        """The evidence of a check that skipped tests, which is missing if it skips more than before
        the run: the work may skip what it does not pass."""
        earlier = await self._run_in(clean.of_before(), check, context)
        if earlier.outcome == "missing" and "skipped" not in earlier.details:
            reason = f"the tests that were skipped before the run are not known: {earlier.reason}"
            return msgspec.structs.replace(found, outcome="missing", reason=reason)
        now = int_or_none(found.details.get("skipped")) or 0
        then = int_or_none(earlier.details.get("skipped")) or 0
        details: JsonObject = {**found.details, "skipped_before": then}
        if now <= then:
            return msgspec.structs.replace(found, details=details)
        reason = f"{now} tests are skipped, and {then} were before the run"
        return msgspec.structs.replace(found, outcome="missing", reason=reason, details=details)

    def _of_environment(self, context: CheckContext, trees: WorkTrees) -> list[str]:
        """What commands may have used besides the files of the clean tree, and what they could not
        use, if the run changed it. One sentence for each."""
        if not self.options.runs_commands:
            return []
        gaps = [] if context.places is None else context.places.gaps()
        for each in trees.withheld:
            gaps.append(f"the checks ran without the dependencies in {each.path}: {each.reason}")
        for path in trees.changed_environments():
            gaps.append(f"the run changed the environment of programs in {path}")
        for path, old in self._writable.items():
            new = take_stamp(path)
            if new != old or (new is None and fs.exists(path)):
                name = printable_path(path)
                gaps.append(f"the run may write {name}, and a check may have read what it changed")
        return gaps

    def _changed_programs(self) -> list[str]:
        return [path for path, old in self._programs.items() if take_stamp(path) != old]

    async def _run_check(self, check: Check, context: CheckContext, problem: str = "") -> Evidence:
        """The evidence of a check. ``problem``: why none that reads files can be made."""
        if problem and check.reads_files:
            return Evidence(kind=check.kind, name=check.name, outcome="missing", reason=problem)
        stopwatch = Stopwatch()
        limit = asyncio.timeout(context.timeout + GRACE)
        try:
            async with limit:
                found = await check.run(context)
        except (Exception, SystemExit) as error:
            if isinstance(error, TimeoutError) and limit.expired():
                reason = f"did not end within {durations.text(context.timeout)}"
                return Evidence(kind=check.kind, name=check.name, outcome="failed", reason=reason)
            # A check may be a function of the caller: whatever it raises, it has not passed.
            failed = isinstance(error, AssertionError)
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, CorralError):
                reason = str(error)
            return Evidence(
                kind=check.kind,
                name=check.name,
                outcome="failed" if failed else "missing",
                reason=reason,
                seconds=round(stopwatch.seconds, 3),
            )
        if not found.seconds:
            found = msgspec.structs.replace(found, seconds=round(stopwatch.seconds, 3))
        return found

    def _changed(self, trees: WorkTrees) -> dict[str, FileKind]:
        """What the run changed, from the working directory; also files that are checked by name
        and that no tree has."""
        changed = trees.changed_files()
        for path, new in self._stamps_of_files().items():
            if self._files.get(path) != new:
                created = self._files.get(path) is None
                changed.setdefault(os.path.normpath(path), "created" if created else "modified")
        return changed

    def _before(self, trees: WorkTrees) -> frozenset[str]:
        existed = {os.path.normpath(path) for path, stamp in self._files.items() if stamp}
        return trees.before_files | existed

    def unverified(self, run: RunFacts, reason: str) -> Receipt:
        """The receipt of a run that was not checked."""
        receipt = self._receipt(None, [], [], run)
        return msgspec.structs.replace(
            receipt, verdict="unverified", gaps=(f"nothing was checked: {reason}",)
        )

    def _receipt(
        self, trees: WorkTrees | None, evidence: list[Evidence], gaps: list[str], run: RunFacts
    ) -> Receipt:
        found = self._trees
        gaps = [*find_gaps(evidence), *gaps]
        return Receipt(
            format=stored_formats.RECEIPT,
            verdict="gaps" if gaps else "verified",
            gaps=tuple(gaps),
            created=round(clock.now(), 3),
            corral=__version__,
            run=run,
            folder="repository" if found is not None and found.is_repository else "folder",
            inside="" if found is None else found.inside,
            verify_from=self.options.verify_from,
            scope=self.options.scope,
            work=self.options.work,
            judge_files=self.options.judge_files,
            before=None if trees is None else trees.before,
            after=None if trees is None else trees.after,
            changed=() if trees is None else receipt_files(trees.changes),
            clean=None if trees is None else trees.clean,
            checks=tuple({"kind": each.kind, **each.describe()} for each in self.options.checks),
            evidence=tuple(evidence),
        )


FROM_BEFORE = "the check ran with the version from before the run"
MOST_NAMES = 20
"""Files that are named in gaps."""
GRACE = 10.0
"""Seconds, beyond its limit, in which a check must end by itself."""


def find_gaps(evidence: Sequence[Evidence]) -> list[str]:
    """What the evidence does not show, one sentence each."""
    gaps: list[str] = []
    for each in evidence:
        if not each.passed:
            what = "could not be made" if each.outcome == "missing" else "did not pass"
            gaps.append(f"{each.name}: the check {what}: {each.reason or 'no reason is known'}")
        elif each.passed_before:
            gaps.append(
                f"{each.name}: passed before the run too, and the run changed nothing that it"
                " judges"
            )
    return gaps or ([] if evidence else ["there is no evidence"])
