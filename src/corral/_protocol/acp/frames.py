"""The frames of the Agent Client Protocol, version 1, as both sides read and write them.

Of what the other side writes, only what a frame cannot do without is required. Everything else is
optional and may be ``null``: programs omit, add and null fields, and an unknown status or kind must
not lose a frame. Nulls are removed before calls and the replies of the handshake are converted
(``without_nulls``). Written, a field that has its default is left out.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from corral.values import Json, JsonObject, McpServer, as_object, as_objects, as_text

PROTOCOL_VERSION = 1
"""If we offer 2, some agents switch to another schema and reject our parameters."""


class AcpFrame(msgspec.Struct, rename="camel", omit_defaults=True):
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


class UserChunk(AcpFrame, tag_field="sessionUpdate", tag="user_message_chunk"):
    content: Json = None


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


class CostAmount(AcpFrame, omit_defaults=False):
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
    auth_method_list: Json = msgspec.field(default=None, name="authMethods")

    @property
    def auth_methods(self) -> tuple[str, ...]:
        """The ids of the ways to sign in."""
        ids = (_short(each.get("id")) for each in as_objects(self.auth_method_list))
        return tuple(filter(None, ids))

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


class NameValue(msgspec.Struct):
    name: str
    value: str


class McpServerFrame(AcpFrame):
    """An MCP server that the client names, as a program or at a URL."""

    name: str
    command: str = ""
    args: list[str] = []
    env: list[NameValue] = []
    type: str = ""
    """Empty for a program, ``http``; others were not offered."""
    url: str = ""
    headers: list[NameValue] = []


def mcp_server(server: McpServer) -> JsonObject:
    """A server as the agent gets it, with a session. The schema requires all these fields."""

    def pairs(values: dict[str, str]) -> list[Json]:
        return [{"name": name, "value": value} for name, value in values.items()]

    if server.url is not None:
        headers = pairs(server.headers)
        return {"type": "http", "name": server.name, "url": server.url, "headers": headers}
    program, *args = server.command or ("",)
    return {"name": server.name, "command": program, "args": [*args], "env": pairs(server.env)}


class FileSystemCapabilities(AcpFrame):
    read_text_file: bool = False
    write_text_file: bool = False


class ElicitationCapabilities(AcpFrame):
    form: Json = None


class ClientCapabilities(AcpFrame):
    """What the client does for the agent."""

    fs: FileSystemCapabilities = msgspec.field(default_factory=FileSystemCapabilities)
    elicitation: ElicitationCapabilities = msgspec.field(default_factory=ElicitationCapabilities)


class InitializeParams(AcpFrame):
    protocol_version: int | float | str = PROTOCOL_VERSION
    client_capabilities: ClientCapabilities = msgspec.field(default_factory=ClientCapabilities)
    client_info: Json = None


class NewSessionParams(AcpFrame):
    cwd: str
    mcp_servers: list[McpServerFrame] = []
    additional_directories: list[str] = []


class OpenSessionParams(NewSessionParams, kw_only=True):
    """Of ``session/load`` and ``session/resume``."""

    session_id: str


class ListSessionsParams(AcpFrame):
    cwd: str | None = None
    cursor: str | None = None


class SessionParams(AcpFrame):
    session_id: str


class PromptParams(AcpFrame):
    session_id: str
    prompt: list[Block]


class SetModeParams(AcpFrame):
    session_id: str
    mode_id: str


class SetConfigOptionParams(AcpFrame):
    session_id: str
    config_id: str
    value: Json


class AuthenticateParams(AcpFrame):
    method_id: str


class PermissionOutcome(AcpFrame):
    outcome: str = ""
    option_id: str | None = None


class PermissionReply(AcpFrame):
    outcome: PermissionOutcome = msgspec.field(default_factory=PermissionOutcome)


class ReadFileParams(AcpFrame):
    """Of ``fs/read_text_file``: all of a file, or ``limit`` lines from ``line`` (from 1)."""

    session_id: str
    path: str
    line: int | None = None
    limit: int | None = None


class ReadFileReply(AcpFrame):
    content: str


class WriteFileParams(AcpFrame):
    """Of ``fs/write_text_file``."""

    session_id: str
    path: str
    content: str


class ElicitationReply(AcpFrame):
    action: str = ""
    content: JsonObject = {}


def without_nulls(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value
