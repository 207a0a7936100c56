"""One call of a tool: look up, check the arguments, ask the policy, run, truncate.

The model gets the truncated output, the event the whole. What cannot be run is
an error *result*, never an exception; only a cancellation passes through.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from corral.agents.corral import TOOLS
from corral.builtin.secret_filter import SecretFilter
from corral.builtin.tools.shell import GAP
from corral.builtin.tools.tool import BuiltinTool
from corral.builtin.tools.truncate import Limits, truncate
from corral.builtin.tools.workspace import Workspace
from corral.errors import Interrupted
from corral.events import (
    FileChange,
    Json,
    PermissionDecision,
    PermissionRequest,
    ToolKind,
    ToolOutput,
    ToolStatus,
    ToolUse,
)
from corral.events import ToolResult as ToolResultEvent
from corral.messages import ToolCall, ToolResult
from corral.policy import Action
from corral.protocol.ndjson import RawEvent
from corral.sessions.permissions import Broker
from corral.sessions.tools.hooks import Call, Change, Deny, HookAnswer
from corral.sessions.tools.tools import Tools, maybe

Emit = Callable[[RawEvent], None]

ENDED = "a person ended the run"
OWN = Limits(30_000, 500)
"""Of what a function of the caller's returns."""
TITLE = 120
"""Characters of a call's title in its event. A question has the whole of it."""
current_call: contextvars.ContextVar[str] = contextvars.ContextVar("current_call", default="")
"""The id of the call that runs, for a tool that must know it."""
CHANGING = frozenset({"edit", "delete", "move", "execute", "other"})
"""Kinds that run one after another, in the order they were called."""


class Done(msgspec.Struct, frozen=True):
    """How a call ended: the event's side, and the model's."""

    status: ToolStatus
    text: str
    shown: str


class ToolExecutor:
    """The tools of one session, behind its policy."""

    def __init__(
        self,
        tools: dict[str, BuiltinTool],
        own: Tools,
        workspace: Workspace,
        broker: Broker,
        eraser: SecretFilter,
        *,
        granted: set[tuple[str, str | None]] | None = None,
    ) -> None:
        """``granted`` is what a person allowed for the whole session; it grows."""
        self.tools = tools
        self.own = own
        self._workspace = workspace
        self._broker = broker
        self._eraser = eraser
        self._in_order = asyncio.Lock()
        self._ended = False
        """A person has ended the run: who waits for its turn must not get one."""
        self._granted: set[tuple[str, str | None]] = set() if granted is None else granted
        self.busy = 0
        """Calls under way: while there are any, silence is not idleness, for each has a deadline
        of its own, and so has a question to a person."""

    async def results(self, calls: tuple[ToolCall, ...], emit: Emit) -> tuple[ToolResult, ...]:
        """All at once, those that change something one after another; in the order of the
        calls. Raises ``Interrupted`` where a person ends the run; the other calls end too."""
        for call in calls:
            emit(self._use(call))
        self.busy += 1
        self._ended = False
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._result(call, emit)) for call in calls]
        except ExceptionGroup as failed:
            ended = failed.subgroup(Interrupted)
            if ended is None:
                raise
            raise Interrupted(ENDED) from ended
        finally:
            self.busy -= 1
        return tuple(task.result() for task in tasks)

    def _use(self, call: ToolCall) -> ToolUse:
        tool = self.tools.get(call.name)
        given = self._clean(call.arguments if call.raw is None else call.raw)
        if tool is None:
            return ToolUse(call.id, call.name, kind=self._kind(call.name), input=given)
        return ToolUse(
            call.id,
            call.name,
            kind=tool.kind,
            title=_short(self._eraser.clean_text(tool.title(call.arguments))),
            input=given,
            paths=tool.paths(call.arguments),
        )

    def _clean(self, given: Json) -> Json:
        cleaned: Json = msgspec.json.decode(self._eraser.clean(msgspec.json.encode(given)))
        return cleaned

    def _kind(self, name: str) -> ToolKind:
        if name in self.tools:
            return self.tools[name].kind
        return "mcp" if name in self.own.by_name else "other"

    async def _result(self, call: ToolCall, emit: Emit) -> ToolResult:
        begin = time.monotonic()
        current_call.set(call.id)  # each call runs in a task of its own
        if self._kind(call.name) in CHANGING:
            async with self._in_order:
                if self._ended:
                    raise Interrupted(ENDED)
                done = await self._tried(call, emit)
        else:
            done = await self._tried(call, emit)
        text = self._eraser.clean_text(done.text)
        ok = done.status == "success"
        emit(
            ToolResultEvent(
                call.id,
                done.status,
                name=call.name,
                output=text if ok else None,
                error=None if ok else text,
                duration_ms=round((time.monotonic() - begin) * 1000),
            )
        )
        shown = self._eraser.clean_text(done.shown)
        return ToolResult(call.id, shown, is_error=not ok, name=call.name)

    async def _tried(self, call: ToolCall, emit: Emit) -> Done:
        try:
            return await self._done(call, emit)
        except Interrupted:
            raise
        except Exception as error:  # a fault of the tool's must not cost the whole run
            said = f"{call.name} failed: {type(error).__name__}: {error}"
            return Done("error", said, said)

    async def _done(self, call: ToolCall, emit: Emit) -> Done:
        if call.name in TOOLS and call.name not in self.tools:
            ruled = self._broker.at_once(Action(call.name, TOOLS[call.name]))
            if ruled is not None and ruled.decision == "deny":
                hidden = f"not allowed: {ruled.rule}"
                return Done("denied", hidden, hidden)
        wrong = self._wrong(call)
        if wrong is not None:
            return Done("error", wrong, wrong)
        refusal = await self._refusal(call, emit)
        if refusal is not None:
            return Done("denied", refusal, refusal)
        if not self.own.agent_hooks:
            return await self._run(call, emit)
        return await self._watched(call, emit)

    async def _watched(self, call: ToolCall, emit: Emit) -> Done:
        """The call between the hooks of every call. One that raises stops it."""
        seen = Call(call.id, call.name, call.arguments)
        done: Done | None = None
        for hook in self.own.agent_hooks:
            verdict = await maybe(hook.before(seen)) if hook.before else None
            if isinstance(verdict, Deny):
                reason = f"denied: {verdict.reason}"
                done = Done("denied", reason, reason)
                break
            if isinstance(verdict, Change):
                seen = Call(call.id, call.name, verdict.arguments)
                call = replace(call, arguments=verdict.arguments)
                if (wrong := self._wrong(call)) is not None:
                    return Done("error", wrong, wrong)
                if (refusal := await self._refusal(call, emit)) is not None:
                    return Done("denied", refusal, refusal)
        if done is None:
            done = await self._run(call, emit)
        for hook in self.own.agent_hooks:
            answer = HookAnswer(done.shown, done.status)
            other = await maybe(hook.after(seen, answer)) if hook.after else None
            if other is not None:
                done = Done(other.status, other.text, other.text)
        return done

    async def _run(self, call: ToolCall, emit: Emit) -> Done:
        tool = self.tools.get(call.name)
        if tool is None:
            answer = await self.own.call(call.name, call.arguments, call_id=call.id, quiet=True)
            text = self._eraser.clean_text(answer.text)
            return Done(answer.status, text, truncate(text, OWN))

        pieces = self._eraser.pieces()

        def put_out(piece: str) -> None:
            if said := pieces.add(piece):
                emit(ToolOutput(call.id, said))

        outcome = await tool.call(self._workspace, call.arguments, put_out)
        if rest := pieces.rest():
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
        text, shown = self._redacted(outcome.text), outcome.shown
        if shown != outcome.text and shown == truncate(outcome.text, tool.limits):
            shown = truncate(text, tool.limits)  # the cut may have gone through a secret
        return Done("error" if outcome.is_error else "success", text, shown)

    def _redacted(self, text: str) -> str:
        if (gap := GAP.search(text)) is None:
            return self._eraser.clean_text(text)
        head = self._eraser.clean_text_part(text[: gap.start()], end_cut=True)
        return head + gap[0] + self._eraser.clean_text_part(text[gap.end() :], begin_cut=True)

    def _wrong(self, call: ToolCall) -> str | None:
        """What keeps the call from being one."""
        if call.name not in self.tools and call.name not in self.own.by_name:
            known = ", ".join((*self.tools, *self.own.by_name))
            return f"there is no tool {call.name!r}; known are: {known}"
        if call.raw is not None:
            return f"the arguments of {call.name} are no JSON object: {call.raw[:200]}"
        tool = self.tools.get(call.name)
        complaints = tool.complaints(call.arguments) if tool else ()
        if not complaints:
            return None
        listed = "".join(f"\n- {complaint}" for complaint in complaints)
        return f"the arguments do not fit {call.name}:{listed}"

    async def _refusal(self, call: ToolCall, emit: Emit) -> str | None:
        """Why the call may not be made; None where it may."""
        tool = self.tools.get(call.name)
        command = tool.command(call.arguments) if tool else None
        kind = self._kind(call.name)
        answer = self._broker.at_once(Action(call.name, kind, command, own=tool is None))
        if answer is None and (call.name, command) in self._granted:
            return None
        if answer is None:
            title = self._eraser.clean_text(tool.title(call.arguments) if tool else call.name)
            given = self._clean(call.arguments)
            request = PermissionRequest(
                call.id, call_id=call.id, kind=kind, title=title, input=given
            )
            emit(request)
            answer = await self._broker.put(request)
            emit(
                PermissionDecision(
                    call.id, answer.decision, answer.by, call_id=call.id, rule=answer.rule
                )
            )
            if answer.decision == "allow_session":
                self._granted.add((call.name, command))
        if answer.decision == "cancel":
            self._ended = True
            raise Interrupted(ENDED)
        if answer.decision == "deny":
            return f"not allowed: {answer.rule}"
        return None


def _short(title: str) -> str:
    return title if len(title) <= TITLE else title[: TITLE - 1] + "…"
