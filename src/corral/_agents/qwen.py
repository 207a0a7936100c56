"""Qwen Code: ``qwen-cli`` (one process per prompt) and ``qwen-acp`` (persistent).

Each fact was seen in a run of version 0.24.4:

- ``qwen-cli`` uses two-way JSON lines (``_protocol/stream_json``), in which it asks for permission.
  Images would arrive there as text, and ``--json-schema`` is refused.
- ``qwen-acp`` ends its turn after a denial.
- It calls a busy service seven times in about 70 seconds, and no setting changes that.
- If the turn limit is reached it ends without a result: only the exit code shows it.

The policy:

- Its own default is the mode ``auto``, which writes without asking: so the mode is always set. In
  ``default`` it reads what it believes to be the workspace, and asks about the rest.
- A command that only reads runs without asking, unless a rule under ``permissions.ask`` names its
  tool. So every tool that may be used is named there, reading included: it asks us about each
  call, and ``_sessions/permissions.py`` judges the paths.
- A rule for ``edit``, ``read_file`` or ``run_shell_command`` applies to all tools of its kind. So
  a kind is either denied completely, and then not offered, or it asks us about every call.
- The permission requests of a sub-agent do not reach us, and its denials are not reported: so
  there are no sub-agents.

The launch: our settings are passed as the system's settings, which override those of the user and
the repository. In an untrusted folder the repository's files have no effect. MCP servers run in a
trusted folder only; there its ``.qwen`` has effect, and its ``.env`` may set variables that are
not set.
"""

from __future__ import annotations

import json
import os

from msgspec.structs import replace

from corral import errors
from corral._agents.grants import Grants
from corral._agents.shared.controls import (
    READS_OUTSIDE,
    UNASKED_BY_DEFAULT,
    check_names,
    prefixed,
    tools_by_capability,
)
from corral._agents.shared.errors import AgentErrors, turn_limit
from corral._agents.shared.launch import (
    behind_key,
    check_effort,
    find_credentials,
    plain_prompt,
    refuse_trust,
    secret_variables,
    server_config,
    without_versions,
)
from corral._agents.spec import (
    ACP_OPTIONS,
    AcpTransport,
    Act,
    AgentControls,
    AgentSpec,
    Enforced,
    Form,
    Launch,
    LaunchContext,
    Package,
    Probe,
    StreamTransport,
    TurnEnding,
)
from corral._agents.tested_files import digests_of
from corral._protocol.acp.quirks import AcpQuirks
from corral._protocol.ndjson import Translate
from corral._protocol.stream_json.frames import Frames, StreamQuirks
from corral.errors import CorralError
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import Capability, Enforcer
from corral.values import Json, McpServer

SETTINGS_FILE = "settings.json"
_HARMLESS = ("todo_write", "task_stop", "exit_plan_mode")
_NEVER = (
    "agent",
    "list_agents",
    "send_message",
    "skill",
    "ask_user_question",
    "cron_create",
    "cron_list",
    "cron_delete",
    "loop_wakeup",
    "enter_worktree",
    "exit_worktree",
    "enter_plan_mode",
    "read_mcp_resource",
    "get_goal",
    "update_goal",
    "propose_goal",
    "report_findings",
    "record_artifact",
    "record_source",
    "artifact",
    "workflow",
    "image_gen",
    "exec",
    "create_sub_session",
    "save_memory",
    "display_image",
    "task_create",
    "task_update",
    "task_list",
)
"""They outlive the turn, act without reporting it, or need a person at a terminal."""
TOOLS: dict[str, ToolKind] = {
    **dict.fromkeys(_NEVER, "other"),
    **dict.fromkeys(_HARMLESS, "think"),
    **dict.fromkeys(("read_file", "list_directory"), "read"),
    **dict.fromkeys(("grep_search", "glob"), "search"),
    **dict.fromkeys(("zoom_image", "lsp"), "read"),
    **dict.fromkeys(("edit", "write_file", "notebook_edit"), "edit"),
    **dict.fromkeys(("run_shell_command", "monitor"), "execute"),
    **dict.fromkeys(("web_fetch", "web_search"), "fetch"),
}
_TOOLS_OF = tools_by_capability(TOOLS)

FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (
        ("run_shell_command", {"command": "{command}", "is_background": False}),
        ("monitor", {"command": "{command}", "description": "Run it"}),
    ),
    "background": (("run_shell_command", {"command": "{command}", "is_background": True}),),
    "write": (("write_file", {"file_path": "{abspath}", "content": "{text}"}),),
    "edit": (
        ("edit", {"file_path": "{abspath}", "old_string": "{before}", "new_string": "{after}"}),
    ),
    "read": (("read_file", {"file_path": "{abspath}"}),),
    "list": (("list_directory", {"path": "{abspath}"}),),
    "find": (("glob", {"pattern": "*", "path": "{abspath}"}),),
    "search": (("grep_search", {"pattern": "{pattern}", "path": "{abspath}"}),),
    "fetch": (("web_fetch", {"url": "{url}", "prompt": "What is there?"}),),
    "web_search": (("web_search", {"query": "{query}"}),),
    "delegate": (
        (
            "agent",
            {"description": "Do it", "prompt": "{prompt}", "subagent_type": "general-purpose"},
        ),
    ),
    "skill": (("skill", {"skill": "{skill}"}),),
    "memory": (("save_memory", {"fact": "{text}", "scope": "project"}),),
    "mcp_resource": (("read_mcp_resource", {"server": "{server}", "uri": "{uri}"}),),
}
"""How the model calls the tools."""


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """Raises ``PolicyError`` for a tool name that is nearly one of Qwen Code's."""
    check_names(grants.tool_lists, TOOLS, "Qwen Code", prefixed("mcp__"), strict=run.strict)
    deny = [*_NEVER]
    ask: list[Json] = []
    enforced: dict[Capability, Enforced] = {}
    for capability, tools in _TOOLS_OF.items() if not grants.is_native else ():
        grant = grants.of(capability)
        # It also denies commands that do what a denied tool does, whatever a rule allows.
        needed = not grants.shell.is_denied and grant.would_ask
        if grant.is_denied and not needed:
            deny += tools
        else:
            ask += tools
        reads = capability == "read" and grants.is_limited and not grant.is_denied
        enforced[capability] = Enforced(
            "native" if grant.is_denied else "brokered", READS_OUTSIDE if reads else ""
        )
    ask += [name for name in grants.denied if name not in deny]
    ask += _HARMLESS if run.hooked else ()
    # Tools of servers that are not started cannot be called; the others ask.
    started = grants.listed is not None or not grants.mcp.is_denied
    own: Enforcer = "native" if grants.own_mcp.is_denied else "brokered"
    enforced["mcp"] = Enforced("brokered" if started else "native", exceptions={"own": own})
    return AgentControls(
        enforced=enforced,
        own_default="its mode default, in which it reads, and asks for the rest",
        flags=(
            "--approval-mode",
            "plan" if grants.is_plan else "default",
            f"--exclude-tools={','.join(deny)}",
        ),
        files={SETTINGS_FILE: json.dumps({"permissions": {"ask": ask}})},
        unhooked=(UNASKED_BY_DEFAULT,) if grants.is_native else (),
    )


_SERVICES = {
    "OPENAI_API_KEY": (("openai-chat",), "OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "ANTHROPIC_API_KEY": (("anthropic",), "ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
}
KEY_HINT = f"Set {' or '.join(_SERVICES)}; of the first, OPENAI_BASE_URL is the service."
_MODELS = ("OPENAI_MODEL", "QWEN_MODEL", "ANTHROPIC_MODEL")
_EFFORTS = ("none", "low", "medium", "high", "xhigh")
_BOTH = {"include_directories", "inherit", "mcp_servers", "permission_mode", "reasoning_effort",
         "replace_system_prompt", "resume", "system_prompt"}  # fmt: skip
SUPPORTS = frozenset(_BOTH | {"fork", "max_turns"})
SUPPORTS_ACP = (ACP_OPTIONS - {"session_mode"}) | _BOTH
"""Without ``session_mode``: a mode that writes without asking would bypass the policy."""
SECRET_ENV = tuple(_SERVICES)
ENV_NAMES = (*SECRET_ENV, *(url for _, url, _ in _SERVICES.values()), *_MODELS)
PROMPT_LIMIT = 8 * 1024 * 1024 - 64 * 1024
"""Qwen Code cuts stdin at 8 MiB; the margin is for the system prompt."""


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    """One process per prompt. The prompt is passed as plain text."""
    base = _launch(run, place)
    text = plain_prompt(prompt, place, ".qwen")
    flags = ["--input-format=stream-json", "--output-format=stream-json"]
    flags += ["--include-partial-messages"]
    flags += [f"--resume={resume}", *(["--fork-session"] if run.fork else [])] if resume else []
    flags += [f"--max-session-turns={run.max_turns}"] if run.max_turns is not None else []
    flags += [f"--append-system-prompt={run.system_prompt}"] if run.system_prompt else []
    return replace(
        base,
        argv=(*base.argv, *flags),
        stdin=text.stdin,
        files={**base.files, **text.files},
        notes=(*base.notes, *text.notes),
    )


def launch_acp(run: RunOptions, place: LaunchContext, _prompt: str, _resume: str | None) -> Launch:
    base = _launch(run, place)
    return replace(base, argv=(*base.argv, "--acp"))


def _launch(run: RunOptions, place: LaunchContext) -> Launch:
    key = find_credentials(place, _SERVICES, "Qwen Code", KEY_HINT)
    (service,), url_env, url = _SERVICES[key]
    check_effort(run, "Qwen Code", _EFFORTS)
    flags = [*place.controls.flags, f"--auth-type={service.removesuffix('-chat')}"]
    flags += [f"--model={run.model}"] if run.model is not None else []
    flags += ["--extensions=none"] if run.inherit != "user" else []
    flags += [f"--system-prompt={run.replace_system_prompt}"] if run.replace_system_prompt else []
    flags += [f"--add-dir={os.path.join(place.cwd, name)}" for name in run.include_directories]
    # Whether the folder is trusted. In an untrusted folder the repository's own settings have no
    # effect, so it is trusted only if an option needs that.
    started = place.grants.started(run.mcp_servers)
    if started and run.inherit != "project":
        trust = "trust would let this repository's own settings take effect"
        refuse_trust(place, f"MCP servers need a trusted folder, and {trust}")
    settings = {
        **json.loads(place.controls.files[SETTINGS_FILE]),
        **_settings(run, started, place.key),
    }
    env = {
        "QWEN_HOME": os.path.join(place.home, ".qwen"),
        "QWEN_CODE_SYSTEM_SETTINGS_PATH": os.path.join(place.home, SETTINGS_FILE),
        "QWEN_CODE_NO_RELAUNCH": "true",
        "QWEN_CODE_LEGACY_MCP_BLOCKING": "1",  # else the first request has no MCP tools
        # A ``.env`` of the repository may set variables that are not set here.
        url_env: place.env.get(url_env) or url,
        "NODE_TLS_REJECT_UNAUTHORIZED": "1",
        "QWEN_TLS_INSECURE": "0",
        "TMPDIR": place.tmp,
        "NO_COLOR": "1",
        **secret_variables(started, place.key),
    }
    return Launch(
        argv=(*place.program, *flags),
        env=env,
        stdin=b"",
        service_url=env[url_env],
        files={
            SETTINGS_FILE: json.dumps(settings),
            ".qwen/settings.json": json.dumps(dict(place.user_settings)),
        },
        hidden_env=frozenset(_SERVICES) - {key},
        notes=(f"authentication: {key}",),
    )


def _settings(run: RunOptions, started: tuple[McpServer, ...], key: str) -> dict[str, Json]:
    """Our settings, which override those of the user and the repository."""
    servers: dict[str, Json] = {
        server.name: server_config(number, started, key) for number, server in enumerate(started)
    }
    model: dict[str, Json] = {"generationConfig": {"maxRetries": 0}}
    if run.reasoning_effort is not None:
        model["reasoningEffort"] = run.reasoning_effort
    settings: dict[str, Json] = {
        "$version": 4,
        "security": {"folderTrust": {"enabled": not started and run.inherit != "project"}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "ui": {"enableFollowupSuggestions": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        "tools": {"toolSearch": {"enabled": False}},
        "model": model,
        "mcpServers": servers,
    }
    if run.inherit == "nothing":
        settings |= {
            "disableAllHooks": True,
            "context": {"fileName": "none-of-the-repository.md"},
            "skills": {"disabledLevels": ["project", "user", "extension", "bundled"]},
            "mcp": {"allowed": [*servers] or ["none"]},
        }
    return settings


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


def _failed(_kind: str, message: str) -> CorralError:
    text = message.removeprefix(STREAM_QUIRKS.error_text).removesuffix("]")
    if text.startswith("Operation cancelled"):
        return errors.Interrupted("the turn was stopped")
    if "empty response" in text:
        return ERRORS.make(errors.EmptyAnswer, text)
    return ERRORS.from_service(text.removeprefix("Internal error: "))


ERRORS = AgentErrors(
    title="Qwen Code",
    program="qwen",
    key_hint=KEY_HINT,
    failed=_failed,
    lost="no saved session found",
)


def explain(ending: TurnEnding) -> CorralError | None:
    """The error of a turn; None for a success."""
    is_limit = ending.finish is None and ending.code == 53
    return turn_limit(ending.run) if is_limit else ERRORS.explain(ending)


def translator() -> Translate:
    from corral._protocol.stream_json.client import StreamJsonClient

    return StreamJsonClient(STREAM_QUIRKS).translate


_HEADLESS = AgentSpec(
    name="qwen-cli",
    title="Qwen Code",
    description="Alibaba's Qwen Code: one process per prompt, asks for permission",
    notes=(
        "It continues after a denial. No images. Both Qwen agents run git themselves, so "
        "a repository whose git settings name programs (filters) is refused without "
        "`inherit`."
    ),
    transport=StreamTransport(frames=Frames, translator=translator, two_way=STREAM_QUIRKS),
    programs=("qwen",),
    package=Package(
        name="@qwen-code/qwen-code",
        tested="0.24.4",
        minimum="0.24.4",
        digests=digests_of("@qwen-code/qwen-code"),
    ),
    controls=controls,
    launch=launch,
    meter_route=behind_key(_SERVICES),
    explain=explain,
    tools=TOOLS,
    probe=Probe(
        url_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        model="scripted",
        forms=FORMS,
    ),
    supports=SUPPORTS,
    capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
    asks=True,
    tool_call_hook="decide",
    resumes=True,
    native_resume=("env", "QWEN_HOME={home}/.qwen", "qwen", "--resume={session}"),
    keeps_unfinished="always",
    runs_git=True,
    cumulative_usage=True,
    prompt_limit=PROMPT_LIMIT,
    hosts=(
        "chat.qwen.ai",
        "portal.qwen.ai",
        "dashscope.aliyuncs.com",
        "dashscope-intl.aliyuncs.com",
    ),
    env_names=ENV_NAMES,
    own_names=without_versions(ANTHROPIC_BASE_URL="/v1"),
    secret_env=SECRET_ENV,
    user_settings=".qwen/settings.json",
    user_files=(".qwen/QWEN.md", ".qwen/agents", ".qwen/skills", ".qwen/extensions"),
    project_files=(".qwen",),
    skill_folder=".qwen/skills",
    ignored_stderr=("Ripgrep not available", "[perf]"),
)
_ACP = replace(
    _HEADLESS,
    name="qwen-acp",
    aliases=("qwen",),
    description="Alibaba's Qwen Code, persistent (ACP): asks for permission",
    notes=(
        "With `OPENAI_API_KEY` or `ANTHROPIC_API_KEY`. A denied permission request ends "
        "its turn. MCP servers are refused if the repository has a `.qwen`."
    ),
    transport=AcpTransport(
        quirks=QUIRKS, arguments=("--acp",), mode_at_start=True, model_at_start=True
    ),
    launch=launch_acp,
    cumulative_usage=False,
    supports=SUPPORTS_ACP,
)

AGENTS = (_ACP, _HEADLESS)
