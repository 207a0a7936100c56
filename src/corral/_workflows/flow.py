"""``Flow``: the steps that a workflow can call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, cast, get_args, overload

import msgspec

from corral._core.argument_checks import check_text, check_texts
from corral._core.durations import seconds
from corral._core.lookup import run_of
from corral._core.nesting import decode_json
from corral._pipelines import node_kinds
from corral._pipelines.graph import Node, Value
from corral._pipelines.scheduler.commands import Question
from corral._pipelines.scheduler.human_gate import question_choices
from corral._protocol.schema import schema_of
from corral._workflows.program_turn import Step, StepEnd, StepKind, digest_of
from corral._workflows.step_calls import StepCalls, error_of
from corral._workflows.stored_values import to_json_value
from corral.errors import ConfigError
from corral.values import (
    Effort,
    Json,
    JsonObject,
    Output,
    as_list,
    as_object,
    as_text,
    as_texts,
    convert_to,
    slug,
)

if TYPE_CHECKING:
    from corral._merging.api import MergeReport
    from corral.options import SandboxMode
    from corral.policy import Preset
    from corral.run_kwargs import RunKwargs

T = TypeVar("T")
Duration = float | str
"""Seconds, or ``5m``."""
OnCrash = Literal["rerun", "fail", "resume"]
ConflictRule = Literal["fail", "first", "ask", "resume"]
NONE_STAYS = "none: nothing is merged"

MAX_PARALLEL = 4
MAX_NAME = 60
MAX_LABEL = 60
_ENGINE_OPTIONS = (
    "max_wait", "model", "on_limit", "reasoning_effort", "sandbox", "timeout",
)  # fmt: skip
"""Options of a run that the engine reads, too: they are attributes of the node."""


class AgentStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``flow.run`` without ``output``.

    ::

        done = await flow.run("gemini", "Fix the typo", policy="edits")
        print(done.text, done.files, done.cost_usd)
    """

    text: str = ""
    files: list[str] = []
    """The files that were changed, if that is known."""
    branch: str = ""
    """With ``worktree=True``: the branch with the changes; empty if nothing was changed."""
    commit: str = ""
    denied: list[str] = []
    """Tools that the policy denied."""
    agent: str = ""
    model: str | None = None
    cost_usd: float | None = None
    tokens: int | None = None


class CommandStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``flow.command``.

    ::

        tests = await flow.command("pytest -q")
        print(tests.ok, tests.exit_code, tests.stdout)
    """

    ok: bool
    """Whether it exited with 0."""
    exit_code: int | None
    """None: a signal ended it."""
    stdout: str
    """The last 128 KiB."""
    stderr: str
    timed_out: bool = False


class PersonAnswer(str):
    """The answer of a person: the label of a choice, or a text. ``comment`` is what was written
    beside a choice, ``by`` who answered, if that is known.

    ::

        answer = await flow.ask("Merge?", ["yes", "no"])
        print(answer, answer.comment, answer.by)
    """

    comment: str
    by: str

    def __new__(cls, text: str, comment: str = "", by: str = "") -> PersonAnswer:
        answer = super().__new__(cls, text)
        answer.comment, answer.by = comment, by
        return answer


class Flow:
    """The first argument of a workflow: its steps. Each is recorded with its result, and is never
    run again once it has ended. A step that fails raises ``corral.errors.StepError``.

    ``name`` of a step is a part of its path, which ``corral runs show`` lists; without one it
    is named after its agent or its kind.
    """

    def __init__(self, calls: StepCalls) -> None:
        self.calls = calls
        self._threads: dict[str, Json] = {}

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return run_of(self.calls.run_id)

    # Agents and models.

    @overload
    def run(
        self,
        agent: str,
        prompt: str,
        *,
        output: Output[T],
        name: str = ...,
        worktree: bool = ...,
        until: str = ...,
        rounds: int | None = ...,
        max_retries: int = ...,
        thread_id: str | None = ...,
        on_crash: OnCrash = ...,
        **options: Unpack[RunKwargs],
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def run(
        self,
        agent: str,
        prompt: str,
        *,
        output: None = ...,
        name: str = ...,
        worktree: bool = ...,
        until: str = ...,
        rounds: int | None = ...,
        max_retries: int = ...,
        thread_id: str | None = ...,
        on_crash: OnCrash = ...,
        **options: Unpack[RunKwargs],
    ) -> Coroutine[Any, Any, AgentStep]: ...
    def run(  # noqa: PLR0913
        self,
        agent: str,
        prompt: str,
        *,
        output: object = None,
        name: str = "",
        worktree: bool = False,
        until: str = "",
        rounds: int | None = None,
        max_retries: int = 0,
        thread_id: str | None = None,
        on_crash: OnCrash = "rerun",
        **options: Unpack[RunKwargs],
    ) -> Coroutine[Any, Any, object]:
        """Run an agent, or the built-in agent on a model ``vendor:name``, with the options of
        ``corral.run``. With ``output``, a type or a JSON Schema, the result is a value of it.

        ``worktree``: the agent works in its own git worktree at the current commit, and its
        changes become ``result.branch``. ``until``: a command; as long as it fails, its output is
        sent to the agent, at most ``rounds`` times. ``max_retries``: further attempts if it fails.
        ``thread_id``: steps with the same one continue one session. ``on_crash``: what happens to
        a step that a crash interrupted: it starts again (``rerun``), continues in its session
        (``resume``), or fails.
        """
        check_text("agent", agent)
        given: dict[str, object] = {k: v for k, v in options.items() if v is not None}
        attrs: dict[str, Value] = {"agent": agent, "on_crash": on_crash}
        if max_retries:
            attrs["max_retries"] = max_retries
        if given.get("timeout") is not None:
            given["timeout"] = seconds(cast("Duration", given["timeout"]))
        attrs |= {
            key: value
            for key in _ENGINE_OPTIONS
            if isinstance(value := given.get(key), str | int | float)
        }
        policy = given.get("policy")
        if isinstance(policy, str):
            attrs["policy"] = policy
        inputs: JsonObject = {"prompt": prompt, "options": given, "worktree": worktree}  # type: ignore[dict-item]
        if until:
            inputs["until"] = until
        if rounds is not None:
            inputs["rounds"] = rounds
        session_key = f"internal.thread.{thread_id}"
        if thread_id is not None and thread_id in self._threads:
            inputs[session_key] = self._threads[thread_id]
        says = any(each in given for each in ("policy", "approval_mode", "allowed_tools"))
        writes = policy != "reads" if says else self.calls.writes
        schema = None if output is None else schema_of(output)
        step = self._node_step(
            name or _own_name(agent),
            node_kinds.RUN_STEP.name,
            prompt,
            attrs,
            {**inputs, "output": None if schema is None else schema.json},
            thread=thread_id,
        )

        def read(end: StepEnd) -> object:
            fields = as_object(end.value)
            if thread_id is not None and (session := fields.get("session")) is not None:
                self._threads[thread_id] = session
            if schema is not None:
                return schema.typed_value(fields.get("output"))
            return convert_to(fields, AgentStep)

        return self._perform(step, read, reads=True, writes=writes and not worktree)

    @overload
    def generate(
        self,
        model: str,
        prompt: str,
        *,
        output: Output[T],
        name: str = ...,
        system: str = ...,
        reasoning_effort: Effort | None = ...,
        temperature: float | None = ...,
        max_tokens: int | None = ...,
        timeout: Duration | None = ...,
        max_retries: int = ...,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def generate(
        self,
        model: str,
        prompt: str,
        *,
        output: None = ...,
        name: str = ...,
        system: str = ...,
        reasoning_effort: Effort | None = ...,
        temperature: float | None = ...,
        max_tokens: int | None = ...,
        timeout: Duration | None = ...,
        max_retries: int = ...,
    ) -> Coroutine[Any, Any, str]: ...
    def generate(  # noqa: PLR0913
        self,
        model: str,
        prompt: str,
        *,
        output: object = None,
        name: str = "generate",
        system: str = "",
        reasoning_effort: Effort | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        timeout: Duration | None = None,
        max_retries: int = 0,
    ) -> Coroutine[Any, Any, object]:
        """One call of the model ``vendor:name``, without tools: its text, or with ``output`` a
        value of that type."""
        schema = None if output is None else schema_of(output)
        attrs: dict[str, Value | None] = {
            "model": model,
            "system_prompt": system or None,
            "reasoning_effort": reasoning_effort,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "timeout": None if timeout is None else seconds(timeout),
            "max_retries": max_retries or None,
        }
        step = self._node_step(
            name,
            node_kinds.GENERATE_STEP.name,
            prompt,
            {key: value for key, value in attrs.items() if value is not None},
            {"prompt": prompt, "output": None if schema is None else schema.json},
        )
        return self._perform(
            step, lambda end: end.value if schema is None else schema.typed_value(end.value)
        )

    # Commands, and the merge queue.

    def command(  # noqa: PLR0913
        self,
        command: str,
        *,
        check: bool = False,
        name: str = "command",
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
        policy: Preset | None = None,
        sandbox: SandboxMode | None = None,
        max_retries: int = 0,
    ) -> Coroutine[Any, Any, CommandStep]:
        """Run a command in a shell in the workspace. With ``check`` an exit code other than 0
        raises ``StepError``; without it, it is in the result."""
        for key, value in (env or {}).items():
            check_text(f"env[{key!r}]", value)
        attrs: dict[str, Value | None] = {
            "timeout": None if timeout is None else seconds(timeout),
            "policy": policy,
            "sandbox": sandbox,
            "max_retries": max_retries or None,
        }
        step = self._node_step(
            name,
            node_kinds.COMMAND_STEP.name,
            command,
            {key: value for key, value in attrs.items() if value is not None},
            {"command": command, "cwd": cwd, "env": dict(env or {}), "check": check},
        )
        read = _reader(CommandStep)
        return self._perform(step, read, reads=True, writes=True)

    def merge(  # noqa: PLR0913
        self,
        branches: Sequence[str],
        *,
        into: str,
        gates: Sequence[str],
        check: bool = False,
        name: str = "merge",
        rounds: int | None = None,
        agent: str | None = None,
        gate_timeout: Duration | None = None,
        gate_sandbox: Literal["auto", "require"] | None = None,
        gate_env: Sequence[str] = (),
        **options: Unpack[RunKwargs],
    ) -> Coroutine[Any, Any, MergeReport]:
        """Add branches to the merge queue of the branch ``into``, and wait until each was merged or
        has failed::

            done = await flow.run("claude", "Fix the typos", policy="edits", worktree=True)
            if done.branch:
                report = await flow.merge([done.branch], into="main", gates=["make test"])
                print(report.merged, report.failed, report.pending)

        ``gates``: commands that must succeed in a clean worktree before ``into`` is moved. At a
        conflict or a failed gate the session that made the branch repairs it, at most ``rounds``
        times (2); ``agent`` is asked about branches that no session made. ``gate_timeout``: for
        each command. ``gate_env``: names of variables that they see. ``options`` are those of
        ``corral.run`` for the sessions that are asked, with ``cwd``, the folder of the repository.

        A branch that fails stays as it is: the report has the reason. With ``check`` the step
        raises ``StepError`` then. It also does if nothing can be merged at all: an unknown branch,
        or a gate that fails on ``into`` itself."""
        for what, given in (("branches", branches), ("gates", gates), ("gate_env", gate_env)):
            check_texts(what, given)
        check_text("into", into)
        wrong = next((each for each in branches if not each or {*each} & {*"*?["}), None)
        if wrong is not None:
            raise ConfigError(
                f"{wrong!r} is not the name of a branch",
                hint="An agent that changed nothing has no branch: leave it out. A pattern is not"
                " allowed, because the inputs of a step must say what it does.",
            )
        if not branches:
            raise ConfigError("flow.merge needs branches", hint="Call it only if there are some.")
        if not any(gate.strip() for gate in gates):
            raise ConfigError(
                "no gate: which command must succeed before a branch is merged?",
                hint="Name one: gates=['make test'] (['true'] checks nothing).",
            )
        attrs: dict[str, Value | None] = {
            "into": into,
            "agent": agent,
            "rounds": rounds,
            "gate_timeout": None if gate_timeout is None else seconds(gate_timeout),
            "gate_sandbox": gate_sandbox,
            "gate_env": " ".join(gate_env) or None,
        }
        step = self._node_step(
            name,
            node_kinds.MERGE_STEP.name,
            f"into {into}: {', '.join(branches)}",
            {key: value for key, value in attrs.items() if value is not None},
            {
                "branches": [*branches],
                "gates": [*gates],
                "check": check,
                "options": {key: value for key, value in options.items() if value is not None},
            },
        )

        def read(end: StepEnd) -> MergeReport:
            from corral._merging.api import MergeReport

            return convert_to(end.value, MergeReport)

        return self._perform(step, read, reads=True, writes=True)

    # People, and the world outside.

    def ask(
        self,
        question: str,
        choices: Sequence[str] = (),
        *,
        default: str | None = None,
        timeout: Duration | None = None,
        name: str = "ask",
    ) -> Coroutine[Any, Any, PersonAnswer]:
        """Ask a person; wait for days, if it takes so long. The answer is one of the choices, or
        without choices a text. ``default`` is the answer after ``timeout``; without one the step
        fails then. It is answered as the gate of a pipeline is: at the terminal, on the page, with
        ``corral runs answer``, over HTTP."""
        return self._perform(
            self._question_step(name, question, choices, default=default, timeout=timeout),
            lambda end: PersonAnswer(**_texts(end.value)),
            reads=True,
        )

    @overload
    def event(
        self, name: str, *, output: Output[T], timeout: Duration | None = ...
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def event(
        self, name: str, *, output: None = ..., timeout: Duration | None = ...
    ) -> Coroutine[Any, Any, str]: ...
    def event(
        self, name: str, *, output: object = None, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, object]:
        """Wait until something outside reports this event: ``corral runs answer RUN TEXT --request
        NAME``, or ``corral.runs.answer``. The result is the text, or with ``output`` the value of
        that type that it is JSON of."""
        schema = None if output is None else schema_of(output)
        text = f"the event {name!r}" + ("" if schema is None else f": JSON of {schema.name}")
        step = self._question_step(name, text, (), default=None, timeout=timeout)

        def read(end: StepEnd) -> object:
            given = _texts(end.value)["text"]
            if schema is None:
                return given
            try:
                return schema.typed_value(decode_json(given))
            except msgspec.DecodeError as error:
                raise ConfigError(f"the event {name!r} is not JSON: {error}") from error

        return self._perform(step, read)

    # Time and chance.

    def sleep(self, duration: Duration, *, name: str = "sleep") -> Coroutine[Any, Any, None]:
        """Sleep for so many seconds, or ``"2d"``; a restart does not extend it."""
        length = seconds(duration)
        step = self._step(
            name, "sleep", length, label=f"sleep {duration}", kind_name="sleep", seconds=length
        )
        return self._perform(step, lambda _: None)

    def now(self) -> Coroutine[Any, Any, datetime]:
        """The time, in UTC. A replay gets the recorded one."""
        step = self._step("now", "now")
        return self._perform(step, lambda end: datetime.fromtimestamp(float(str(end.value)), UTC))

    def random(self) -> Coroutine[Any, Any, float]:
        """A random number from 0 to 1. A replay gets the recorded one."""
        return self._perform(self._step("random", "random"), lambda end: cast("float", end.value))

    # Several at once.

    async def parallel(
        self,
        steps: Iterable[Awaitable[T]],
        *,
        max_parallel: int = MAX_PARALLEL,
        worktree: Literal["shared", "branch"] = "shared",
        on_conflict: ConflictRule = "fail",
    ) -> list[T]:
        """The results of steps, sub-workflows or other coroutines, in their order; at most
        ``max_parallel`` run at once. If one fails, the others are stopped and its error is
        raised.

        ``worktree="branch"``: each works in its own git worktree, which starts with the files as
        they are now. When all have ended, their changes are merged into the workspace. If two of
        them changed the same lines, ``on_conflict`` decides: ``fail`` (nothing is merged),
        ``first`` (the later one is left out), ``ask`` (a person chooses the one that stays),
        ``resume`` (the session that made the later one resolves the conflict). What is not merged
        stays as a git branch."""
        self.calls.check_inside("parallel")
        works = list(steps)
        if max_parallel < 1:
            raise ConfigError(f"max_parallel must be at least 1, got: {max_parallel}")
        slots, calls = asyncio.Semaphore(max_parallel), self.calls
        prefixes = [calls.prefix_for(work) for work in works]
        merge, branches = None, [""] * len(works)
        if worktree == "branch":
            merge = self._merge_step("parallel", len(works), on_conflict)
            branches = [*merge.merges]
        elif worktree != "shared":
            raise ConfigError(f"worktree must be 'shared' or 'branch', got: {worktree!r}")
        tasks = [
            asyncio.create_task(calls.in_task(work, prefix, slots, branch))
            for work, prefix, branch in zip(works, prefixes, branches, strict=True)
        ]
        try:
            results = [*await asyncio.gather(*tasks)]
            if merge is not None and works:
                await self._merge(merge, on_conflict)
            return results
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for work in works:
                if isinstance(work, Coroutine):
                    work.close()  # one that was not started

    def _merge_step(
        self, name: str, count: int, rule: ConflictRule, first: Step | None = None, chosen: str = ""
    ) -> Step:
        """The step that merges the files of so many branches, or those of the step ``first``."""
        if rule not in get_args(ConflictRule):
            rules = ", ".join(get_args(ConflictRule))
            raise ConfigError(f"on_conflict must be one of {rules}, got: {rule!r}")
        step = self._step(
            name,
            "visit",
            rule,
            chosen,
            label="merge the branches",
            kind_name=node_kinds.PARALLEL.name,
            attrs={"worktree": "branch", "on_conflict": rule},
            chosen=chosen,
        )
        branches = tuple(f"{step.name}.{number}" for number in range(1, count + 1))
        return msgspec.structs.replace(step, merges=branches if first is None else first.merges)

    async def _merge(self, step: Step, rule: ConflictRule) -> None:
        """Merge the files of branches that are over. Raises ``StepError``."""
        end = await self.calls.end_of(step, reads=True, writes=True)
        if not end.error:
            return
        left = [as_object(each) for each in as_list(end.value)]
        if rule != "ask" or not left:
            raise error_of(step, end)
        against = ", ".join(as_text(each.get("id")) for each in left)
        files = ", ".join(sorted({name for each in left for name in as_texts(each.get("files"))}))
        text = f"{against} changed the same lines as branches before: {files}. Which one stays?"
        answer = await self.ask(text, [*step.merges, NONE_STAYS], name="conflict")
        if answer == NONE_STAYS:
            raise error_of(step, end)
        chosen = self._merge_step("chosen", 0, rule, step, str(answer))
        await self.calls.step(chosen, reads=True, writes=True)

    # Making steps.

    def _node_step(
        self,
        name: str,
        kind_name: str,
        label: str,
        attrs: dict[str, Value],
        inputs: Mapping[str, object],
        *,
        thread: str | None = None,
    ) -> Step:
        try:
            stored = as_object(to_json_value(inputs))
        except TypeError as error:
            raise ConfigError(f"an argument of the step {name!r} {error}") from error
        return self._step(
            name,
            "visit",
            attrs,
            stored,
            label=label,
            kind_name=kind_name,
            attrs=attrs,
            inputs=stored,
            thread=thread,
        )

    def _question_step(
        self,
        name: str,
        text: str,
        choices: Sequence[str],
        *,
        default: str | None,
        timeout: Duration | None,
    ) -> Step:
        check_texts("choices", choices)
        offered = question_choices(choices)
        limit = None if timeout is None else seconds(timeout)
        if default is not None and choices and default not in choices:
            raise ConfigError(f"the default {default!r} is not one of the choices {[*choices]}")
        key = next((each.key for each in offered if each.written == default), default)
        kind = node_kinds.WAIT_HUMAN.name
        step = self._step(name, "ask", text, [*choices], default, limit, label=text, kind_name=kind)
        question = Question(
            id=step.id, node=step.name, text=text, choices=offered, default=key, timeout=limit
        )
        return msgspec.structs.replace(step, question=question)

    def _step(
        self,
        name: str,
        kind: StepKind,
        *hashed: object,
        label: str = "",
        kind_name: str = "",
        attrs: Mapping[str, Value] | None = None,
        **fields: Any,
    ) -> Step:
        """A step that gets its path now. ``hashed``: what its digest is made of."""
        self.calls.check_inside(name)
        check_text("the name of a step", name)
        if not name or slug(name, limit=MAX_NAME, allowed="_-") != name:
            raise ConfigError(
                f"{name!r} cannot be the name of a step",
                hint=f"It has letters, digits, '_' and '-', at most {MAX_NAME}.",
            )
        path = self.calls.path_of(name)
        node: Node | None = None
        given = attrs or {}
        check_text(f"the text of the step {path!r}", label)
        if kind_name:
            is_named = name not in _DEFAULT_NAMES and name != _own_name(str(given.get("agent", "")))
            short = " ".join(f"{name}: {label}".split() if is_named else label.split())
            short = short if len(short) <= MAX_LABEL else f"{short[: MAX_LABEL - 1]}…"
            node = Node(id=path, attrs={"type": kind_name, "label": short, **given})
        return Step(
            id=f"{path}.1",
            kind=kind,
            digest=digest_of(kind, kind_name, *hashed),
            line=self.calls.line(),
            node=node,
            **fields,
        )

    def _perform(
        self,
        step: Step,
        read: Callable[[StepEnd], T],
        *,
        reads: bool = False,
        writes: bool = False,
    ) -> Coroutine[Any, Any, T]:
        async def perform() -> T:
            return read(await self.calls.step(step, reads=reads, writes=writes))

        return self.calls.called(step.id, step.line, f"the step {step.name!r}", perform())


_DEFAULT_NAMES = ("generate", "command", "ask", "merge", "sleep", "parallel", "chosen")
"""The names of steps that the author did not name, besides those of agents."""


def _own_name(agent: str) -> str:
    """The name of a step that is named after its agent."""
    return slug(agent.rpartition("/")[2].partition(" ")[0], limit=40, allowed="_-", default="run")


def _reader(kind: type[T]) -> Callable[[StepEnd], T]:
    return lambda end: convert_to(end.value, kind)


def _texts(value: Json) -> dict[str, str]:
    return {key: as_text(each) for key, each in as_object(value).items()}
