"""The frames of the Agent Client Protocol, version 1, and of JSON-RPC 2.0 around them.

Of what the agent writes, only what a frame cannot do without is required. Everything else is
optional and may be ``null``: agents omit, add and null fields, and an unknown status or kind must
not lose a frame. Nulls are removed before the replies of the handshake are converted.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from corral.values import Json, JsonObject, as_object, as_text

Id: TypeAlias = int | float | str


class RpcError(msgspec.Struct):
    """The error of a call."""

    code: int | float = 0
    message: str = ""
    data: Json = None


class RpcFrame(msgspec.Struct):
    """A call, a notification (without an id) or a reply (without a method)."""

    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Json = None
    result: Json = None
    error: RpcError | None = None


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


class PromptCapabilities(AcpFrame):
    image: bool = False
    audio: bool = False
    embedded_context: bool = False
    """Files are accepted with their content. Links are always accepted."""


class McpCapabilities(AcpFrame):
    http: bool = False


class AgentCapabilities(AcpFrame):
    """What the agent reports about itself in reply to ``initialize``."""

    load_session: bool = False
    """``session/load`` is offered: the agent loads a session and replays its history."""
    prompt_capabilities: PromptCapabilities = msgspec.field(default_factory=PromptCapabilities)
    mcp_capabilities: McpCapabilities = msgspec.field(default_factory=McpCapabilities)
    session_capabilities: JsonObject = {}
    """Other session methods that it offers: ``resume``, ``list``, ``close``, ``fork`` ..."""

    def offers(self, method: str) -> bool:
        return self.session_capabilities.get(method) not in (None, False)


class InitializeResult(AcpFrame):
    protocol_version: int | str | None = None
    agent_capabilities: AgentCapabilities = msgspec.field(default_factory=AgentCapabilities)
    agent_info: Json = None

    @property
    def name(self) -> str:
        """The name of the program, often that of its package; empty if it reports none."""
        return _short(as_object(self.agent_info).get("name"))

    @property
    def version(self) -> str | None:
        return _short(as_object(self.agent_info).get("version")) or None


def _short(value: Json) -> str:
    return "".join(sign for sign in as_text(value) if sign.isprintable()).strip()[:80]


class Model(AcpFrame):
    model_id: str


class Models(AcpFrame):
    available_models: list[Model] = []
    current_model_id: str | None = None


class Mode(AcpFrame):
    id: str


class Modes(AcpFrame):
    available_modes: list[Mode] = []


class ConfigOption(AcpFrame):
    id: str
    category: str | None = None
    current_value: Json = None
    options: list[Json] = []


class SessionResult(AcpFrame):
    session_id: str = ""
    modes: Modes = msgspec.field(default_factory=Modes)
    models: Models = msgspec.field(default_factory=Models)
    config_options: list[ConfigOption] = []


class SessionEntry(AcpFrame):
    session_id: str
    cwd: str | None = None
    title: str | None = None
    updated_at: str | None = None


class ListResult(AcpFrame):
    sessions: list[SessionEntry] = []
    next_cursor: str | None = None


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ImageBlock(msgspec.Struct, frozen=True, tag_field="type", tag="image", rename="camel"):
    data: str
    """Base64."""
    mime_type: str


class AudioBlock(msgspec.Struct, frozen=True, tag_field="type", tag="audio", rename="camel"):
    data: str
    mime_type: str


class Resource(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class ResourceBlock(msgspec.Struct, frozen=True, tag_field="type", tag="resource"):
    """A file with its content, for agents that offer ``embeddedContext``."""

    resource: Resource


class LinkBlock(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="type",
    tag="resource_link",
    rename="camel",
):
    """A file by its URI. The agent reads it."""

    uri: str
    name: str
    mime_type: str | None = None
    size: int | None = None


Block: TypeAlias = TextBlock | ImageBlock | AudioBlock | ResourceBlock | LinkBlock
