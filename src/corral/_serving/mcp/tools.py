"""The tools that ``corral mcp`` offers, and their results.

A client ends calls that take long, and most give no sign of life to their user meanwhile. So no
call takes longer than ``MAX_WAIT`` seconds: ``run`` returns the answer if it comes in that time,
and else the id of the run, which every result has. ``wait`` waits on, ``result`` reads.

A result is a text for the model, and the same facts as an object for programs. Clients drop results
that are too large: of a long answer it has the beginning, and says in which file the rest is and
how to read on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from corral._core.display import shorten
from corral._core.durations import text as duration_text
from corral._core.lookup import nearest
from corral._core.spending import LIMITS, dollars
from corral._option_definitions import BY_NAME
from corral._publishing.records import Pending
from corral._serving.allowance import (
    Allowance,
    AnswerRequest,
    PipelineRequest,
    RunRequest,
    policy_text,
    read_request,
)
from corral._serving.caller_runs import CallerRun, CallerRuns, RunView
from corral._sessions import api
from corral._sessions.session_link import PERSON
from corral._system import config, fs, paths
from corral._system.threads import in_thread
from corral.errors import ConfigError, CorralError
from corral.policy import PRESETS, Policy, is_narrower
from corral.values import Effort, Json, JsonObject

MAX_WAIT = 50.0
"""Seconds of a call. Several clients end a call after 60."""
FIRST_WAIT = 45.0
"""Seconds in which ``run`` waits for the end."""
HEARTBEAT = 5.0
"""Seconds between two reports of a call that waits."""
LARGEST_TEXT = 24_000
"""Bytes of an answer in a result. Claude Code drops results of more than about 25,000 tokens."""
MOST_LISTED = 50
"""Changed files and denied calls in a result."""

Report: TypeAlias = Callable[[RunView], None]
R = TypeVar("R", bound=msgspec.Struct)


class WaitRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str
    seconds: float = MAX_WAIT


class ResultRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str
    offset: int = 0


class CancelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str


class NoArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class CallerTools:
    """The tools of one caller."""

    def __init__(self, runs: CallerRuns) -> None:
        self.runs = runs
        self.caller_has_left = False
        """Set when the connection ends: what becomes of the runs is then decided by ``runs``."""
        self._calls: Mapping[str, Callable[[JsonObject, Report], Awaitable[JsonObject]]] = {
            "list_agents": self._list_agents,
            "run": self._run,
            "start": self._start,
            "wait": self._wait,
            "result": self._result,
            "cancel": self._cancel,
            "answer": self._answer,
            "run_pipeline": self._run,
        }

    @property
    def instructions(self) -> str:
        return (
            "Runs coding agents. `run` gives an agent a task and returns its answer. If it takes"
            f" longer than {FIRST_WAIT:g} s, the result has the id of the run: call `wait` until it"
            " has ended. `start` returns at once, to let several agents work at the same time."
        )

    @property
    def names(self) -> tuple[str, ...]:
        given = self.runs.allowance.pipelines
        return tuple(name for name in self._calls if name != "run_pipeline" or given)

    def listed(self) -> list[Json]:
        """What ``tools/list`` returns."""
        return [*map(self._described, self.names)]

    async def call(self, name: str, arguments: JsonObject, report: Report) -> JsonObject:
        """The result of a call; one that is an error says what to do. ``report`` is called while it
        waits. Raises ``KeyError`` for an unknown tool."""
        if name not in self.names:
            raise KeyError(name)
        arguments = {"tool": name, **arguments} if name == "run_pipeline" else arguments
        try:
            return await self._calls[name](arguments, report)
        except CorralError as error:
            return error_result(error)

    async def begin(self, name: str, arguments: JsonObject) -> CallerRun:
        """Start what ``run``, ``start`` or ``run_pipeline`` names. Raises ``CorralError``."""
        set_by = self.runs.allowance.set_by
        if name == "run_pipeline":
            asked = read_request(arguments, PipelineRequest, set_by=set_by)
            return await self.runs.start_pipeline(asked)
        return await self.runs.start(read_request(arguments, RunRequest, set_by=set_by))

    async def _run(self, arguments: JsonObject, report: Report) -> JsonObject:
        given = {key: value for key, value in arguments.items() if key != "tool"}
        name = "run_pipeline" if "tool" in arguments else "run"
        run = await self.begin(name, given)
        try:
            return await shown(await _watch(run, FIRST_WAIT, report))
        except asyncio.CancelledError:
            if not self.caller_has_left:  # it does not want the answer any more
                run.cancel()
            raise

    async def _start(self, arguments: JsonObject, _: Report) -> JsonObject:
        return await shown((await self.begin("start", arguments)).view)

    async def _wait(self, arguments: JsonObject, report: Report) -> JsonObject:
        asked = self._read(arguments, WaitRequest)
        seconds = min(max(asked.seconds, 0.0), MAX_WAIT)
        view = await self.runs.view(asked.run)
        try:
            run = self.runs.find(asked.run)
        except CorralError:  # it ended long ago, or another process runs it
            left = seconds
            while view.outcome is None and left > 0:
                await asyncio.sleep(min(left, 1.0))
                left -= 1.0
                view = await self.runs.view(asked.run)
            return await shown(view)
        return await shown(await _watch(run, seconds, report))

    async def _result(self, arguments: JsonObject, _: Report) -> JsonObject:
        asked = self._read(arguments, ResultRequest)
        return await shown(await self.runs.view(asked.run), max(asked.offset, 0))

    async def _cancel(self, arguments: JsonObject, _: Report) -> JsonObject:
        run = self.runs.find(self._read(arguments, CancelRequest).run)
        run.cancel()
        result = await shown(await run.wait(MAX_WAIT))
        return {**result, "isError": False}

    async def _answer(self, arguments: JsonObject, report: Report) -> JsonObject:
        asked = self._read(arguments, AnswerRequest)
        run = self.runs.find(asked.run)
        run.answer(asked)
        return await shown(await _watch(run, FIRST_WAIT, report))

    async def _list_agents(self, arguments: JsonObject, _: Report) -> JsonObject:
        self._read(arguments, NoArguments)
        allowance = self.runs.allowance
        rows = await in_thread(lambda: [*_agents(allowance)])
        facts: JsonObject = {
            "agents": [*rows],
            "models": [*allowance.models],
            "pipelines": [*allowance.pipelines],
            "policy": policy_text(allowance.policy),
            "folders": [*allowance.folders],
            "timeout": allowance.timeout,
            "limits": allowance.limits.as_dict(),
            "runs_at_once": allowance.concurrency,
            "runs": [
                {"run": view.run, "state": view.state, "agent": view.agent or view.pipeline}
                for view in self.runs.list()
            ],
        }
        lines = [_agent_line(row) for row in rows]
        lines += [f"Policy: at most {facts['policy']}. Folders: {', '.join(allowance.folders)}."]
        if allowance.pipelines:
            lines.append(f"Pipelines: {', '.join(allowance.pipelines)}.")
        return _tool_result("\n".join(lines), facts)

    def _read(self, arguments: JsonObject, kind: type[R]) -> R:
        return read_request(arguments, kind, set_by=self.runs.allowance.set_by)

    def _described(self, name: str) -> JsonObject:
        allowance = self.runs.allowance
        text, arguments = _TOOLS[name]
        # What the tool is about is its first field: a model reads them in this order.
        fields = sorted(msgspec.structs.fields(arguments), key=lambda field: not field.required)
        chosen: dict[str, Json] = {}
        for field in fields:
            schema = dict(_FIELDS[field.name])
            if values := _choices(field.name, allowance):
                schema["enum"] = [*values]
            chosen[field.name] = schema
        if name in ("run", "start"):
            text += (
                f" It may do at most: {policy_text(allowance.policy)}. It takes at most"
                f" {duration_text(allowance.timeout)}."
            )
        return {
            "name": name,
            "description": text,
            "inputSchema": {
                "type": "object",
                "properties": chosen,
                "required": [field.name for field in fields if field.required],
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": name in ("list_agents", "wait", "result")},
        }


_TOOLS: Mapping[str, tuple[str, type[msgspec.Struct]]] = {
    "list_agents": (
        "The agents, models and pipelines that can be run here, what they may do at most, and the"
        " runs so far.",
        NoArguments,
    ),
    "run": (
        "Give a coding agent a task, and get its answer. The agent works in the folder cwd and sees"
        f" nothing of this conversation. If it takes longer than {FIRST_WAIT:g} s, the result has"
        " the id of the run: call `wait` with it.",
        RunRequest,
    ),
    "start": (
        "As `run`, but returns at once with the id of the run: several agents can work at once.",
        RunRequest,
    ),
    "wait": (
        f"Wait until a run has ended or asks something, at most {MAX_WAIT:g} s. Returns its answer,"
        " or that it goes on.",
        WaitRequest,
    ),
    "result": (
        "The state and the answer of a run, without waiting. With offset, the part of a long answer"
        " from that byte on.",
        ResultRequest,
    ),
    "cancel": ("End a run. Its result has what it did so far.", CancelRequest),
    "answer": (
        "Answer what a run asks: a question with text (or answers, by the keys of its fields), a"
        " permission request with a decision. Then waits as `run` does.",
        AnswerRequest,
    ),
    "run_pipeline": (
        "Run a pipeline: several agents and commands in a fixed order. Waits as `run` does.",
        PipelineRequest,
    ),
}
"""Name → description, arguments."""
_FIELDS: Mapping[str, JsonObject] = {
    "prompt": {"type": "string", "description": "The task, with all that the agent must know."},
    "agent": {"type": "string", "description": "Its name; see list_agents."},
    "model": {"type": "string", "description": "The agent's name for the model."},
    "policy": {
        "type": "string",
        "description": "What it may do: reads (read files), edits (and write them), all.",
    },
    "cwd": {"type": "string", "description": "The folder in which it works."},
    "timeout": {"type": "number", "description": "The most seconds that it may take."},
    **{
        name: {
            "type": "integer" if limit.number is int else "number",
            "description": BY_NAME[name].text,
        }
        for name, limit in LIMITS.items()
    },
    "reasoning_effort": {"type": "string", "description": "How much the model should reason."},
    "session": {
        "type": "string",
        "description": "Continue the conversation of this run, which has ended.",
    },
    "output_schema": {
        "type": "object",
        "description": "A JSON Schema: the answer is a value of it.",
    },
    "pipeline": {"type": "string", "description": "Its name."},
    "goal": {"type": "string", "description": "Replaces the goal of the pipeline."},
    "values": {"type": "object", "description": "Values for the pipeline."},
    "run": {"type": "string", "description": "The id of the run."},
    "seconds": {"type": "number", "description": f"How long to wait, at most {MAX_WAIT:g}."},
    "offset": {"type": "integer", "description": "The first byte of the answer to return."},
    "request_id": {
        "type": "string",
        "description": "Which request is answered, if several are open.",
    },
    "text": {"type": "string", "description": "The answer to a question."},
    "answers": {"type": "object", "description": "The answers by the keys of the fields."},
    "decision": {
        "type": "string",
        "enum": ["allow_once", "allow_session", "deny", "cancel"],
        "description": "The answer to a permission request; deny also declines a question.",
    },
}


def _choices(field: str, allowance: Allowance) -> tuple[str, ...]:
    """The values of a field, if the allowance leaves a few."""
    match field:
        case "agent":
            return allowance.agents
        case "model":
            return allowance.models
        case "pipeline":
            return tuple(allowance.pipelines)
        case "policy":
            known = {**PRESETS, "plan": Policy.plan()}
            return tuple(n for n, each in known.items() if is_narrower(each, allowance.policy))
        case "reasoning_effort":
            return get_args(Effort)
        case _:
            return ()


def _agents(allowance: Allowance) -> Iterator[JsonObject]:
    if allowance.agents:
        specs = [(name, config.find_agent(name)) for name in allowance.agents]
    else:
        known = config.all_agents()
        specs = [(each.name, each) for each in known if PERSON not in each.capabilities]
    for name, spec in specs:
        yield {
            "name": name,
            "title": spec.title,
            "description": spec.description,
            "installed": api.is_installed(name),
        }


def _agent_line(row: JsonObject) -> str:
    missing = "" if row["installed"] else " (not installed)"
    return f"{row['name']}: {row['description']}{missing}"


async def _watch(run: CallerRun, seconds: float, report: Report) -> RunView:
    """Wait at most this long, with a report at each heartbeat."""
    left = seconds
    while True:
        step = min(HEARTBEAT, left)
        view = await run.wait(step)
        left -= step
        if view.state == "ended" or view.pending or left <= 0:
            return view
        report(view)


async def shown(view: RunView, offset: int = 0) -> JsonObject:
    """The result of a call that is about a run."""
    outcome = view.outcome
    if outcome is None:
        facts: JsonObject = msgspec.to_builtins(_short_pending(view))
        text = _unfinished(view)
        # Claude Code shows the model only the object.
        return _tool_result(text, {**facts, "next": text})
    data = outcome.text.encode("utf-8", "replace")
    part = data[offset : offset + LARGEST_TEXT].decode("utf-8", "ignore")
    end = offset + len(part.encode())
    lines = [part] if part else []
    short = replace(
        outcome, text=part, files=outcome.files[:MOST_LISTED], denied=outcome.denied[:MOST_LISTED]
    )
    facts = msgspec.to_builtins(replace(view, outcome=short))
    if outcome.output is not None:
        lines.append(msgspec.json.encode(outcome.output).decode())
    if end < len(data) or offset:
        facts["answer_bytes"], facts["next_offset"] = len(data), end if end < len(data) else None
        note = f"[bytes {offset:,} to {end:,} of {len(data):,} of the answer"
        if file := await in_thread(lambda: _store_answer(view, data)):
            facts["answer_file"] = file
            note += f"; all of it is in {file}"
        if end < len(data):
            note += f"; go on with `result`, run={view.run}, offset={end}"
        facts["next"] = note[1:]
        lines.append(f"{note}]")
    if outcome.error:
        lines.append(f"Error ({outcome.error_code or outcome.status}): {outcome.error}")
        lines += [outcome.hint] if outcome.hint else []
    lines.append(f"[{_summary(view)}]")
    return _tool_result("\n\n".join(lines), facts, is_error=not outcome.ok)


def _summary(view: RunView) -> str:
    outcome = view.outcome
    parts = [f"run {view.run}", view.agent or view.pipeline]
    if outcome is not None:
        parts.append(outcome.status)
        if outcome.files:
            names = [file.path for file in outcome.files[:5]]
            more = len(outcome.files) - len(names)
            parts.append(f"changed {', '.join(names)}{f' and {more} more' if more > 0 else ''}")
        if outcome.denied:
            parts.append(f"{len(outcome.denied)} calls denied")
        if outcome.usage.total:
            parts.append(f"{outcome.usage.total:,} tokens")
        if outcome.cost.usd is not None:
            parts.append(dollars(outcome.cost.usd))
    parts.append(f"{view.seconds:.0f} s")
    return " · ".join(parts)


def _unfinished(view: RunView) -> str:
    lines: list[str] = []
    for asked in view.pending:
        lines.append(f"The run asks ({asked.kind}, request_id={asked.request_id}): {asked.title}")
        for field in asked.fields:
            labels = ", ".join(option.label for option in field.options)
            lines.append(f"- {field.key}: {field.text}{f' [{labels}]' if labels else ''}")
    if view.pending:
        lines.append(f"Call `answer` with run={view.run}.")
    elif view.waits_for_person:
        lines.append("The run waits for a person who started this server to answer something.")
    else:
        lines.append(
            f"The run goes on: {view.activity}, {view.steps} steps so far. Call `wait` with"
            f" run={view.run} for its answer."
        )
    return "\n".join((*lines, f"[{_summary(view)} · {view.state}]"))


def _short_pending(view: RunView) -> RunView:
    """Without arguments that are too large."""

    def short(asked: Pending) -> Pending:
        data = msgspec.json.encode(asked.input)
        if len(data) <= LARGEST_TEXT // 2:
            return asked
        return replace(asked, input=shorten(data.decode("utf-8", "replace"), LARGEST_TEXT // 2))

    return replace(view, pending=tuple(map(short, view.pending)))


def _store_answer(view: RunView, data: bytes) -> str:
    """The file with the complete answer, in the folder of the run, with which it is removed; empty
    if there is none."""
    folder = paths.sessions() / view.run
    if view.kind == "pipeline":
        folder = paths.home() / "runs" / view.run
    if not fs.is_dir(folder):
        return ""
    file = folder / "answer.md"
    try:
        if not fs.exists(file) or fs.status(file).st_size != len(data):
            paths.write_private(file, data)
    except OSError:
        return ""
    return str(file)


def _tool_result(text: str, facts: JsonObject, *, is_error: bool = False) -> JsonObject:
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": facts,
        "isError": is_error,
    }


def error_result(error: CorralError) -> JsonObject:
    """The result for a request that was refused: the model reads what to do."""
    facts: JsonObject = {"error": error.message, "code": error.code, "retryable": error.retryable}
    return _tool_result(f"Error ({error.code}): {error}", facts, is_error=True)


def unknown_tool(name: str, names: tuple[str, ...]) -> ConfigError:
    advice = nearest(name, names, ", ".join(names))
    return ConfigError(f"no tool is called {shorten(name)!r}: {advice}")
