"""The lines of agents that speak stream-json both ways, as they come.

Every field that is not needed is left out, and every one that may be missing has a
default: a new version adds some and drops others. Key order is not stable.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Server(msgspec.Struct):
    name: str = ""
    status: str = ""


class TaskInfo(msgspec.Struct):
    task_type: str = ""


class SystemFrame(msgspec.Struct, omit_defaults=True, tag_field="type", tag="system"):
    """What the program says of itself."""

    subtype: str = ""
    session_id: str | None = None
    model: str | None = None
    cwd: str | None = None
    tools: tuple[str, ...] = ()
    mcp_servers: tuple[Server, ...] = ()
    attempt: int | None = None
    max_retries: int | None = None
    retry_delay_ms: float | None = None
    error_status: int | None = None
    error: Any = None
    tool_name: str | None = None
    tool_use_id: str | None = None
    content: Any = None
    message: Any = None
    level: str | None = None
    description: str | None = None
    status: str | None = None
    task_id: str | None = None
    data: Any = None
    tasks: tuple[TaskInfo, ...] = ()


class Block(msgspec.Struct):
    """A part of a message; which fields are set depends on its type."""

    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    tool_use_id: str = ""
    content: Any = None
    is_error: bool | None = None


class Message(msgspec.Struct):
    id: str = ""
    model: str = ""
    content: str | list[Block] = ""


class AssistantFrame(msgspec.Struct, tag_field="type", tag="assistant"):
    """One block of an answer, whole."""

    message: Message
    parent_tool_use_id: str | None = None
    error: str | None = None
    is_api_error_message: bool = False


class Meta(msgspec.Struct):
    id: str = ""
    non_execution_kind: str | None = None


class Returned(msgspec.Struct, tag_field="type", tag="user"):
    """What tools gave back; or words put into the user's mouth."""

    message: Message
    parent_tool_use_id: str | None = None
    tool_use_result: Any = None
    tool_result_meta: tuple[Meta, ...] = ()


class Hunk(msgspec.Struct):
    lines: tuple[str, ...] = ()


class Edited(msgspec.Struct, rename="camel"):
    file_path: str
    created: bool = False


class Edits(msgspec.Struct):
    files: tuple[Edited, ...] = ()


class Wrote(msgspec.Struct, rename="camel"):
    """A ``tool_use_result``: of a tool that writes, or of a shell that did."""

    type: str | None = None
    file_path: str | None = None
    structured_patch: tuple[Hunk, ...] | None = None
    bash_edit_diff: Edits | None = None


class Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""


class Step(msgspec.Struct):
    type: str
    delta: Delta | None = None
    message: Message | None = None


class Piece(msgspec.Struct, tag_field="type", tag="stream_event"):
    """An event of the model's own stream."""

    event: Step
    parent_tool_use_id: str | None = None


class Spent(msgspec.Struct, rename="camel"):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    thinking_tokens: int | None = None
    cost_usd: float | None = msgspec.field(default=None, name="costUSD")


class Retry(msgspec.Struct, rename="camel"):
    """The ``data`` of one who tells of another attempt so."""

    attempt: int | None = None
    max_retries: int | None = None
    delay_ms: float | None = None
    message: str = ""


class Tokens(msgspec.Struct):
    """The sum of a session, where no model's own is told."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    total_tokens: int = 0


class Ended(msgspec.Struct, tag_field="type", tag="result"):
    """The last word on a turn, or an early one while work goes on in the background."""

    subtype: str = ""
    is_error: bool = False
    result: str | None = None
    errors: tuple[str, ...] = ()
    stop_reason: str | None = None
    terminal_reason: str | None = None
    api_error_status: int | None = None
    structured_output: Any = msgspec.UNSET
    error: Any = None
    usage: Any = None
    model_usage_since_last_result: dict[str, Spent] = {}
    """Its ``usage`` leaves sub-agents out, and its ``modelUsage`` and ``total_cost_usd`` hold
    what earlier runs of the session spent."""


class Request(msgspec.Struct):
    subtype: str
    tool_name: str = ""
    tool_use_id: str | None = None
    input: Any = None
    blocked_path: str | None = None


class ControlRequest(msgspec.Struct, tag_field="type", tag="control_request"):
    request_id: str
    request: Request


class Reply(msgspec.Struct):
    request_id: str = ""
    subtype: str = ""
    error: str | None = None


class Answered(msgspec.Struct, tag_field="type", tag="control_response"):
    response: Reply


class Withdrawn(msgspec.Struct, tag_field="type", tag="control_cancel_request"):
    request_id: str


class Busy(msgspec.Struct, tag_field="type", tag="tool_progress"):
    """A tool still runs, said every half minute."""


Frames = (
    SystemFrame
    | AssistantFrame
    | Returned
    | Piece
    | Ended
    | ControlRequest
    | Answered
    | Withdrawn
    | Busy
)
