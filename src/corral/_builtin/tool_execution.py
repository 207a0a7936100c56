"""Execute the tool calls of one answer: find the tool, check arguments and policy, run, truncate.

The model gets the truncated output, the event the complete one. A call that cannot be executed has
an error as its result; only a cancellation or the end of the run raises.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from corral._agents.corral import TOOLS
from corral._builtin.tools.shell import GAP
from corral._builtin.tools.tool import BuiltinTool, OutputLimits, truncate
from corral._builtin.tools.workspace import ToolError, Workspace
from corral._protocol.ndjson import RawEvent
from corral._sessions.permissions import PermissionBroker
from corral._sessions.tools.hooks import Deny, Edit, HookAnswer, ToolRequest, maybe_await
from corral._sessions.tools.tools import Tools
from corral._system.clock import Stopwatch
from corral._system.environment import SecretRedactor, StreamRedactor
from corral.errors import Interrupted
from corral.events import (
    FileChange,
    PermissionDecision,
    PermissionRequest,
    ToolKind,
    ToolOutput,
    ToolStatus,
    ToolUse,
)
from corral.events import ToolResult as ToolResultEvent
from corral.messages import Image, ToolCall, ToolResult
from corral.policy import Action
from corral.values import Json

Emit = Callable[[RawEvent], None]

INTERRUPTED = "a person ended the run"
OWN_LIMITS = OutputLimits(30_000, 500)
"""Limits for the output of a caller's function."""
TITLE = 120
"""Characters of a call's title in its event. A permission request has the complete title."""
current_call: contextvars.ContextVar[str] = contextvars.ContextVar("current_call", default="")
"""The id of the call that runs, for a tool that must know it."""
CHANGING = frozenset({"edit", "delete", "move", "execute", "other"})
"""Kinds that run one after another, in the order they were called."""


class CallOutcome(msgspec.Struct, frozen=True):
    """How a call ended: the text for the event and the text for the model."""

    status: ToolStatus
    text: str
    shown: str
    images: tuple[Image, ...] = ()


class ToolExecutor:
    """The tools of one session, behind its policy."""

    def __init__(
        self,
        tools: dict[str, BuiltinTool[Any]],
        own: Tools,
        servers: Tools,
        workspace: Workspace,
        broker: PermissionBroker,
        redactor: SecretRedactor,
        *,
        granted: set[tuple[str, str | None]],
    ) -> None:
        """``own`` are the caller's functions, ``servers`` the tools of MCP servers. ``granted``
        collects what a person allowed for the session."""
        self.tools = tools
        self.own = own
        self.servers = servers
        self._workspace = workspace
        self._broker = broker
        self._redactor = redactor
        self._in_order = asyncio.Lock()
        self._is_interrupted = False
        """A person ended the run: calls that wait for the lock must not start."""
        self._granted = granted
        self.busy: int = 0
        """Calls in progress. While there are any, silence is not idleness: each call and each
        permission request has its own deadline."""

    async def execute(self, calls: tuple[ToolCall, ...], emit: Emit) -> tuple[ToolResult, ...]:
        """Execute the calls concurrently, those that change something one after another; results
        in the order of the calls. Raises ``Interrupted`` if a person ends the run; the other
        calls are cancelled."""
        for call in calls:
            tool = self.tools.get(call.name)
            title = self._redactor.clean_text(tool.title(call.arguments)) if tool else None
            if title is not None and len(title) > TITLE:
                title = title[: TITLE - 1] + "…"
            emit(
                ToolUse(
                    call.id,
                    call.name,
                    kind=self._kind(call.name),
                    title=title,
                    input=self._clean(call.arguments if call.raw is None else call.raw),
                    paths=tool.paths(call.arguments) if tool else (),
                )
            )
        self.busy += 1
        self._is_interrupted = False
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._result(call, emit)) for call in calls]
        except ExceptionGroup as failed:
            interrupted = failed.subgroup(Interrupted)
            if interrupted is None:
                raise
            raise Interrupted(INTERRUPTED) from interrupted
        finally:
            self.busy -= 1
        return tuple(task.result() for task in tasks)

    def _clean(self, value: Json) -> Json:
        cleaned: Json = msgspec.json.decode(self._redactor.clean(msgspec.json.encode(value)))
        return cleaned

    def _kind(self, name: str) -> ToolKind:
        if name in self.tools:
            return self.tools[name].kind
        return "mcp" if name in self.own.by_name or name in self.servers.by_name else "other"

    async def _result(self, call: ToolCall, emit: Emit) -> ToolResult:
        stopwatch = Stopwatch()
        current_call.set(call.id)  # each call runs in its own task
        if self._kind(call.name) in CHANGING:
            async with self._in_order:
                if self._is_interrupted:
                    raise Interrupted(INTERRUPTED)
                done = await self._execute_safely(call, emit)
        else:
            done = await self._execute_safely(call, emit)
        text = self._redactor.clean_text(done.text)
        ok = done.status == "success"
        emit(
            ToolResultEvent(
                call.id,
                done.status,
                name=call.name,
                output=text if ok else None,
                error=None if ok else text,
                duration_ms=round(stopwatch.seconds * 1000),
            )
        )
        shown = self._redactor.clean_text(done.shown)
        return ToolResult(call.id, shown, is_error=not ok, name=call.name, images=done.images)

    async def _execute_safely(self, call: ToolCall, emit: Emit) -> CallOutcome:
        try:
            if call.name in TOOLS and call.name not in self.tools:
                ruled = self._broker.policy_answer(Action(call.name, TOOLS[call.name]))
                if ruled is not None and ruled.decision == "deny":
                    hidden = f"not allowed: {ruled.rule}"
                    return CallOutcome("denied", hidden, hidden)
            wrong = self._invalid_call(call)
            if wrong is not None:
                return CallOutcome("error", wrong, wrong)
            decided = await self._ask_caller(call)
            if isinstance(decided, CallOutcome):
                return decided
            call = decided
            refusal = await self._denial(call, emit)
            if refusal is not None:
                return CallOutcome("denied", refusal, refusal)
            if not self.own.agent_hooks:
                return await self._run(call, emit)
            return await self._run_with_hooks(call, emit)
        except Interrupted:
            raise
        except Exception as error:  # an error of a tool must not end the run
            message = f"{call.name} failed: {type(error).__name__}: {error}"
            return CallOutcome("error", message, message)

    async def _ask_caller(self, call: ToolCall) -> ToolCall | CallOutcome:
        """The call, as ``on_tool_call`` edited it; or the outcome if it is not made. A call that
        the policy denies, and a call of the caller's own function, is returned unchanged."""
        hook, tool = self._broker.hook, self.tools.get(call.name)
        if hook is None or call.name in self.own.by_name:
            return call
        command = tool.command(call.arguments) if tool else None
        kind = self._kind(call.name)
        ruled = self._broker.policy_answer(Action(call.name, kind, command))
        if ruled is not None and not ruled.is_allowed:
            return call
        request = ToolRequest(
            call.id,
            call.name,
            call.arguments,
            kind=kind,
            command=command,
            paths=tool.paths(call.arguments) if tool else (),
            title=tool.title(call.arguments) if tool else call.name,
        )
        verdict = await hook.decide(request)
        if isinstance(verdict, Deny):
            reason = f"denied: {verdict.reason}"
            return CallOutcome("denied", reason, reason)
        if not isinstance(verdict, Edit):
            return call
        call = replace(call, arguments=verdict.arguments)
        wrong = self._invalid_call(call)
        return call if wrong is None else CallOutcome("error", wrong, wrong)

    async def _run_with_hooks(self, call: ToolCall, emit: Emit) -> CallOutcome:
        """Run the call between the ``agent_hooks``. A hook that raises stops it."""
        hook_call = ToolRequest(call.id, call.name, call.arguments)
        done: CallOutcome | None = None
        for hook in self.own.agent_hooks:
            verdict = await maybe_await(hook.before(hook_call)) if hook.before else None
            if isinstance(verdict, Deny):
                reason = f"denied: {verdict.reason}"
                done = CallOutcome("denied", reason, reason)
                break
            if isinstance(verdict, Edit):
                hook_call = ToolRequest(call.id, call.name, verdict.arguments)
                call = replace(call, arguments=verdict.arguments)
                if (wrong := self._invalid_call(call)) is not None:
                    return CallOutcome("error", wrong, wrong)
                if (refusal := await self._denial(call, emit)) is not None:
                    return CallOutcome("denied", refusal, refusal)
        if done is None:
            done = await self._run(call, emit)
        for hook in self.own.agent_hooks:
            answer = HookAnswer(done.shown, done.status)
            other = await maybe_await(hook.after(hook_call, answer)) if hook.after else None
            if other is not None:
                done = CallOutcome(other.status, other.text, other.text, other.images)
        return done

    async def _run(self, call: ToolCall, emit: Emit) -> CallOutcome:
        tool = self.tools.get(call.name)
        if tool is None:
            functions = self.servers if call.name in self.servers.by_name else self.own
            answer = await functions.call(call.name, call.arguments, call_id=call.id, quiet=True)
            text = self._redactor.clean_text(answer.text)
            return CallOutcome(answer.status, text, truncate(text, OWN_LIMITS), answer.images)

        pieces = StreamRedactor(self._redactor)

        def put_out(piece: str) -> None:
            if message := pieces.add(piece):
                emit(ToolOutput(call.id, message))

        outcome = await tool.call(self._workspace, call.arguments, put_out)
        if rest := pieces.finish():
            emit(ToolOutput(call.id, rest))
        for effect in outcome.effects:
            if effect.source is not None:
                emit(FileChange(effect.source, "deleted", call_id=call.id))
            emit(
                FileChange(
                    effect.path,
                    effect.kind,
                    call_id=call.id,
                    lines_added=effect.lines_added,
                    lines_removed=effect.lines_removed,
                )
            )
        text, shown = outcome.text, outcome.shown
        if gap := GAP.search(text):
            # A secret may be cut where output was dropped.
            head = self._redactor.clean_text_part(text[: gap.start()], end_cut=True)
            tail = self._redactor.clean_text_part(text[gap.end() :], begin_cut=True)
            text = head + gap[0] + tail
        else:
            text = self._redactor.clean_text(text)
        if shown != outcome.text and shown == truncate(outcome.text, tool.limits):
            shown = truncate(text, tool.limits)  # the cut may have split a secret
        return CallOutcome("error" if outcome.is_error else "success", text, shown)

    def _invalid_call(self, call: ToolCall) -> str | None:
        """Why the call is invalid; None if it is valid."""
        known = (*self.tools, *self.own.by_name, *self.servers.by_name)
        if call.name not in known:
            return f"there is no tool {call.name!r}; known tools: {', '.join(known)}"
        if call.raw is not None:
            return f"the arguments of {call.name} are not a JSON object: {call.raw[:200]}"
        if tool := self.tools.get(call.name):
            try:
                tool.fit(call.arguments)
            except ToolError as error:
                return str(error)
        return None

    async def _denial(self, call: ToolCall, emit: Emit) -> str | None:
        """Why the call is denied; None if it is allowed."""
        tool = self.tools.get(call.name)
        command = tool.command(call.arguments) if tool else None
        kind = self._kind(call.name)
        own = call.name in self.own.by_name
        answer = self._broker.policy_answer(Action(call.name, kind, command, own=own))
        if answer is None and (call.name, command) in self._granted:
            return None
        if answer is None:
            title = self._redactor.clean_text(tool.title(call.arguments) if tool else call.name)
            request = PermissionRequest(
                call.id,
                call_id=call.id,
                kind=kind,
                title=title,
                input=self._clean(call.arguments),
            )
            emit(request)
            answer = await self._broker.ask_person(request)
            emit(
                PermissionDecision(
                    call.id, answer.decision, answer.by, call_id=call.id, rule=answer.rule
                )
            )
            if answer.decision == "allow_session":
                self._granted.add((call.name, command))
        if answer.decision == "cancel":
            self._is_interrupted = True
            raise Interrupted(INTERRUPTED)
        if answer.decision == "deny":
            return f"not allowed: {answer.rule}"
        return None
