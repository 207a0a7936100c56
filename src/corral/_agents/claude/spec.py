"""The specs of Claude Code: ``claude-cli`` (one process per prompt) and ``claude-acp``
(persistent).

Each fact was seen in a run of version 2.1.325. ``claude-cli`` uses two-way JSON lines
(``_protocol/stream_json``): permission requests come on stdout and are answered on stdin. Its
``success`` counts only if ``is_error`` is false, and exit code 0 only if there is a result.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral._agents.claude import controls, errors, launch
from corral._agents.shared.launch import without_versions
from corral._agents.spec import AcpTransport, AgentSpec, Package, Probe, StreamTransport
from corral._agents.tested_files import digests_of
from corral._protocol.acp.quirks import AcpQuirks
from corral._protocol.ndjson import Translate
from corral._protocol.stream_json.frames import Frames, StreamQuirks
from corral.values import Json

_REFUSALS = (
    "is disabled for this session",
    "denied by your permission settings",
    "No such tool available: mcp__",  # denied, or its server did not start
)
STREAM_QUIRKS = StreamQuirks(
    tools=controls.TOOLS,
    denied_texts=_REFUSALS,
    edits_calls=True,
    question_tool=controls.QUESTIONS[0],
)


def translator() -> Translate:
    from corral._protocol.stream_json.client import StreamJsonClient

    return StreamJsonClient(STREAM_QUIRKS).translate


def is_supported_schema(schema: dict[str, Json]) -> bool:
    """The answer is the arguments of a tool, so it must be an object. The schema is a flag, so it
    must be short."""
    return schema.get("type") == "object" and len(str(schema)) < 100_000


_HEADLESS = AgentSpec(
    name="claude-cli",
    aliases=("claude", "claude-code"),
    title="Claude Code",
    description="Anthropic's Claude Code: one process per prompt, asks for permission",
    notes=(
        "Linux; its text is streamed as it is generated. It has its own support for "
        "schemas and continues after a denial. Accepts `max_cost`, `fork` and "
        "`reasoning_effort`. It starts no background work, and reads no `CLAUDE.md` "
        "without `inherit`. AWS and Google keys reach it only with Bedrock or Vertex."
    ),
    transport=StreamTransport(frames=Frames, translator=translator, two_way=STREAM_QUIRKS),
    programs=("claude",),
    vendor="anthropic",
    package=Package(
        name="@anthropic-ai/claude-code",
        tested="2.1.325",
        minimum="2.1.300",
        newest="2.1.327",
        digests=digests_of("@anthropic-ai/claude-code"),
        binaries={
            "linux-x86_64": "@anthropic-ai/claude-code-linux-x64/claude",
            "linux-aarch64": "@anthropic-ai/claude-code-linux-arm64/claude",
        },
    ),
    controls=controls.controls,
    launch=launch.launch,
    meter_route=launch.meter_route,
    explain=errors.explain,
    native_schema=is_supported_schema,
    tools=controls.TOOLS,
    probe=Probe(
        url_env="ANTHROPIC_BASE_URL",
        key_env="ANTHROPIC_API_KEY",
        model="claude-sonnet-5",
        default_models=("claude-opus-5-5",),
        forms=controls.FORMS,
        plain_command='claude -p "Hi"',
    ),
    supports=launch.SUPPORTS,
    capabilities=(
        *("tools", "files", "resume", "mcp", "usage", "thinking", "permissions", "questions"),
    ),
    asks=True,
    tool_call_hook="edit",
    resumes=True,
    native_resume=("env", "CLAUDE_CONFIG_DIR={home}/.claude", "claude", "--resume", "{session}"),
    keeps_unfinished="always",
    prompt_limit=launch.PROMPT_LIMIT,
    model_aliases=launch.MODEL_ALIASES,
    hosts=(
        "api.anthropic.com",
        "console.anthropic.com",
        "platform.claude.com",
        "{CLOUD_ML_REGION}-aiplatform.googleapis.com",
        "bedrock-runtime.{AWS_REGION}.amazonaws.com",
    ),
    env_names=launch.ENV_NAMES,
    own_names=without_versions(ANTHROPIC_BASE_URL="/v1"),
    conditional_env=launch.CONDITIONAL_ENV,
    secret_env=launch.SECRET_ENV,
    subscription_env=("CLAUDE_CODE_OAUTH_TOKEN",),
    credential_files=launch.CREDENTIAL_FILES,
    user_files=launch.USER_FILES,
    skill_folder=".claude/skills",
)

QUIRKS = AcpQuirks(
    name_from_meta=("claudeCode", "toolName"),
    kinds=controls.TOOLS,
    mcp_prefixes=("mcp__",),
    denied_texts=(*_REFUSALS, "Permission denied: "),
    late_updates=0.1,
    model_list_complete=False,
    command_prefixes=("/", " ", "\t", "\r", "\n"),
    command_escape="\u2060",
)


_ACP = replace(
    _HEADLESS,
    name="claude-acp",
    aliases=("claude-agent-acp",),
    description="Anthropic's Claude Code, persistent (ACP, through claude-agent-acp)",
    notes="The bridge makes the model write a title for each session.",
    transport=AcpTransport(quirks=QUIRKS, model_at_start=True),
    programs=("claude-agent-acp",),
    package=Package(
        name="@agentclientprotocol/claude-agent-acp",
        tested="0.99.0",
        minimum="0.99.0",
        newest="0.100.0",
        digests=digests_of("@agentclientprotocol/claude-agent-acp"),
    ),
    capabilities=tuple(each for each in _HEADLESS.capabilities if each != "questions"),
    native_schema=None,
    tool_call_hook="decide",
    controls=controls.controls_acp,
    launch=launch.launch_acp,
    explain=errors.explain_acp,
    supports=launch.SUPPORTS_ACP,
    user_files=(),
)

AGENTS = (_HEADLESS, _ACP)
