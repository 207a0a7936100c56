"""The frames of the Agent Client Protocol, version 1, as the agent writes them.

Only what a frame cannot do without is required. Everything else is optional and may be ``null``:
agents omit, add and null fields, and an unknown status or kind must not lose a frame.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from corral.values import Json, JsonObject


class AcpFrame(msgspec.Struct, rename="camel"):
    pass


class TextContent(AcpFrame, gc=False, tag_field="type", tag="text"):
    text: str


class Location(AcpFrame):
    path: str = ""


class ToolContent(AcpFrame):
    """One of ``content`` (a block), ``diff`` and ``terminal``."""

    type: str = ""
    content: Json = None
    path: str = ""
    old_text: str | None = None
    new_text: str | None = None


class ToolFields(AcpFrame):
    tool_call_id: str = ""
    name: str | None = None
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    content: list[ToolContent] | None = None
    locations: list[Location] | None = None
    raw_input: Json = None
    raw_output: Json = None
    meta: Json = msgspec.field(default=None, name="_meta")


class MessageChunk(AcpFrame, gc=False, tag_field="sessionUpdate", tag="agent_message_chunk"):
    content: TextContent
    message_id: str | None = None
    meta: Json = msgspec.field(default=None, name="_meta")


class ThoughtChunk(AcpFrame, gc=False, tag_field="sessionUpdate", tag="agent_thought_chunk"):
    content: TextContent
    message_id: str | None = None


class UserChunk(AcpFrame, gc=False, tag_field="sessionUpdate", tag="user_message_chunk"):
    pass


class ToolCallFrame(ToolFields, tag_field="sessionUpdate", tag="tool_call"):
    pass


class ToolCallUpdate(ToolFields, tag_field="sessionUpdate", tag="tool_call_update"):
    pass


class PlanEntryFrame(AcpFrame):
    content: str
    status: str | None = None
    priority: str | None = None


class PlanUpdate(AcpFrame, tag_field="sessionUpdate", tag="plan"):
    entries: list[PlanEntryFrame]


class CostAmount(AcpFrame):
    amount: float
    currency: str = "USD"


class UsageUpdate(AcpFrame, tag_field="sessionUpdate", tag="usage_update"):
    used: int | None = None
    size: int | None = None
    cost: CostAmount | None = None


Update = (
    MessageChunk
    | ThoughtChunk
    | UserChunk
    | ToolCallFrame
    | ToolCallUpdate
    | PlanUpdate
    | UsageUpdate
)


class UpdateParams(AcpFrame, gc=False):
    session_id: str
    update: Update


class SessionUpdate(AcpFrame, gc=False, tag_field="method", tag="session/update"):
    """The most frequent frame. With an id it would be a call, which the general decoder reads."""

    params: UpdateParams
    id: UnsetType = UNSET


PASSED_THROUGH = frozenset(
    {
        "available_commands_update",
        "config_option_update",
        "current_mode_update",
        "plan_removed",
        "plan_update",
        "session_info_update",
    }
)
"""Updates that are passed on unchanged as ``Vendor`` events."""


class PermissionOption(msgspec.Struct, frozen=True, rename="camel"):
    """One answer to a permission request. Only ``kind`` says what it does."""

    option_id: str
    name: str = ""
    kind: str = ""


class PermissionParams(AcpFrame):
    session_id: str
    tool_call: ToolFields = msgspec.field(default_factory=ToolFields)
    options: list[PermissionOption] = []


class PromptTokens(AcpFrame):
    input_tokens: int | None = None
    output_tokens: int | None = None
    thought_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None
    total_tokens: int | None = None


class QuotaTokens(msgspec.Struct):
    """Not part of the protocol: three agents send it, in two spellings."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    camel_input: int | None = msgspec.field(default=None, name="inputTokens")
    camel_output: int | None = msgspec.field(default=None, name="outputTokens")
    camel_read: int | None = msgspec.field(default=None, name="cachedInputTokens")
    camel_write: int | None = msgspec.field(default=None, name="cachedWriteTokens")
    camel_write_input: int | None = msgspec.field(default=None, name="cacheWriteInputTokens")
    camel_thought: int | None = msgspec.field(default=None, name="reasoningOutputTokens")
    camel_total: int | None = msgspec.field(default=None, name="totalTokens")


class QuotaModelUsage(msgspec.Struct):
    model: str
    token_count: QuotaTokens | None = None


class Quota(msgspec.Struct):
    token_count: QuotaTokens | None = None
    model_usage: list[QuotaModelUsage] | None = None


class PromptMeta(msgspec.Struct):
    quota: Quota | None = None


class PromptResult(AcpFrame):
    stop_reason: str = ""
    usage: PromptTokens | None = None
    meta: PromptMeta | None = msgspec.field(default=None, name="_meta")


class AgentInfo(AcpFrame):
    name: str = ""
    title: str | None = None
    version: str | None = None


class PromptCapabilities(AcpFrame):
    image: bool = False
    audio: bool = False
    embedded_context: bool = False


class McpCapabilities(AcpFrame):
    http: bool = False
    sse: bool = False


class AgentCapabilities(AcpFrame):
    load_session: bool = False
    prompt_capabilities: PromptCapabilities | None = None
    mcp_capabilities: McpCapabilities | None = None
    session_capabilities: JsonObject | None = None


class AuthMethod(AcpFrame):
    id: str
    name: str = ""
    description: str | None = None


class InitializeResult(AcpFrame):
    protocol_version: int | str | None = None
    agent_info: AgentInfo | None = None
    agent_capabilities: AgentCapabilities | None = None
    auth_methods: list[AuthMethod] | None = None


class Model(AcpFrame):
    model_id: str
    name: str = ""


class Models(AcpFrame):
    available_models: list[Model] = []
    current_model_id: str | None = None


class Mode(AcpFrame):
    id: str
    name: str = ""


class Modes(AcpFrame):
    available_modes: list[Mode] = []
    current_mode_id: str | None = None


class ConfigOption(AcpFrame):
    id: str
    category: str | None = None
    current_value: Json = None
    options: list[Json] | None = None


class SessionResult(AcpFrame):
    session_id: str = ""
    modes: Modes | None = None
    models: Models | None = None
    config_options: list[ConfigOption] | None = None


class SessionEntry(AcpFrame):
    session_id: str
    cwd: str | None = None
    title: str | None = None
    updated_at: str | None = None


class ListResult(AcpFrame):
    sessions: list[SessionEntry] = []
    next_cursor: str | None = None
