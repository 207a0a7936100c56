"""The specs of Qwen Code: ``qwen-cli`` (one process per prompt) and ``qwen-acp`` (persistent).

Each fact was seen in a run of version 0.24.4:

- ``qwen-cli`` uses two-way JSON lines (``protocol/stream_json``), in which it asks for permission.
  Images would arrive there as text, and ``--json-schema`` is refused.
- ``qwen-acp`` ends its turn after a denial.
- It calls a busy service seven times in about 70 seconds, and no setting changes that.
- If the turn limit is reached it ends without a result: only the exit code shows it.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral import errors
from corral.agents.qwen import launch
from corral.agents.qwen.controls import FORMS, TOOLS, controls
from corral.agents.shared import exit_errors
from corral.agents.shared.api_errors import error_from_service
from corral.agents.spec import AcpTransport, AgentSpec, Ending, Package, Probe, StreamTransport
from corral.errors import CorralError
from corral.protocol.acp.quirks import AcpQuirks
from corral.protocol.ndjson import Translate
from corral.protocol.stream_json.frames import Frames
from corral.protocol.stream_json.quirks import StreamQuirks

_HIDDEN = (*(f'"{name}" not found in registry' for name in TOOLS), 'Tool "mcp__')
STREAM_QUIRKS = StreamQuirks(
    tools=TOOLS,
    denied_texts=("but that permission was declined", *_HIDDEN),
    error_text="[API Error: ",
    id_per_block=True,
    reports_session_total=True,
)
QUIRKS = AcpQuirks(
    name_from_meta=("toolName",),
    mcp_prefixes=("mcp__",),
    denied_texts=STREAM_QUIRKS.denied_texts,
    usage="chunks",
    set_model=None,
    command_prefixes=("/",),
    command_escape="\u2060",
    uses_client_files=True,
)
"""``command_escape`` is a word joiner, which no model sees."""


def explain(ending: Ending) -> CorralError | None:
    """The error of a turn; None for a success."""
    if ending.finish is None and ending.code == 53:
        return errors.TurnLimit(
            f"the turn limit of {ending.run.max_turns or 'the settings'} was reached",
            hint="Raise max_turns (--max-turns), or ask for less.",
        )
    return exit_errors.explain(
        ending,
        "Qwen Code",
        "qwen",
        _failed,
        "no saved session found",
        key_hint=launch.KEY_HINT,
    )


def _failed(_kind: str, message: str) -> CorralError:
    text = message.removeprefix(STREAM_QUIRKS.error_text).removesuffix("]")
    if text.startswith("Operation cancelled"):
        return errors.Interrupted("the turn was stopped")
    if "empty response" in text:
        return errors.EmptyAnswer(text, hint=exit_errors.NO_ANSWER_HINT)
    return error_from_service(text.removeprefix("Internal error: "), launch.KEY_HINT)


def translator() -> Translate:
    from corral.protocol.stream_json.client import StreamJsonClient

    return StreamJsonClient(STREAM_QUIRKS).translate


_HEADLESS = AgentSpec(
    name="qwen-cli",
    title="Qwen Code",
    description="Alibaba's Qwen Code: one process per prompt, asks for permission",
    transport=StreamTransport(frames=Frames, translator=translator, two_way=STREAM_QUIRKS),
    programs=("qwen",),
    package=Package(npm="@qwen-code/qwen-code", tested="0.24.4", minimum="0.24.4"),
    controls=controls,
    launch=launch.launch,
    meter_route=launch.meter_route,
    explain=explain,
    tools=TOOLS,
    probe=Probe(
        write=("write_file", {"file_path": "{cwd}/probe.txt", "content": "written by the agent\n"}),
        shell=("run_shell_command", {"command": "touch shell.txt", "is_background": False}),
        url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        model="scripted",
        read=("read_file", {"file_path": "{cwd}/here.txt"}),
        forms=FORMS,
    ),
    supports=launch.SUPPORTS,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
    asks=True,
    tool_call_hook="decide",
    resumes=True,
    native_resume=("env", "QWEN_HOME={home}/.qwen", "qwen", "--resume={session}"),
    keeps_unfinished="always",
    runs_git=True,
    cumulative_usage=True,
    prompt_limit=launch.PROMPT_LIMIT,
    hosts=(
        "chat.qwen.ai",
        "portal.qwen.ai",
        "dashscope.aliyuncs.com",
        "dashscope-intl.aliyuncs.com",
    ),
    env_names=launch.ENV_NAMES,
    secret_env=launch.SECRET_ENV,
    user_settings=".qwen/settings.json",
    user_files=(".qwen/QWEN.md", ".qwen/agents", ".qwen/skills", ".qwen/extensions"),
    project_files=(".qwen",),
    ignored_stderr=("Ripgrep not available", "[perf]"),
)
_ACP = replace(
    _HEADLESS,
    name="qwen-acp",
    aliases=("qwen",),
    description="Alibaba's Qwen Code, persistent (ACP): asks for permission",
    transport=AcpTransport(
        quirks=QUIRKS, arguments=("--acp",), mode_at_start=True, model_at_start=True
    ),
    launch=launch.launch_acp,
    cumulative_usage=False,
    supports=launch.SUPPORTS_ACP,
)

AGENTS = (_ACP, _HEADLESS)
