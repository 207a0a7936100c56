"""The plan of a comparison: everything that is compared, checked before anything is spent.

The plan is stored when the comparison is started, and never changes: a comparison that is resumed
runs what was planned, whatever has happened to the files of its tasks, to ``HEAD`` and to its
command line since.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import msgspec

from corral._agents import registry
from corral._comparison import store
from corral._comparison.tasks import CompareTask, kind_of
from corral._core import durations, stored_formats
from corral._core.stored_formats import COMPARISON
from corral._engine.batch.spec import AgentChoice
from corral._engine.run_options import as_json
from corral._pipelines.attempts import TIMEOUT, AttemptTask, Verifier
from corral._pipelines.execution.node_options import TIMEOUT as AGENT_TIMEOUT
from corral._pipelines.execution.verifier import digest_of
from corral._sessions.structured_output import answer_schema
from corral._system import clock, config, fs, paths
from corral._system.environment import is_scripted
from corral._system.git import command, repository, source_repository, worktree
from corral._system.git.worktree import name_part, repository_root
from corral.errors import ConfigError, CorralError, StorageFailed, UnknownAgent
from corral.options import check_scope
from corral.receipt import VerifyFrom
from corral.run_kwargs import RunKwargs
from corral.values import Json, decode_as, is_sequence

MOST = 100_000
"""Attempts of a comparison."""
WRITING = {"write", "shell"}
"""Capabilities with which agents change files."""
READ_ONLY = (
    "the agents may not change files: a verifier finds what is in the repository already"
    " (allow it with --approve edits or --approve all)"
)
SHELL_BUILTINS = ("test", "true", "false", "exit", ":", "[", "cd", "set", "if", "for", "while",
                  "case", "export", ".", "eval", "exec", "command", "until")  # fmt: skip
SHELL_WORDS = frozenset("!(){}|&;<>$`\"'*?[]#~=%\n")
"""Characters with which the first word of a command is more than the name of a program."""


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    prompt: str
    repository: str = ""
    commit: str = ""
    inside: str = ""
    folder: str = ""
    """Where the files come from: what a patch is applied to."""
    timeout: float | None = None
    verifier: Verifier = Verifier()


class SkippedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A task that cannot be run on this machine."""

    task: str
    reason: str


class ComparisonPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    version: int = 0
    """Its format, set when it is saved (``stored_formats.COMPARISON``)."""
    name: str
    title: str
    created: float
    agents: tuple[AgentChoice, ...]
    tasks: tuple[PlannedTask, ...]
    repeat: int = 1
    skipped: tuple[SkippedRow, ...] = ()
    cwd: str
    options: dict[str, Json] = {}
    """Those of ``corral.run``, for every attempt."""
    schema: dict[str, Json] | None = None
    """The JSON Schema that answers must fit."""
    concurrency: int = 4
    attempts: int = 3
    scripted: bool = False
    """Whether a scripted model answers, set when it is saved."""
    fingerprint: str = ""
    """Of the call: the same name with another call is a mistake."""
    notes: tuple[str, ...] = ()
    """What a person should know before the results are read."""

    @property
    def total(self) -> int:
        return len(self.tasks) * len(self.agents) * self.repeat

    def attempt_tasks(self) -> list[AttemptTask]:
        """All attempts. Every agent tries every task once before one is tried again: if the
        comparison is stopped, what is done is balanced."""
        folder = store.folder_of(self.name) / "attempts"
        return [
            AttemptTask(
                id=(name := f"{task.id}/{agent.name}" + (f"#{n}" if self.repeat > 1 else "")),
                task=task.id,
                agent=agent.name,
                backend=agent.backend,
                model=agent.model,
                repeat=n,
                prompt=task.prompt,
                folder=str(folder / name_part(name)),
                repository=task.repository,
                commit=task.commit,
                inside=task.inside,
                timeout=task.timeout,
                verifier=task.verifier,
            )
            for n in range(1, self.repeat + 1)
            for task in self.tasks
            for agent in self.agents
        ]


class CompareOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of ``corral.compare``; they are documented there."""

    agents: tuple[str, ...]
    repeat: int = 1
    verify: str | None = None
    tests: str | os.PathLike[str] | None = None
    verify_timeout: float | None = None
    verify_from: VerifyFrom | None = None
    verify_with: tuple[str, ...] = ()
    work: tuple[str, ...] = ()
    judge_files: tuple[str, ...] = ()
    put_back: bool = False
    scenarios: str | None = None
    scenario_threshold: float | None = None
    judge: str | None = None
    include_uncommitted: bool = False
    trust_tasks: bool = False
    name: str | None = None
    concurrency: int = 4
    attempts: int = 3
    output: object = None
    run: RunKwargs = msgspec.field(default_factory=RunKwargs)


JUDGING = ("verify", "verify_timeout", "verify_from", "verify_with", "work", "judge_files",
           "put_back", "scenarios", "scenario_threshold", "judge")  # fmt: skip
"""Options of a run with which the comparison judges the attempts."""


def judging_options(run: RunKwargs) -> dict[str, Any]:
    """Remove the options that judge from those of the attempts; returns them. Raises
    ``ConfigError``."""
    options = cast("dict[str, Any]", run)
    given = {name: options.pop(name) for name in JUDGING if name in options}
    given = {name: value for name, value in given.items() if value is not None}
    if "verify" in given:
        verify = given["verify"]
        commands = [*verify] if is_sequence(verify) else [verify]
        if not all(isinstance(command, str) for command in commands):
            raise ConfigError("a comparison can be verified with commands only")
        several = len(commands) > 1
        given["verify"] = " && ".join(f"({each}\n)" if several else each for each in commands)
    if "verify_timeout" in given:
        given["verify_timeout"] = durations.seconds(given["verify_timeout"])
    for name in ("verify_with", "work", "judge_files"):
        if name in given:
            given[name] = tuple(given[name])
    if "scenarios" in given:
        given["scenarios"] = os.fspath(given["scenarios"])
    return given


# Checks.


def choose_agents(names: Iterable[str]) -> tuple[AgentChoice, ...]:
    """Raises ``ConfigError``."""
    chosen = tuple(_choose(name.strip()) for name in names if name.strip())
    if not chosen:
        raise ConfigError("compare needs agents", hint="Name them: --agent AGENT,AGENT")
    for each in chosen:
        same = [
            one.name for one in chosen if (one.backend, one.model) == (each.backend, each.model)
        ]
        if len(same) > 1:
            raise ConfigError(
                f"compare needs different agents, got {' and '.join(same)}",
                hint="For several attempts by each agent: --repeat N."
                " The same agent with two models: AGENT@MODEL.",
            )
    return chosen


def _choose(name: str) -> AgentChoice:
    """``AGENT``, ``vendor:model`` or ``AGENT@MODEL``. Raises ``ConfigError``."""
    if registry.names_a_model(registry.full_name(name)):
        return AgentChoice(name=name, backend=name)
    backend, at, model = name.rpartition("@")
    found = None
    if at and backend and model and not name.startswith("acp:"):
        with suppress(UnknownAgent):
            found = config.find_agent(backend)
    if found is None:
        backend, model, found = name, "", config.find_agent(name)
    # The agent's own name for a short one, so that the same agent is noticed. A command stays.
    is_name = len(backend.split()) == 1 and "/" not in backend
    return AgentChoice(name=name, backend=found.name if is_name else backend, model=model)


def fingerprint(tasks: Sequence[CompareTask], options: CompareOptions) -> str:
    """A digest of what is compared: equal for the same call. Limits on the comparison itself, such
    as its budget, are not part of it."""
    run = {key: each for key, each in options.run.items() if key not in ("max_cost", "cwd")}
    tests = None if options.tests is None else os.fspath(options.tests)
    given = (options.agents, options.repeat, options.verify, tests, options.verify_timeout)
    judged = (options.verify_from, options.verify_with, options.judge_files, options.scenarios)
    scope = (options.work, options.put_back)
    held_out = (options.scenario_threshold, options.judge)
    values = [tasks, given, judged, scope, held_out, run]
    data = msgspec.json.encode(values, enc_hook=str, order="sorted")
    return blake2b(data, digest_size=8).hexdigest()


def check_command(command: str, cwd: Path) -> None:
    """Raises ``ConfigError`` if the program of a verifier does not exist."""
    if not command.strip():
        raise ConfigError("the verifier is an empty command")
    first = first_word(command)
    if first is None or "=" in first:
        return
    is_there = (
        (cwd / first).exists() if "/" in first else shutil.which(first) or first in SHELL_BUILTINS
    )
    if not is_there:
        raise ConfigError(
            f"the verifier {first!r} does not exist",
            hint="It is a shell command, run in the agent's working directory.",
        )


def first_word(command: str) -> str | None:
    """The program of a simple command; None if only a shell knows."""
    try:
        word = shlex.split(command)[0]
    except (ValueError, IndexError):
        return None
    return None if SHELL_WORDS & {*word} else word


def check_scenarios(options: CompareOptions, cwd: Path) -> str:
    """The folder of the held-out scenarios. Raises ``ConfigError`` and ``MissingKey``."""
    from corral._verification.scenarios.scenario_check import THRESHOLD, scenarios

    threshold = options.scenario_threshold
    check = scenarios(
        cwd / (options.scenarios or ""),
        threshold=THRESHOLD if threshold is None else threshold,
        judge=options.judge,
    )
    check.check_judge()
    return check.source.path


# Building.


def build(tasks: Sequence[CompareTask], title: str, options: CompareOptions) -> ComparisonPlan:
    """Check everything and make the plan. Nothing is started; for folders that are in no repository
    a copy is made. Raises ``ConfigError``."""
    for key in ("repeat", "concurrency", "attempts"):
        if (number := getattr(options, key)) < 1:
            raise ConfigError(f"{key} must be at least 1, got: {number}")
    limits = {"verify_timeout": options.verify_timeout, "max_cost": options.run.get("max_cost")}
    for key, limit in limits.items():
        if limit is not None and not limit > 0:
            raise ConfigError(f"{key} must be more than 0, got: {limit}")
    if options.verify_from not in (None, "before", "after"):
        raise ConfigError(f"verify_from must be before or after, got: {options.verify_from!r}")
    check_scope(options.verify_from or "before", options.work, put_back=options.put_back)
    agents = choose_agents(options.agents)
    run = options.run.copy()
    cwd = Path(run.pop("cwd", None) or ".").absolute()
    if not cwd.is_dir():
        raise ConfigError(f"the working directory {str(cwd)!r} is not a folder")
    if options.scenarios is not None:
        folder = check_scenarios(options, cwd)
        options = msgspec.structs.replace(options, scenarios=folder)
        hidden = {"hidden": [*(run.get("hidden") or ()), folder]}
        run.update(cast("RunKwargs", hidden))
        options = msgspec.structs.replace(options, run={**run, "cwd": str(cwd)})
    verified = [_with_defaults(task, options, cwd) for task in tasks]
    name = options.name or f"compare-{secrets.token_hex(3)}"
    store.check_name(name)
    builder = _Builder(name, cwd, options, agents)
    verified = [msgspec.structs.replace(task, skipped=_no_sandbox(task)) for task in verified]
    runnable = [task for task in verified if not task.skipped]
    planned = tuple(builder.plan(task) for task in runnable)
    if not planned:
        first = next(task for task in verified)
        raise ConfigError(f"no task can be run here: {first.id}: {first.skipped}")
    plan = ComparisonPlan(
        name=name,
        title=title,
        created=clock.now(),
        agents=agents,
        tasks=planned,
        repeat=options.repeat,
        skipped=tuple(
            SkippedRow(task=task.id, reason=task.skipped) for task in verified if task.skipped
        ),
        cwd=str(cwd),
        options=as_json(run),
        schema=None if options.output is None else answer_schema(options.output).json,
        concurrency=options.concurrency,
        attempts=options.attempts,
        fingerprint=fingerprint(tasks, options),
        notes=builder.all_notes(),
    )
    if plan.total > MOST:
        raise ConfigError(f"{plan.total:,} attempts are more than {MOST:,}")
    return plan


def _with_defaults(task: CompareTask, options: CompareOptions, cwd: Path) -> CompareTask:
    """The task with the verifier and the limits of the comparison. Raises ``ConfigError``."""
    verify, tests = task.verify or options.verify or "", task.tests
    if not tests and options.tests is not None:
        tests = str(cwd / options.tests)
        if not os.path.lexists(tests):
            raise ConfigError(f"there are no tests at {tests}")
    if tests and not verify:
        script = Path(tests, "test.sh")
        if not script.is_file():
            raise ConfigError(
                f"task {task.id!r} has tests and no command that runs them",
                hint="Give it with --verify, or put a test.sh into the tests.",
            )
        verify = f"sh {shlex.quote(str(Path(_target(tests, cwd), 'test.sh')))}"
    elif verify:
        check_command(verify, cwd if not task.folder else Path(task.folder))
    return msgspec.structs.replace(task, verify=verify, tests=tests)


def _no_sandbox(task: CompareTask) -> str:
    """Why the commands of a task cannot run on this machine; empty if they can."""
    from corral._system.sandbox.sandbox import find_support

    if not task.is_confined or (support := find_support()).is_complete:
        return ""
    return (
        f"its commands need a sandbox, and this machine has none: {support.reason}"
        " (--trust-tasks runs them without, if the tasks are yours)"
    )


def _target(tests: str, cwd: Path) -> str:
    """Where tests are copied to in the workspace: to the place that they have in the working
    directory, or to their name if they are elsewhere."""
    with suppress(ValueError):
        inside = Path(os.path.abspath(tests)).relative_to(os.path.abspath(cwd))
        if inside.parts:
            return str(inside)
    return Path(os.path.abspath(tests)).name


class _Builder:
    """Plans the tasks of one comparison."""

    def __init__(
        self, name: str, cwd: Path, options: CompareOptions, agents: Sequence[AgentChoice]
    ) -> None:
        self._name, self._cwd, self._options, self._agents = name, cwd, options, agents
        self._sources: dict[str, tuple[Path, str, str]] = {}
        # Make every check of a real run, for each agent. Returns whether one may change files, so
        # that each attempt needs its own.
        from corral._sessions.credentials import check_model_key
        from corral._sessions.prepare import prepare

        allowed: set[str] = set()
        for agent in self._agents:
            model = {"model": agent.model} if agent.model else {}
            # The budget is that of the comparison.
            run = {key: each for key, each in self._options.run.items() if key != "max_cost"}
            prepared = prepare(agent.backend, {**run, **model})
            check_model_key(prepared.agent, prepared.run)
            report = prepared.compiled.report
            allowed |= {row.capability for row in report if not row.is_denied}
        self._writes = bool(allowed & WRITING)
        self.notes: list[str] = []
        self._shortened: dict[str, list[str]] = {}

    def all_notes(self) -> tuple[str, ...]:
        shortened = (
            f"{len(tasks)} tasks ask for more time than {what}: {', '.join(tasks[:5])}"
            for what, tasks in self._shortened.items()
        )
        return (*self.notes, *shortened)

    def _limit(
        self, task: CompareTask, wanted: float | None, most: float, flag: str
    ) -> float | None:
        """The time that a task gets. The limit of a task that may be a stranger's can shorten that
        of comparisons, not exceed it."""
        if wanted is None or not task.is_confined or wanted <= most:
            return wanted
        what = f"{durations.text(most)}, which they get ({flag} gives more)"
        self._shortened.setdefault(what, []).append(task.id)
        return most

    def plan(self, task: CompareTask) -> PlannedTask:
        verifier = self._verifier(task)
        source = (Path(), "", "")
        if verifier.is_given or task.folder or self._writes:
            key = task.folder or str(self._cwd)
            if key not in self._sources:
                command.require("a comparison in which agents change files")
                self._sources[key] = self._copy(key) if task.folder else self._from_repository()
            source = self._sources[key]
            self._check_hidden(task, *source)
            if verifier.is_given and not self._writes and READ_ONLY not in self.notes:
                self.notes.append(READ_ONLY)
        root, commit, inside = source
        limit = self._options.run.get("timeout")
        return PlannedTask(
            id=task.id,
            prompt=task.prompt,
            repository=str(root) if commit else "",
            commit=commit,
            inside=inside,
            folder=task.folder or str(self._cwd),
            timeout=None
            if limit is not None
            else self._limit(task, task.timeout, AGENT_TIMEOUT, "--timeout"),
            verifier=verifier,
        )

    def _verifier(self, task: CompareTask) -> Verifier:
        limit = self._options.verify_timeout or self._limit(
            task, task.verify_timeout, TIMEOUT, "--verify-timeout"
        )
        tests, target = task.tests, ""
        # Files of the agent judge nothing if the task brings its own after the run.
        is_after = bool(tests) and not (self._options.work or self._options.put_back)
        if not tests and (script := self._script(task)):
            # A script of the user is the verifier: it runs as it is now, whatever agents do to it.
            tests, target = str(Path(task.folder or self._cwd, script)), script
        elif tests:
            target = _target(tests, self._cwd)
        try:
            digest = digest_of(Path(tests)) if tests else ""
        except OSError as error:
            raise ConfigError(f"{tests} cannot be read: {error}") from error
        return Verifier(
            command=task.verify,
            tests=tests,
            target=target,
            digest=digest,
            is_confined=task.is_confined,
            timeout=limit or TIMEOUT,
            verify_from=self._options.verify_from or ("after" if is_after else "before"),
            work=self._options.work,
            put_back=self._options.put_back,
            verify_with=self._options.verify_with,
            judge_files=self._options.judge_files,
            scenarios=self._options.scenarios or "",
            threshold=self._options.scenario_threshold or 0.9,
            judge=self._options.judge or "",
        )

    def _script(self, task: CompareTask) -> str:
        """The path of the script that is the command's program, in the files of the task; empty if
        it is another program."""
        program = first_word(task.verify)
        if program is None or "/" not in program or os.path.isabs(program):
            return ""
        path, folder = os.path.normpath(program), Path(task.folder or self._cwd)
        if path.split("/")[0] == ".." or not (folder / path).is_file():
            return ""
        if task.is_confined and task.folder:
            kind_of(task.id, folder, path)
        return path

    def _from_repository(self) -> tuple[Path, str, str]:
        """The user's own repository at ``HEAD``; a copy of the folder if there is none."""
        try:
            root, head = repository_root(self._cwd)
        except ConfigError:
            with suppress(StorageFailed):
                if command.is_installed() and repository.locate(self._cwd).top is not None:
                    raise  # without a commit
            return self._copy(str(self._cwd))
        inside = str(self._cwd.resolve().relative_to(root.resolve()))
        if self._options.include_uncommitted:
            return root, worktree.snapshot_of(root, head), inside
        with suppress(CorralError):
            if source_repository.has_changes(self._cwd):
                self.notes.append(
                    "uncommitted changes are not part of the comparison: agents start from HEAD"
                    " (--include-uncommitted adds them)"
                )
        return root, head, inside

    def _copy(self, folder: str) -> tuple[Path, str, str]:
        """A repository of our own with the files of a folder."""
        own = store.folder_of(self._name) / "sources" / str(len(self._sources))
        try:
            paths.make_dir(own.parent)
            commit = worktree.folder_repository(own, Path(folder))
        except OSError as error:
            raise StorageFailed(f"{folder} cannot be copied: {error}") from error
        return own, commit, ""

    def _check_hidden(self, task: CompareTask, root: Path, commit: str, inside: str) -> None:
        """Tests that are in the agents' files are not hidden. Raises ``ConfigError``."""
        tests = task.tests or os.fspath(self._options.tests or "")
        if not tests:
            return
        place = os.path.normpath(os.path.join(inside, _target(tests, self._cwd)))
        wanted = os.fsencode(place)
        found = repository.entries(root, commit)
        if any(path == wanted or path.startswith(wanted + b"/") for path in found):
            raise ConfigError(
                f"the tests {place} are in the files that the agents get",
                hint="Keep them out of the repository, or uncommitted: agents must not see them."
                " Tests that agents may see need no --tests.",
            )


def save_plan(plan: ComparisonPlan) -> None:
    """Raises ``StorageFailed``."""
    try:
        folder = paths.make_dir(store.folder_of(plan.name))
        saved = msgspec.structs.replace(plan, version=COMPARISON, scripted=is_scripted({}))
        stored = msgspec.json.encode(saved)
        fs.write_atomically(folder / store.PLAN, stored, sync=True)
    except OSError as error:
        raise StorageFailed(f"the plan of {plan.name} cannot be written: {error}") from error


def load_plan(name: str) -> ComparisonPlan:
    """Raises ``ConfigError``."""
    path = store.folder_of(name) / store.PLAN
    try:
        stored = path.read_bytes()
        stored_formats.check_json(f"the comparison {name!r}", stored, "version", COMPARISON)
        return decode_as(stored, ComparisonPlan)
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no comparison {name!r}", hint="`corral runs list` shows them."
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
