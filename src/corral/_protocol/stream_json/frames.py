"""The lines of a two-way stream-json agent as typed frames, what is read from their fields, and
where such agents differ (``StreamQuirks``).

Fields that are not needed are not listed, and fields that may be missing have a default: new
versions of the agents add some and drop others. The order of keys is not stable.
"""

from __future__ import annotations

import posixpath
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import TypeVar

import msgspec

from corral._protocol.common_events import retrying
from corral.errors import MediaInvalid
from corral.events import Error, FileChange, ToolKind
from corral.messages import Audio, Document, Image, Part, Text
from corral.values import Cost, Json, Usage, as_object, as_text, convert_to


class McpServerStatus(msgspec.Struct):
    name: str = ""
    status: str = ""


class TaskInfo(msgspec.Struct):
    task_type: str = ""


class SystemFrame(msgspec.Struct, omit_defaults=True, tag_field="type", tag="system"):
    """A report about the program itself."""

    subtype: str = ""
    session_id: str | None = None
    model: str | None = None
    cwd: str | None = None
    tools: tuple[str, ...] = ()
    mcp_servers: tuple[McpServerStatus, ...] = ()
    attempt: int | None = None
    max_retries: int | None = None
    retry_delay_ms: float | None = None
    error_status: int | None = None
    error: Json = None
    tool_name: str | None = None
    tool_use_id: str | None = None
    content: Json = None
    message: Json = None
    level: str | None = None
    description: str | None = None
    status: str | None = None
    task_id: str | None = None
    data: Json = None
    tasks: tuple[TaskInfo, ...] = ()


class ContentBlock(msgspec.Struct):
    """A part of a message; which fields are set depends on its type."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Json = None
    tool_use_id: str = ""
    content: Json = None
    is_error: bool | None = None


class StreamMessage(msgspec.Struct):
    id: str = ""
    model: str = ""
    content: str | list[ContentBlock] = ""


class AssistantFrame(msgspec.Struct, tag_field="type", tag="assistant"):
    """One complete block of an answer."""

    message: StreamMessage
    parent_tool_use_id: str | None = None
    error: str | None = None
    is_api_error_message: bool = False


class ToolResultMeta(msgspec.Struct):
    id: str = ""
    non_execution_kind: str | None = None


class UserFrame(msgspec.Struct, tag_field="type", tag="user"):
    """Tool results, or text that the program sends in the user's name."""

    message: StreamMessage
    parent_tool_use_id: str | None = None
    tool_use_result: Json = None
    tool_result_meta: tuple[ToolResultMeta, ...] = ()


class PatchHunk(msgspec.Struct):
    lines: tuple[str, ...] = ()


class EditedFile(msgspec.Struct, rename="camel"):
    file_path: str
    created: bool = False


class EditedFiles(msgspec.Struct):
    files: tuple[EditedFile, ...] = ()


class FileToolResult(msgspec.Struct, rename="camel"):
    """A ``tool_use_result`` of a tool that writes files, or of a shell command that did."""

    type: str | None = None
    file_path: str | None = None
    structured_patch: tuple[PatchHunk, ...] | None = None
    bash_edit_diff: EditedFiles | None = None


class Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""


class ModelEvent(msgspec.Struct):
    type: str
    delta: Delta | None = None
    message: StreamMessage | None = None


class StreamEventFrame(msgspec.Struct, tag_field="type", tag="stream_event"):
    """An event of the model's stream."""

    event: ModelEvent
    parent_tool_use_id: str | None = None


class StreamModelUsage(msgspec.Struct, rename="camel"):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    thinking_tokens: int | None = None
    cost_usd: float | None = msgspec.field(default=None, name="costUSD")


class RetryData(msgspec.Struct, rename="camel"):
    """The ``data`` of a ``retry`` frame, as one of the agents sends it."""

    attempt: int | None = None
    max_retries: int | None = None
    delay_ms: float | None = None
    message: str = ""


class SessionTokens(msgspec.Struct):
    """The usage of a session, from agents that report none by model."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    total_tokens: int = 0


class TurnResultFrame(msgspec.Struct, tag_field="type", tag="result"):
    """The result of a turn, or an early one while sub-agents work in the background."""

    subtype: str = ""
    is_error: bool = False
    result: str | None = None
    errors: tuple[str, ...] = ()
    stop_reason: str | None = None
    terminal_reason: str | None = None
    api_error_status: int | None = None
    structured_output: Json = None
    error: Json = None
    usage: Json = None
    model_usage_since_last_result: dict[str, StreamModelUsage] = {}
    """Used because ``usage`` does not include sub-agents, and ``modelUsage`` and
    ``total_cost_usd`` include earlier runs of the session."""


class ControlRequestBody(msgspec.Struct):
    subtype: str
    tool_name: str = ""
    tool_use_id: str | None = None
    input: Json = None
    blocked_path: str | None = None
    mcp_server_name: str | None = None
    message: str = ""
    mode: str | None = None
    requested_schema: Json = None


class ControlRequest(msgspec.Struct, tag_field="type", tag="control_request"):
    request_id: str
    request: ControlRequestBody


class ControlResponseBody(msgspec.Struct):
    request_id: str = ""
    subtype: str = ""
    error: str | None = None


class ControlResponse(msgspec.Struct, tag_field="type", tag="control_response"):
    response: ControlResponseBody


class ControlCancel(msgspec.Struct, tag_field="type", tag="control_cancel_request"):
    request_id: str


class ToolProgress(msgspec.Struct, tag_field="type", tag="tool_progress"):
    """A tool is still running; sent every half minute."""


Frames = (
    SystemFrame
    | AssistantFrame
    | UserFrame
    | StreamEventFrame
    | TurnResultFrame
    | ControlRequest
    | ControlResponse
    | ControlCancel
    | ToolProgress
)


class StreamQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one agent."""

    tools: Mapping[str, ToolKind]
    mcp_prefix: str = "mcp__"
    own_prefix: str = "mcp__corral__"
    """Name prefix of the tools of the caller's own server."""
    media: frozenset[str] = frozenset(
        {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}
    )
    """Media types that a prompt may carry, apart from text."""
    denied_texts: tuple[str, ...] = ()
    """Texts in the error of a tool that is hidden or denied by a rule."""
    error_text: str = ""
    """Prefix of the text that replaces the answer when the model's API failed."""
    id_per_block: bool = False
    """Complete blocks have an id each, which is not the id of the streamed message."""
    edits_calls: bool = False
    """The answer to a permission request may change the input of the call."""
    reports_session_total: bool = False
    """Reports one total for the session, cached tokens included, and no usage by model."""
    question_tool: str = ""
    """The tool with which the model asks a person. Its permission request has the questions, and
    the answer to that request has the answers."""


N = TypeVar("N", int, float)


def file_changes(call_id: str, result: Json, cwd: str) -> Iterator[FileChange]:
    """The files that a tool reports as written."""
    try:
        written = convert_to(result, FileToolResult)
    except msgspec.ValidationError:  # the result of another tool, or text
        return
    if written.file_path is not None and written.structured_patch is not None:
        lines = [line for hunk in written.structured_patch for line in hunk.lines]
        yield FileChange(
            posixpath.normpath(posixpath.join(cwd, written.file_path)),
            "created" if written.type == "create" else "modified",
            call_id=call_id,
            lines_added=sum(line.startswith("+") for line in lines) or None,
            lines_removed=sum(line.startswith("-") for line in lines) or None,
        )
    for file in written.bash_edit_diff.files if written.bash_edit_diff else ():
        path = posixpath.normpath(posixpath.join(cwd, file.file_path))
        yield FileChange(path, "created" if file.created else "modified", call_id=call_id)


def content_text(content: Json) -> str:
    """The text of a string, or of the text blocks in a list."""
    if isinstance(content, str):
        return content
    try:
        blocks = convert_to(content, list[ContentBlock])
    except msgspec.ValidationError:
        return ""
    return "\n".join(block.text for block in blocks if block.text)


def encode_part(part: Part, media: frozenset[str]) -> Json:
    """An attachment of a prompt as the program reads it. Raises ``MediaInvalid``."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if not isinstance(part, Image | Audio | Document) or not isinstance(part.source, bytes):
        raise TypeError(f"not a part of a prompt: {part!r}")
    kind = part.media_type
    if kind not in media:
        raise MediaInvalid(
            f"this agent accepts no {kind or 'file of unknown type'} with a prompt",
            hint=f"It accepts text and: {', '.join(sorted(media))}.",
        )
    data = b64encode(part.source).decode()
    source: Json = {"type": "base64", "media_type": kind, "data": data}
    return {"type": "image" if isinstance(part, Image) else "document", "source": source}


def retry_warning(frame: SystemFrame) -> Error:
    """The warning for a failed model call that the agent repeats."""
    try:
        data = convert_to(frame.data or {}, RetryData)
    except msgspec.ValidationError:
        data = RetryData()
    attempt, limit = frame.attempt or data.attempt, frame.max_retries or data.max_retries
    delay = frame.retry_delay_ms or data.delay_ms
    cause = f"{frame.error_status or ''} {content_text(frame.error) or data.message}".strip()
    which = f"attempt {attempt}{f' of {limit}' if limit else ''}" if attempt else "an attempt"
    why, wait = f" ({cause})" if cause else "", f" in {delay / 1000:.1f} s" if delay else ""
    return retrying(f"{which} failed{why}: the agent tries again{wait}")


def error_kind(frame: TurnResultFrame, api_error: str | None) -> str:
    """The agent's name for the failure of a turn; ``api_error`` is the last error of the API."""
    kind = api_error if frame.subtype == "success" else frame.subtype
    return kind or str(frame.api_error_status or "error")


def error_message(frame: TurnResultFrame) -> str:
    """The agent's description of a failed turn; empty if it gives none."""
    message = as_text(as_object(frame.error).get("message"))
    return frame.result or "; ".join(frame.errors) or message


def strip_error_tags(text: str) -> str:
    """The error text of a tool without its tags and prefix."""
    inner = text.strip().removeprefix("<tool_use_error>").removesuffix("</tool_use_error>")
    return inner.removeprefix("Error: ").strip()


def add_model_usage(before: StreamModelUsage | None, more: StreamModelUsage) -> StreamModelUsage:
    if before is None:
        return more

    return StreamModelUsage(
        input_tokens=before.input_tokens + more.input_tokens,
        output_tokens=before.output_tokens + more.output_tokens,
        cache_read_input_tokens=before.cache_read_input_tokens + more.cache_read_input_tokens,
        cache_creation_input_tokens=(
            before.cache_creation_input_tokens + more.cache_creation_input_tokens
        ),
        thinking_tokens=_add_known(before.thinking_tokens, more.thinking_tokens),
        cost_usd=_add_known(before.cost_usd, more.cost_usd),
    )


def _add_known(one: N | None, other: N | None) -> N | None:
    """The sum of the numbers that are known; ``None`` if neither is."""
    return other if one is None else one if other is None else one + other


def session_usage(given: Json) -> Usage:
    """The usage of a session. All zeros means unknown."""
    try:
        sums = convert_to(given, SessionTokens)
    except msgspec.ValidationError:
        return Usage()
    if not sums.input_tokens + sums.output_tokens:
        return Usage()
    return Usage(
        input=sums.input_tokens,
        output=sums.output_tokens,
        cache_read=sums.cache_read_input_tokens,
        coverage="complete",
    )


def to_usage(spent: StreamModelUsage) -> Usage:
    read, written = spent.cache_read_input_tokens, spent.cache_creation_input_tokens
    return Usage(
        input=spent.input_tokens + read + written,
        output=spent.output_tokens,
        reasoning=spent.thinking_tokens,
        cache_read=read,
        cache_write=written,
        coverage="complete",
    )


def total_usage(spent: Mapping[str, StreamModelUsage]) -> tuple[Usage, Cost, str | None]:
    """Usage, cost, and the model with most output: a small model may be used too."""
    if not spent:
        return Usage(), Cost(), None
    total = reduce(add_model_usage, spent.values())
    cost = Cost() if total.cost_usd is None else Cost(total.cost_usd, "reported")
    return to_usage(total), cost, max(spent, key=lambda name: spent[name].output_tokens)
