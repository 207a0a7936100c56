"""What Codex writes with ``exec --json``, as events; and its failures (the text of an error, or how
the process ended), as one error each.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

import msgspec

from corral import errors
from corral._agents.codex.controls import HARMLESS, TOOLS, is_agent_tool
from corral._agents.shared.errors import (
    FORBIDDEN,
    LOGIN_REQUIRED,
    AgentErrors,
    Signs,
    last_lines,
)
from corral._agents.spec import TurnEnding
from corral._protocol.common_events import joined_text, retrying, warning
from corral._protocol.ndjson import RawEvent, Translate, TurnEnd, frame_types, union_of
from corral.errors import CorralError
from corral.events import (
    Error,
    FileChange,
    FileKind,
    Init,
    Plan,
    PlanEntry,
    Text,
    Thinking,
    ToolKind,
    ToolResult,
    ToolStatus,
    ToolUse,
    Unknown,
)
from corral.values import Json, JsonObject, Usage, as_object, as_objects, text_or_none


class ThreadStarted(msgspec.Struct, gc=False, tag_field="type", tag="thread.started"):
    thread_id: str


class TurnStarted(msgspec.Struct, gc=False, tag_field="type", tag="turn.started"): ...


class Items(msgspec.Struct):
    item: JsonObject


class CodexTokens(msgspec.Struct):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0


class TurnCompleted(msgspec.Struct, gc=False, tag_field="type", tag="turn.completed"):
    usage: CodexTokens | None = None


class CodexFailure(msgspec.Struct):
    message: str = ""


class TurnFailed(msgspec.Struct, gc=False, tag_field="type", tag="turn.failed"):
    error: CodexFailure


class ErrorLine(msgspec.Struct, gc=False, tag_field="type", tag="error"):
    message: str


_ITEMS = frame_types(Items, ("item.started", "item.updated", "item.completed"))
Frame: TypeAlias = ThreadStarted | TurnStarted | Items | TurnCompleted | TurnFailed | ErrorLine
Frames: object = union_of(
    [ThreadStarted, TurnStarted, TurnCompleted, TurnFailed, ErrorLine], _ITEMS
)

CHANGES: dict[str, FileKind] = {"add": "created", "update": "modified", "delete": "deleted"}


def translator() -> Translate:
    return CodexTurn().translate


class CodexTurn:
    """The frames of one turn as events. Remembers which tool calls are open."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def translate(self, frames: list[Frame]) -> list[RawEvent]:
        items: list[RawEvent] = []
        for frame in frames:
            match frame:
                case Items() if _ITEMS[type(frame)] == "item.completed":
                    self._completed(frame.item, items)
                case Items():
                    item = frame.item
                    use = tool_use(item)
                    # Of a message and of reasoning, the completed item has the text.
                    if use is None and item.get("type") not in ("agent_message", "reasoning"):
                        items.append(plan(item) or Unknown(item))
                    elif use is not None and use.call_id not in self._open:
                        self._open.add(use.call_id)
                        items.append(use)
                case ThreadStarted():
                    items.append(Init(session_id=frame.thread_id))
                case ErrorLine():
                    items += complaint(frame.message)
                case TurnCompleted():
                    items.append(TurnEnd(ok=True, usage=usage(frame.usage)))
                case TurnFailed():
                    items.append(TurnEnd(ok=False, message=frame.error.message))
                case _:
                    pass  # turn.started
        return items

    def _completed(self, item: JsonObject, items: list[RawEvent]) -> None:
        match item:
            case {"type": "agent_message", "text": str(text)}:
                items.append(Text(text, message_id=text_or_none(item.get("id"))))
            case {"type": "reasoning", "text": str(text)}:
                items.append(Thinking(text, message_id=text_or_none(item.get("id"))))
            case {"type": "error", "message": str(message)}:
                items += complaint(message)
            case _ if (use := tool_use(item)) is not None:
                if use.call_id not in self._open:
                    items.append(use)
                self._open.discard(use.call_id)
                items += tool_result(item, use.call_id)
            case _:
                items.append(plan(item) or Unknown(item))


def tool_use(item: JsonObject) -> ToolUse | None:
    match item:
        case {"type": "command_execution", "id": str(id), "command": str(command)}:
            given: Json = {"command": command}
            return ToolUse(id, "exec_command", kind="execute", title=command, input=given)
        case {"type": "file_change", "id": str(id)}:
            paths = tuple(str(change.get("path")) for change in as_objects(item.get("changes")))
            title = f"apply_patch {' '.join(paths)}"
            given = {"changes": item.get("changes")}
            return ToolUse(id, "apply_patch", kind="edit", title=title, input=given, paths=paths)
        case {"type": "mcp_tool_call", "id": str(id), "server": str(server), "tool": str(tool)}:
            name = f"mcp__{server}__{tool}"
            return ToolUse(id, name, kind="mcp", title=name, input=item.get("arguments"))
        case {"type": "web_search", "id": str(id)}:
            query = str(item.get("query") or "")
            title = f"web_search {query}".strip()
            return ToolUse(id, "web_search", kind="fetch", title=title, input={"query": query})
        case _:
            return None


def tool_result(item: JsonObject, call_id: str) -> list[RawEvent]:
    """The files that a call changed, and its result."""
    ok = item.get("status", "completed") == "completed"
    match item:
        case {"type": "command_execution"}:
            code = item.get("exit_code")
            error = (
                None
                if ok
                else f"exit code {code}"
                if code is not None
                else "the command did not end"
            )
            output = text_or_none(item.get("aggregated_output"))
            return [ToolResult(call_id, "success" if ok else "error", output=output, error=error)]
        case {"type": "file_change"} if ok:
            reported: list[RawEvent] = [
                FileChange(
                    str(change.get("path")),
                    CHANGES.get(str(change.get("kind")), "modified"),
                    call_id=call_id,
                )
                for change in as_objects(item.get("changes"))
            ]
            return [*reported, ToolResult(call_id, "success")]
        case {"type": "mcp_tool_call"}:
            output, error = joined_text(as_object(item.get("result")).get("content")), _why(item)
            if error is None:
                return [ToolResult(call_id, "success", output=output)]
            is_denied = "requires approval" in error or "rejected" in error
            status: ToolStatus = "denied" if is_denied else "error"
            return [ToolResult(call_id, status, output=output, error=error)]
        case _:
            return [ToolResult(call_id, "success" if ok else "error", error=_why(item))]


def _why(item: JsonObject) -> str | None:
    match item:
        case {"error": {"message": str(message)}}:
            return message
        case {"status": "failed"}:
            return "the call failed without a reason"
        case _:
            return None


def plan(item: JsonObject) -> Plan | None:
    if item.get("type") != "todo_list":
        return None
    entries = [
        PlanEntry(str(todo.get("text")), "completed" if todo.get("completed") else "pending")
        for todo in as_objects(item.get("items"))
    ]
    return Plan(tuple(entries))


def complaint(message: str) -> list[Error]:
    """An error line does not end the turn. The warning about hooks without review is left out:
    the only hook is ours."""
    if message.startswith("`--dangerously-bypass-hook-trust`"):
        return []
    if message.startswith("Reconnecting"):
        return [retrying(message)]
    return [warning("agent_warning", message, "response")]


def usage(reported: CodexTokens | None) -> Usage:
    """All counts are zero if the model reported none."""
    if reported is None or not (reported.input_tokens or reported.output_tokens):
        return Usage()
    return Usage(
        input=reported.input_tokens,
        output=reported.output_tokens,
        reasoning=reported.reasoning_output_tokens,
        cache_read=reported.cached_input_tokens,
        cache_write=reported.cache_write_input_tokens,
        coverage="complete",
    )


REFUSED = re.compile(r"^(\S+) +ERROR .*codex_core::tools::router: error=(.*)")
_BLOCKED = re.compile(r"(?:Command|Tool call) blocked by PreToolUse hook: (.*)")
"""Blocked by ``corral._system.hook_guard``. The name of the tool follows the reason, or the first
line of a patch."""


def read_stderr(line: str) -> RawEvent | None:
    """A failed or denied call, which Codex reports on stderr only."""
    found = REFUSED.match(line)
    if found is None:
        return None
    when, why = found.groups()
    if blocked := _BLOCKED.match(why):
        reason, _, tool = blocked[1].partition(". Command: ")[0].partition(". Tool: ")
        return ToolResult(f"call-{when}", "denied", name=tool or "apply_patch", error=reason)
    name = "apply_patch" if "patch" in why else "exec_command"
    denied = "rejected" in why or "reject command" in why
    if why.startswith("unsupported call: "):
        name = why.removeprefix("unsupported call: ").strip()
        denied = is_agent_tool(name)
    return ToolResult(f"call-{when}", "denied" if denied else "error", name=name, error=why)


def kind_of(name: str) -> ToolKind:
    """The kind of a tool, as a hook or the model names it."""
    if name.startswith("mcp__"):
        return "mcp"
    return "think" if name in HARMLESS else TOOLS.get(name, "other")


def hook_answer(decision: str, **fields: Json) -> JsonObject:
    """The answer of a hook."""
    answer: JsonObject = {"hookEventName": "PreToolUse", "permissionDecision": decision, **fields}
    return {"hookSpecificOutput": answer}


IGNORED_STDERR = (
    "WARNING: proceeding, even though we could not create PATH aliases",
    "Reading additional input from stdin",
    "Reading prompt from stdin",
    "Stack backtrace:",
    "   ",
)

_OTHER_VERSION = "corral knows Codex 0.166: install that with `corral agents install codex-cli`."
ERRORS = AgentErrors(
    title="Codex",
    program="codex-cli",
    key_hint="Set OPENAI_API_KEY, or sign in once with `codex login`.",
    address="OPENAI_BASE_URL",
    hints={errors.AccessDenied: FORBIDDEN},
    failed=lambda _kind, message: error_from_text(message),
    ignored=IGNORED_STDERR,
    stderr_signs=(
        (("input_too_large",), errors.InputRejected, "The prompt is too long: put it into files."),
        (("no rollout found", "thread/resume"), errors.ResumeLost, "Start a new session."),
        (("MCP servers failed",), errors.ToolFailed, "A requested MCP server did not start."),
        (("Error loading config", "feature flag"), errors.SettingsRejected, _OTHER_VERSION),
    ),
    ended="Codex exited without completing its turn",
)
_STATUS = re.compile(r"(?:unexpected status|last status:?) (\d{3})")
_SIGNS: Signs = (
    (("quota", "billing", "usage limit", "credits"), errors.QuotaSpent),
    (("rate limit", "rate_limit", "too many requests"), errors.RateLimited),
    (
        ("context length", "context_length", "context window", "input exceeds"),
        errors.ContextLengthExceeded,
    ),
    (
        ("api key", "missing environment variable", "not logged in", "unauthorized", "log in"),
        errors.AuthenticationFailed,
    ),
    (("does not exist", "model_not_found", "no such model"), errors.ModelNotFound),
    (("content_filter", "flagged", "usage polic"), errors.ContentRefused),
    (("high demand", "overloaded", "server error", "server_error"), errors.ServerFailed),
    (
        ("connection failed", "error sending request", "waiting for network", "dns error"),
        errors.NetworkFailed,
    ),
    (("stream disconnected", "stream closed", "idle timeout"), errors.StreamBroken),
    (("invalid_request", "bad_request", "bad request"), errors.InvalidRequest),
)


def explain_acp(ending: TurnEnding) -> CorralError | None:
    """For codex-acp: the error that it reported, or how its process ended."""
    finish = ending.finish
    if finish is None:
        return _without_result(ending, msgspec.structs.replace(ERRORS, program="codex-acp"))
    if finish.kind == LOGIN_REQUIRED:
        return ERRORS.make(errors.AuthenticationFailed, finish.message or "no reason given")
    return error_from_text((finish.message or "Codex reported an error without a message").strip())


def explain(ending: TurnEnding) -> CorralError | None:
    """None for a success: a completed turn, some answer, and a clean exit."""
    return _without_result(ending, ERRORS) if ending.finish is None else ERRORS.explain(ending)


def error_from_text(message: str) -> CorralError:
    """Codex reports only the text of an API error; sometimes the text is the API's JSON."""
    text = message
    try:
        body: Json = json.loads(message)
        text = str(as_object(as_object(body).get("error")).get("message", message))
    except (ValueError, RecursionError):
        pass
    status = _STATUS.search(message)
    error = ERRORS.from_status(text, int(status[1]) if status else 0)
    if type(error) in (errors.ProcessFailed, errors.RateLimited, errors.InvalidRequest):
        known = ERRORS.from_signs(message, _SIGNS)
        error = error if known is None else ERRORS.make(type(known), text)
    return error


def _without_result(ending: TurnEnding, made: AgentErrors) -> CorralError:
    error = made.without_result(ending)
    if type(error) not in (errors.AuthenticationFailed, errors.ProcessFailed):
        return error
    stderr = last_lines(ending.stderr, IGNORED_STDERR)
    if ending.code == 2:
        return errors.SettingsRejected(stderr or "Codex refused its arguments", hint=_OTHER_VERSION)
    return error_from_text(stderr) if _STATUS.search(stderr) else error
