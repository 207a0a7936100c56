"""What ``copilot --output-format json`` writes, as events; and its failures, as one error each.

Text comes in pieces and once more complete. Token counts come in a file that Copilot writes before
it exits (``read_report``), and nowhere else.
"""

from __future__ import annotations

import re

import msgspec

from corral import errors
from corral._agents.copilot.controls import OFFLINE, TOOLS
from corral._agents.shared.errors import AgentErrors
from corral._protocol.common_events import build_tool_use, retrying, unavailable_message
from corral._protocol.ndjson import RawEvent, Translate, TurnEnd, frame_types, union_of
from corral.errors import CorralError
from corral.events import (
    FileChange,
    FileKind,
    Init,
    Log,
    Text,
    Thinking,
    ToolKind,
    ToolOutput,
    ToolResult,
    ToolStatus,
    ToolUse,
)
from corral.values import Json, JsonObject, Usage, decode_as

_EDITS: dict[str, FileKind] = {"create": "created", "delete": "deleted"}
_MISSING = "does not exist."


class FileEdit(msgspec.Struct, frozen=True):
    path: str = ""
    kind: str = ""


class CopilotOutcome(msgspec.Struct, frozen=True):
    """A tool's output or error."""

    content: str | None = None
    message: str | None = None
    code: str | None = None


class Data(msgspec.Struct, frozen=True, rename="camel"):
    message_id: str = ""
    reasoning_id: str = ""
    delta_content: str = ""
    content: str = ""
    model: str | None = None
    parent_tool_call_id: str | None = None
    tool_call_id: str = ""
    tool_name: str = ""
    arguments: Json = None
    mcp_server_name: str | None = None
    text: str = ""
    success: bool = False
    result: CopilotOutcome = CopilotOutcome()
    error: CopilotOutcome = CopilotOutcome()
    file_edits: tuple[FileEdit, ...] = ()
    info_type: str = ""
    error_type: str = ""
    status_code: int | None = None
    message: str = ""
    reason: str = ""


class Nothing(msgspec.Struct, frozen=True): ...


class CopilotFrame(msgspec.Struct, frozen=True, rename="camel"):
    data: Data = Data()
    agent_id: str | None = None
    """Set in the frames of a sub-agent."""


class CopilotResult(msgspec.Struct, frozen=True, tag_field="type", tag="result", rename="camel"):
    session_id: str | None = None
    exit_code: int = -1


_KNOWN = (
    "abort",
    "assistant.message",
    "assistant.message_delta",
    "assistant.reasoning",
    "assistant.reasoning_delta",
    "assistant.turn_retry",
    "session.error",
    "session.info",
    "session.tools_updated",
    "session.warning",
    "tool.execution_complete",
    "tool.execution_start",
    "tool.shell_output",
)
_SILENT = (
    "agent.interrupted",
    "assistant.idle",
    "assistant.intent",
    "assistant.message_start",
    "assistant.tool_call_delta",
    "assistant.turn_end",
    "assistant.turn_start",
    "model.call_failure",
    "model.call_final_result",
    "model.call_finished",
    "model.call_start",
    "session.background_tasks_changed",
    "session.mcp_server_status_changed",
    "session.mcp_server_tools_loaded",
    "session.mcp_servers_loaded",
    "session.skills_loaded",
    "subagent.completed",
    "subagent.configured",
    "subagent.started",
    "tool.execution_partial_result",
    "user.message",
)
"""Known frames without new information. A frame in neither list becomes ``unknown``."""

_NAMES = frame_types(CopilotFrame, _KNOWN)
Frames: object = union_of([CopilotResult], _NAMES, frame_types(Nothing, _SILENT))


def translator() -> Translate:
    return CopilotTurn().translate


class CopilotTurn:
    """The frames of one run as events. Remembers open calls, the failure and the model."""

    def __init__(self) -> None:
        self._started = False
        self._streamed: set[str] = set()
        """Messages whose text came in pieces."""
        self._calls: dict[tuple[str | None, str], ToolUse] = {}
        self._failure: Data | None = None
        self._aborted = False
        self._model: str | None = None

    def translate(self, frames: list[CopilotResult | CopilotFrame | Nothing]) -> list[RawEvent]:
        items: list[RawEvent] = []
        for frame in frames:
            if isinstance(frame, CopilotResult):
                items.append(self._finish(frame))
            elif isinstance(frame, CopilotFrame):
                self._take(_NAMES[type(frame)], frame, items)
        return items

    def _take(self, name: str, frame: CopilotFrame, items: list[RawEvent]) -> None:
        data = frame.data
        if name == "session.tools_updated" and not self._started:
            self._started = True
            items.append(Init(model=data.model))
        elif name.startswith("assistant."):
            self._say(name, data, items)
        elif name == "tool.shell_output":
            items.append(ToolOutput(data.tool_call_id, data.text))
        elif name == "tool.execution_start":
            use = tool_use(data)
            self._calls[frame.agent_id, data.tool_call_id] = use
            items.append(use)
        elif name == "tool.execution_complete":
            items += tool_end(data, self._calls.pop((frame.agent_id, data.tool_call_id), None))
        elif name == "session.error":
            self._failure = data
        elif name == "session.info" and data.info_type in ("model_retry", "file_created"):
            pass  # reported by assistant.turn_retry and by the tool
        elif name in ("session.info", "session.warning"):
            items.append(Log(data.message, level=None if name == "session.info" else "warning"))
        elif name == "abort":
            self._aborted = True

    def _say(self, name: str, data: Data, items: list[RawEvent]) -> None:
        parent = data.parent_tool_call_id
        if name == "assistant.turn_retry":
            items.append(retrying(f"a call of the model failed ({data.reason}) and is tried again"))
            return
        if name == "assistant.message" and parent is None:
            self._model = data.model or self._model
        thinks = "reasoning" in name
        mine = data.reasoning_id if thinks else data.message_id
        if name.endswith("_delta"):
            self._streamed.add(mine)
        text = data.delta_content or ("" if mine in self._streamed else data.content)
        if not text:
            return
        if thinks:
            items.append(Thinking(text, parent=parent))
        else:
            items.append(text if parent is None else Text(text, parent=parent))

    def _finish(self, frame: CopilotResult) -> TurnEnd:
        failure = self._failure
        if failure is not None:
            status = failure.status_code
            return TurnEnd(
                ok=False,
                model=self._model,
                kind=failure.error_type if status is None else str(status),
                message=failure.message,
            )
        if self._aborted:
            return TurnEnd(ok=False, stop_reason="aborted", model=self._model, kind="aborted")
        ok = frame.exit_code == 0
        return TurnEnd(ok=ok, model=self._model, kind=None if ok else f"exit {frame.exit_code}")


def tool_use(data: Data) -> ToolUse:
    name, parent = data.tool_name, data.parent_tool_call_id
    kind: ToolKind = "mcp" if data.mcp_server_name else kind_of(name)
    return build_tool_use(data.tool_call_id, name, data.arguments, kind=kind, parent=parent)


def kind_of(name: str) -> ToolKind:
    """The kind of a tool, as a hook names it. Tools of servers are named ``server-tool``."""
    return TOOLS.get(name.lower()) or ("mcp" if "-" in name else "other")


def hook_denial(reason: str) -> JsonObject:
    """The answer of a hook that denies a call."""
    return {"permissionDecision": "deny", "permissionDecisionReason": reason}


def tool_end(data: Data, use: ToolUse | None) -> list[RawEvent]:
    call_id, message, parent = data.tool_call_id, data.error.message or "", data.parent_tool_call_id
    if data.success:
        end = ToolResult(call_id, "success", output=data.result.content, parent=parent)
        changes = (
            FileChange(edit.path, _EDITS.get(edit.kind, "modified"), call_id=call_id)
            for edit in data.file_edits
        )
        # Changes come first, so that they need not be inferred from the tool's kind.
        return [*changes, end]
    # A tool that neither Copilot nor a server has is a mistake of the model, not a denial.
    known = use is not None and (use.name.lower() in TOOLS or use.kind == "mcp")
    unavailable = known and message.endswith(_MISSING)
    status: ToolStatus = "denied" if unavailable or data.error.code == "denied" else "error"
    if unavailable and use is not None:
        message = unavailable_message(use.name) + (f"; {OFFLINE}" if use.kind == "fetch" else "")
    return [ToolResult(call_id, status, error=message or None, parent=parent)]


class CopilotTokens(msgspec.Struct, frozen=True, rename="camel"):
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class Metrics(msgspec.Struct, frozen=True):
    usage: CopilotTokens = CopilotTokens()


class UsageFile(msgspec.Struct, frozen=True, rename="camel"):
    model_metrics: dict[str, Metrics] = {}


def read_report(content: bytes, finish: TurnEnd) -> TurnEnd:
    """The end of the turn with the token counts from the file."""
    try:
        metrics = decode_as(content, UsageFile).model_metrics
    except msgspec.MsgspecError:
        return finish
    by_model: dict[str, Usage] = {}
    for name, model in metrics.items():
        tokens = model.usage
        by_model[name] = Usage(
            input=tokens.input_tokens,
            output=tokens.output_tokens,
            reasoning=tokens.reasoning_tokens,
            cache_read=tokens.cache_read_tokens,
            cache_write=tokens.cache_write_tokens,
            coverage="complete",
        )
    usage = sum(by_model.values(), Usage())
    return msgspec.structs.replace(finish, usage=usage, usage_by_model=by_model)


KEY_HINT = (
    "Set COPILOT_PROVIDER_BASE_URL and COPILOT_PROVIDER_API_KEY for a provider of your own, or"
    " COPILOT_GITHUB_TOKEN for GitHub's."
)
_SIGNS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("authentication failed", "no authentication", "(http 401)", "error: 401"), 401),
    (("rate limit", "(http 429)", "error: 429", "too many requests"), 429),
    (("not found on provider", "(http 404)"), 404),
    (("context length", "context window", "prompt is too long", "too many tokens"), 413),
    (("quota", "(http 402)", "error: 402", "payment required"), 402),
    (("(http 403)", "error: 403"), 403),
    (("error: 5", "(http 5", "server error", "server had an error", "overloaded"), 500),
)


def _failed(kind: str, message: str) -> CorralError:
    if kind == "aborted":
        return errors.Interrupted("Copilot was stopped")
    if message.startswith("No response was returned"):
        return ERRORS.make(errors.EmptyAnswer, message)
    low = message.lower()
    status = int(kind) if kind.isdecimal() else 0
    if status in (0, 400):  # the text says more
        numbered = re.match(r"(?:error: )?([45]\d\d) ", low)
        named = (status for signs, status in _SIGNS if any(sign in low for sign in signs))
        status = int(numbered[1]) if numbered else next(named, status)
    if not status and any(sign in low for sign in ("connect", "network", "socket", "enotfound")):
        return ERRORS.make(errors.NetworkFailed, message)
    return ERRORS.from_status(message, status)


ERRORS = AgentErrors(
    title="Copilot",
    program="copilot",
    key_hint=KEY_HINT,
    address="COPILOT_PROVIDER_BASE_URL",
    failed=_failed,
    lost="no session, task, or name matched",
)
