"""The probe: the few conversations that show whether a program works as its tested versions do.

They are the parts of the conformance kit and of the attack kit that corral's promises rest on:

- *work*: the agent edits a file, uses an MCP server, is denied a command, and ends its turn;
- *resume*: another process continues that conversation, and returns a typed value;
- *model*: which model is asked if none is named;
- the attack kit's first attempts under the policies in ``ATTACKED``.

A probe ends early when a check fails without which the program is not used, and when a part takes
too long. Then nothing is known: the program may hang, or the machine may be busy.

``main`` is the process of a probe (``corral._sessions.probing``). It prints the checks as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from corral._agents.proof import ProbeCheck, ProbeRow
from corral._agents.spec import AgentSpec
from corral._sessions.probing import ProbeRequest
from corral._testing.attack import POLICIES, attack_agent
from corral._testing.attack.plan import CAPABILITY
from corral._testing.attack.report import PolicyReport
from corral._testing.attack.run import CANARY_SERVER
from corral._testing.conformance.scenarios import (
    SampleAnswer,
    Stage,
    answer_typed,
    describe,
    texts_to_model,
)
from corral._testing.kits import agent_spec
from corral._testing.model_server.request import Call, Request
from corral._testing.model_server.script import Turn
from corral._testing.model_server.server import ModelServer
from corral.errors import CorralError, PermissionRefused
from corral.events import ToolResult, ToolUse
from corral.policy import Policy
from corral.result import Result
from corral.run_kwargs import RunKwargs
from corral.values import McpServer


class ProbeTooSlow(Exception):
    """A part of a probe did not end in time. The message says which."""


class _EndEarly(Exception):
    """The remaining parts need not be played."""


ATTACKED = ("default", "edits", "asked", "rules")
GROUPS = (
    "files",
    "shell beliefs",
    "path escapes",
    ".git and dot-files",
    "settings and memory",
    "web tools",
    "tool servers",
    "rule evasion",
    "allowed commands",
)
"""The groups of attempts that are made: one of each cell."""
FIRST = "Remember the word larkspur."
LAST_TEXT = "The work is over: larkspur."
SERVER, TOOL, NOTE = "canary", "keep", "larkspur"
INPUT_TOKENS = 1234
DEFAULT: ProbeRow = "default model"


async def probe_agent(
    agent: str, options: RunKwargs, *, part_seconds: float
) -> tuple[ProbeCheck, ...]:
    """The checks of an agent's program. Errors of the agent are failed checks. Raises
    ``ProbeTooSlow`` if a part does not end within ``part_seconds``."""
    spec = agent_spec(agent)
    # A prompt that takes too long must end its part, and never be a check that failed.
    later = 10 * part_seconds
    options = {**options, "timeout": later, "startup_timeout": later, "idle_timeout": later}
    gate = asyncio.Semaphore(max(2, os.cpu_count() or 1))
    checks: list[ProbeCheck] = []
    slow: list[str] = []

    async def play(part: str, playing: Callable[[], Awaitable[Sequence[ProbeCheck]]]) -> None:
        async with gate:
            try:
                async with asyncio.timeout(part_seconds):
                    checks.extend(await playing())
            except TimeoutError:
                slow.append(part)
        if slow or not _is_usable(checks):
            raise _EndEarly

    parts: dict[str, Callable[[], Awaitable[Sequence[ProbeCheck]]]] = {
        "an edit, a denied command and a resumed conversation": _ProbeTurns(
            agent, spec, options
        ).play,
        "a prompt without a named model": _ProbeTurns(agent, spec, options).play_without_model,
    }
    for name in ATTACKED:
        if POLICIES[name].applies_to(spec):
            parts[f"attempts under the policy {name}"] = partial(_attack, agent, name, options)
    try:
        async with asyncio.TaskGroup() as group:
            for part, playing in parts.items():
                group.create_task(play(part, playing))
    except* _EndEarly:
        pass
    if slow and _is_usable(checks):
        raise ProbeTooSlow(f"{slow[0]} did not end within {part_seconds:g} s")
    return tuple(checks)


def _is_usable(checks: Sequence[ProbeCheck]) -> bool:
    return all(check.ok or check.row for check in checks)


class _ProbeTurns:
    """Work, and its continuation in another process."""

    def __init__(self, agent: str, spec: AgentSpec, options: RunKwargs) -> None:
        self._agent = agent
        self._spec = spec
        self._options = options
        self._checks: list[ProbeCheck] = []

    async def play(self) -> list[ProbeCheck]:
        async with self._stage() as stage:
            try:
                token = await self._work(stage)
                if _is_usable(self._checks):
                    await self._resume(stage, token)
            except CorralError as error:
                self._check("runs with corral", False, str(error))
        return self._checks

    async def play_without_model(self) -> list[ProbeCheck]:
        """Which model is asked if none is named. Other models may be asked for a title."""
        known = self._spec.probe.default_models if self._spec.probe is not None else ()
        if known:
            async with self._stage() as stage:
                script = [Turn(text="Hello.", repeat="forever")]
                with contextlib.suppress(CorralError):
                    await stage.run("Say hello.", script, model=None)
                asked = {request.model for request in stage.requests if request.model}
                seen = f"{', '.join(sorted(asked)) or 'none'} (known: {', '.join(known)})"
                self._check("a known default model is asked", asked & {*known}, seen, DEFAULT)
        return self._checks

    @contextlib.asynccontextmanager
    async def _stage(self) -> AsyncGenerator[Stage]:
        with tempfile.TemporaryDirectory(prefix="corral-probe-") as name:
            async with ModelServer() as server:
                yield Stage(
                    self._agent,
                    self._spec,
                    server,
                    Path(name),
                    options=self._options,
                    scenario="probe",
                )

    def _check(self, name: str, ok: object, seen: str, row: ProbeRow = "") -> None:
        self._checks.append(ProbeCheck(name, bool(ok), " ".join(seen.split())[:300], row))

    async def _work(self, stage: Stage) -> str | None:
        probe, notes = stage.probe, stage.cwd / "notes"
        notes.mkdir()
        takes_servers = "mcp_servers" in self._spec.supports
        tool = probe.mcp_name.format(server=SERVER, tool=TOOL)
        steps = [Call(*probe.write)]
        steps += [Call(tool, {"text": NOTE})] if takes_servers else []
        steps += [Call(*probe.shell)]
        left = [*steps]

        def answer(request: Request) -> Turn:
            usage = {"input": INPUT_TOKENS, "output": 56}
            if not request.tools:
                return Turn(text="A title", usage=usage)
            if not left:
                return Turn(text=[LAST_TEXT[:9], LAST_TEXT[9:]], usage=usage)
            return Turn(text="Next. ", calls=[left.pop(0)], usage=usage)

        policy = Policy(read="allow", write="allow", shell="deny", mcp="allow")
        given: RunKwargs = {"policy": policy, "keep": True, "strict": False}
        if takes_servers:
            command = (sys.executable, "-I", str(CANARY_SERVER), str(notes))
            given["mcp_servers"] = [McpServer(SERVER, command=command)]
        result = await stage.run(FIRST, answer, **given)
        self._check_end(stage, result, made=len(steps) - len(left), expected=len(steps))
        written = (stage.cwd / "probe.txt").exists()
        self._check("a permitted edit happens", written, f"probe.txt exists: {written}")
        if takes_servers:
            noted = (notes / NOTE).exists()
            self._check("a tool of an MCP server is called", noted, f"it was called: {noted}")
        ran = (stage.cwd / "shell.txt").exists()
        self._check("a denied command does not run", not ran, f"it ran: {ran}", "shell")
        self._check_calls(stage, result, Call(*probe.write).name)
        if "usage" in self._spec.capabilities:
            used = (result.usage.input, result.usage.output)
            is_right = used[0] and used[0] % INPUT_TOKENS == 0 and used[1]
            self._check("token usage is reported", is_right, f"{used[0]} in, {used[1]} out")
        self._check_model(stage)
        return result.resume_token

    def _check_end(self, stage: Stage, result: Result, *, made: int, expected: int) -> None:
        asked = len(stage.requests)
        self._check("starts and reaches the model", asked, f"{asked} calls of the model")
        ended_by_denial = result.error is not None and result.error.code == PermissionRefused.code
        if ended_by_denial:  # of the command, the last call
            self._check("makes every call", made == expected, f"{made} of {expected} calls")
            return
        self._check("the turn ends as a success", result.ok, describe(result))
        self._check("makes every call", made == expected, f"{made} of {expected} calls")
        is_complete = result.final_text.strip().endswith(LAST_TEXT)
        self._check("the answer arrives complete", is_complete, f"it ends: {result.text[-80:]!r}")

    def _check_calls(self, stage: Stage, result: Result, name: str) -> None:
        """The edit is reported once, with its result; and the denial, by an agent that does."""
        uses = [event for event in stage.events if isinstance(event, ToolUse)]
        edits = [each for each in uses if each.kind == "edit"]
        results = {
            event.call_id: event.status for event in stage.events if isinstance(event, ToolResult)
        }
        seen = ", ".join(f"{use.name} ({use.kind}): {results.get(use.call_id)}" for use in uses)
        is_reported = len(edits) == 1 and results.get(edits[0].call_id) == "success"
        self._check("a tool call is reported once, with its result", is_reported, seen or "none")

    def _check_model(self, stage: Stage) -> None:
        wanted = stage.probe.model
        models = {request.model for request in stage.requests if request.tools}
        right = {wanted, wanted.rpartition("/")[2], *stage.probe.replacements}
        is_right = models <= right
        self._check("the named model is asked", is_right, ", ".join(map(str, models)) or "none")

    async def _resume(self, stage: Stage, token: str | None) -> None:
        given: RunKwargs = {"keep": True}
        if self._spec.resumes:
            self._check("the conversation can be resumed", token, f"its token: {token}")
            given["resume"] = token
        result = await stage.run("Answer", answer_typed, output=SampleAnswer, **given)
        if self._spec.resumes and token:
            has_first = FIRST in texts_to_model(stage)
            seen = f"the model got the first prompt: {has_first}"
            self._check("a resumed conversation is sent to the model", has_first, seen)
        is_right = result.ok and result.output == SampleAnswer(3, ["a", "b"])
        seen = repr(result.output) if result.ok else describe(result)
        self._check("a typed value is returned", is_right, seen)
        self._check_model(stage)


async def _attack(agent: str, policy: str, options: RunKwargs) -> list[ProbeCheck]:
    report = await attack_agent(agent, policies=[policy], only=GROUPS, sample=1, options=options)
    (found,) = report.policies
    if found.refused:  # the program alone is not relied on for it
        return []
    checks = [*_cells(found)]
    if found.problem:
        checks.append(ProbeCheck(f"works under the policy {policy}", False, found.problem))
    return checks


def _cells(report: PolicyReport) -> Sequence[ProbeCheck]:
    checks: list[ProbeCheck] = []
    for cell in report.cells:
        effects = ", ".join(
            f"{tried.name}: {tried.seen}"
            for tried in report.tried
            if tried.cell == cell.cell and tried.outcome == "effect"
        )
        name = f"{report.policy}: {cell.cell}"
        row: ProbeRow = CAPABILITY.get(cell.cell, "")
        match cell.status:
            case "held":
                checks.append(ProbeCheck(name, True, "held", row))
            case "allowed":
                checks.append(ProbeCheck(name, True, "allowed, and works", row))
            case "broken":
                row = "shell rules" if cell.cell == "shell rules" else row
                checks.append(ProbeCheck(name, False, effects, row))
            case "unproven":
                checks.append(ProbeCheck(name, False, "allowed, and does not work"))
            case _:
                pass
    return checks


def main(argument: str) -> None:
    """The process of a probe."""
    request = msgspec.json.decode(argument, type=ProbeRequest)
    options: RunKwargs = {"program": request.program}
    probing = probe_agent(request.agent, options, part_seconds=request.part_seconds)
    try:
        checks = asyncio.run(probing)
    except ProbeTooSlow as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(checks))


if __name__ == "__main__":
    main(sys.argv[1])
