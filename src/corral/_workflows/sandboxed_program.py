"""The program of a drafted workflow: it runs in the sandbox, and its steps are checked outside.

Theory of operation
-------------------
``SandboxedProgram`` has the methods of ``Program``. It starts ``sandbox_child`` in the sandbox:
without a network, without a folder that can be written, without the user's files and environment.
One line of JSON goes in for the ends of steps, one line comes out for what the program does then.

What comes out is data of a program that may be hostile. ``StepChecks`` accepts only steps that a
drafted workflow can make: known kinds and fields, the agents and the numbers of its bounds, the
policies ``reads`` and ``edits``. Commands are run in the sandbox, whatever the program says. So
neither an error in ``syntax_rules`` nor one in Python's own isolation gives it more than its steps.

Crashes: the child ends with its parent. The engine starts another one for a run that goes on, which
gets the recorded ends again.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from corral._pipelines import node_kinds
from corral._pipelines.graph import Node
from corral._system.process.command import registry_for
from corral._system.process.process import Process, ProcessSpec
from corral._system.sandbox.box import Box, interpreter_folders
from corral._system.sandbox.sandbox import Sandbox, find_support
from corral._workflows.definition import check_drafted
from corral._workflows.drafted import Bounds, find_bounds
from corral._workflows.program import RunningProgram, load_program
from corral._workflows.program_turn import ProgramEnd, ProgramTurn, Step, StepEnd, StoredProgram
from corral._workflows.syntax_rules import POLICIES
from corral.errors import SandboxFailed
from corral.values import Json, as_object, decode_as

CHILD = "corral._workflows.sandbox_child"
LIMIT = 90.0
"""Seconds that the child may take from one step to the next. It has a smaller limit itself."""
LONGEST_LINE = 64 * 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}(\.[A-Za-z0-9_-]{1,80}){0,20}\.1", re.ASCII)
_THREAD = "internal.thread."
_ATTRS = {
    node_kinds.RUN_STEP.name: {"agent", "on_crash", "max_retries", "timeout", "policy"},
    node_kinds.GENERATE_STEP.name: {"model", "system_prompt", "reasoning_effort", "temperature",
                                    "max_tokens", "timeout", "max_retries"},
    node_kinds.COMMAND_STEP.name: {"timeout", "max_retries"},
}  # fmt: skip
_INPUTS = {
    node_kinds.RUN_STEP.name: {"prompt", "options", "worktree", "rounds", "output"},
    node_kinds.GENERATE_STEP.name: {"prompt", "output"},
    node_kinds.COMMAND_STEP.name: {"command", "cwd", "env", "check"},
}
_OPTIONS = {"policy", "timeout"}


class ChildStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first line that the child reads."""

    program: StoredProgram
    run_id: str
    limit: int
    """Bytes of memory."""


class NotAllowed(Exception):
    """The program did something that its bounds do not allow."""


class StepChecks:
    """Checks the steps of one program, one after another."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._ids: set[str] = set()
        self._runs = 0
        self._sessions: list[Json] = []
        """Of the agents that this program has run."""

    def take_ends(self, ends: Sequence[StepEnd]) -> None:
        for end in ends:
            session = as_object(end.value).get("session") if isinstance(end.value, dict) else None
            if session is not None:
                self._sessions.append(session)

    def check(self, turn: ProgramTurn) -> ProgramTurn:
        """The turn as it may be performed. Raises ``NotAllowed``."""
        return replace(turn, steps=[self._step(step) for step in turn.steps])

    def _step(self, step: Step) -> Step:
        if _ID.fullmatch(step.id) is None or step.id in self._ids:
            raise NotAllowed(f"a step has the invalid id {step.id[:100]!r}")
        self._ids.add(step.id)
        if len(self._ids) > self._bounds.steps:
            raise NotAllowed(f"it has more than {self._bounds.steps} steps")
        if (step.node is not None and step.node.id != step.name) or step.value is not None:
            raise NotAllowed(f"the step {step.name} is not valid")
        if step.worktrees or step.merges or step.chosen:
            raise NotAllowed(f"the step {step.name} belongs to branches with their own worktrees")
        if step.kind != "visit":
            return self._other_step(step)
        if step.node is None or step.question is not None:
            raise NotAllowed(f"the step {step.name} has no node")
        return replace(step, node=self._node(step, step.node))

    def _other_step(self, step: Step) -> Step:
        question = step.question
        if (step.kind == "ask") != (question is not None) or step.inputs or step.seconds < 0:
            raise NotAllowed(f"the step {step.name} is not valid")
        if question is not None and (question.id, question.node) != (step.id, step.name):
            raise NotAllowed(f"the question of the step {step.name} is not its own")
        if step.node is not None and step.node.attrs.keys() - {"type", "label"}:
            raise NotAllowed(f"the step {step.name} has attributes that are not allowed")
        return step

    def _node(self, step: Step, node: Node) -> Node:
        kind = node.text("type")
        if kind not in _ATTRS:
            raise NotAllowed(f"the step {step.name} is of the kind {kind[:100]!r}")
        more = node.attrs.keys() - _ATTRS[kind] - {"type", "label"}
        inputs = {key for key in step.inputs if not key.startswith(_THREAD)}
        sessions = [step.inputs[key] for key in step.inputs if key.startswith(_THREAD)]
        options = as_object(step.inputs.get("options") or {})
        more |= (inputs - _INPUTS[kind]) | (options.keys() - _OPTIONS)
        if more or any(session not in self._sessions for session in sessions):
            names = ", ".join(sorted(more)) or "the session of another run"
            raise NotAllowed(f"the step {step.name} uses {names}")
        if kind == node_kinds.COMMAND_STEP.name:
            if step.inputs.get("cwd") or step.inputs.get("env"):
                raise NotAllowed(f"the command {step.name} has a folder or variables")
            return Node(id=node.id, attrs={**node.attrs, "sandbox": "require"})
        self._runs += 1 + _retries(step, node)
        if self._runs > self._bounds.runs:
            raise NotAllowed(f"it runs agents and models more than {self._bounds.runs} times")
        agent = node.text("agent" if kind == node_kinds.RUN_STEP.name else "model")
        if agent not in self._bounds.agents:
            allowed = ", ".join(self._bounds.agents)
            raise NotAllowed(f"the step {step.name} uses {agent[:100]!r}; allowed: {allowed}")
        for given in (node.attrs.get("policy"), options.get("policy")):
            if given is not None and given not in POLICIES:
                raise NotAllowed(f"the step {step.name} has a policy that is not reads or edits")
        return Node(id=node.id, attrs=node.attrs)


def _retries(step: Step, node: Node) -> int:
    """Further attempts, which count as runs."""
    retries = node.attrs.get("max_retries", 0)
    if not isinstance(retries, int) or retries < 0:
        raise NotAllowed(f"the step {step.name} has an invalid max_retries")
    return retries


MEMORY = 1024**3
"""Bytes of memory of the child."""


class SandboxedProgram:
    """The program of a drafted workflow."""

    def __init__(self, stored: StoredProgram, bounds: Bounds, run_id: str) -> None:
        self._start = ChildStart(program=replace(stored, known={}), run_id=run_id, limit=MEMORY)
        self._checks = StepChecks(bounds)
        self._process: Process | None = None
        self._received = bytearray()
        self._is_over = False

    async def advance(self, ends: Sequence[StepEnd]) -> ProgramTurn:
        """As ``Program.advance``. If the program does what is not allowed, it has failed."""
        if self._is_over:
            return ProgramTurn()
        self._checks.take_ends(ends)
        try:
            async with asyncio.timeout(LIMIT):
                turn = self._checks.check(await self._ask(ends))
        except TimeoutError:
            return await self._failed("its code did not come to a step in time")
        except NotAllowed as error:
            return await self._failed(f"{error}, which its bounds do not allow")
        except (msgspec.DecodeError, EOFError) as error:
            return await self._failed(str(error))
        self._is_over = turn.end is not None
        return turn

    async def close(self) -> None:
        self._is_over = True
        if self._process is not None:
            await self._process.end(grace=0.0)

    async def _failed(self, reason: str) -> ProgramTurn:
        await self.close()
        name = self._start.program.name
        return ProgramTurn(
            end=ProgramEnd(ok=False, reason=f"the drafted workflow {name}: {reason}")
        )

    async def _ask(self, ends: Sequence[StepEnd]) -> ProgramTurn:
        process = self._process
        if process is None:
            process = self._process = await Process.start(
                ProcessSpec(
                    argv=(sys.executable, "-I", "-B", "-m", CHILD),
                    cwd="/",
                    env={"LANG": "C.UTF-8"},
                    keep_stdin_open=True,
                    registry=registry_for("workflow"),
                    sandbox=sandbox(),
                )
            )
            process.write(msgspec.json.encode(self._start) + b"\n")
        process.write(msgspec.json.encode([*ends]) + b"\n")
        while b"\n" not in self._received:
            data = await process.read()
            if not data:
                lines = process.stderr.strip().splitlines()
                last = f": {lines[-1][:500]}" if lines else ""
                raise EOFError(f"its process has ended{last}")
            self._received += data
            if len(self._received) > LONGEST_LINE:
                raise EOFError("it does too much at once")
        line, _, self._received = self._received.partition(b"\n")
        return decode_as(bytes(line), ProgramTurn)


async def load_any_program(stored: StoredProgram, run_id: str) -> RunningProgram:
    """The program of a run, in the sandbox if it is drafted. Raises ``ConfigError`` if its file
    cannot be loaded, and ``SandboxFailed``."""
    bounds = find_bounds(stored.text)
    if bounds is None:
        return await load_program(stored, run_id)
    check_drafted(stored.path, stored.text)
    sandbox()
    return SandboxedProgram(stored, bounds, run_id)


def sandbox() -> Sandbox:
    """Raises ``SandboxFailed`` if this machine has none."""
    support = find_support()
    if not support.is_complete:
        raise SandboxFailed(
            f"a drafted workflow runs in the sandbox, and this machine has none: {support.reason}",
            hint=f"{support.hint} Or read the file, and remove its line `# corral: drafted …`.",
        )
    return Sandbox(support=support, box=Box(cwd="/", readable=interpreter_folders()))
