"""The lines of a two-way stream-json agent, as typed frames.

Fields that are not needed are not listed, and fields that may be missing have a default: new
versions of the agents add some and drop others. The order of keys is not stable.
"""

from __future__ import annotations

import msgspec

from corral.values import Json


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


class Block(msgspec.Struct):
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


class Message(msgspec.Struct):
    id: str = ""
    model: str = ""
    content: str | list[Block] = ""


class AssistantFrame(msgspec.Struct, tag_field="type", tag="assistant"):
    """One complete block of an answer."""

    message: Message
    parent_tool_use_id: str | None = None
    error: str | None = None
    is_api_error_message: bool = False


class ToolResultMeta(msgspec.Struct):
    id: str = ""
    non_execution_kind: str | None = None


class UserFrame(msgspec.Struct, tag_field="type", tag="user"):
    """Tool results, or text that the program sends in the user's name."""

    message: Message
    parent_tool_use_id: str | None = None
    tool_use_result: Json = None
    tool_result_meta: tuple[ToolResultMeta, ...] = ()


class Hunk(msgspec.Struct):
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
    structured_patch: tuple[Hunk, ...] | None = None
    bash_edit_diff: EditedFiles | None = None


class Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""


class ModelEvent(msgspec.Struct):
    type: str
    delta: Delta | None = None
    message: Message | None = None


class StreamEventFrame(msgspec.Struct, tag_field="type", tag="stream_event"):
    """An event of the model's stream."""

    event: ModelEvent
    parent_tool_use_id: str | None = None


class ModelUsage(msgspec.Struct, rename="camel"):
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


class ResultFrame(msgspec.Struct, tag_field="type", tag="result"):
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
    model_usage_since_last_result: dict[str, ModelUsage] = {}
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
    | ResultFrame
    | ControlRequest
    | ControlResponse
    | ControlCancel
    | ToolProgress
)
