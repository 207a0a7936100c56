"""Starting Claude Code: arguments, settings, environment, and how the prompt is passed.

The prompt is passed as plain text. A leading ``/`` would be taken for a command, so an invisible
character is put before it. Files after ``@`` are not inlined.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from corral._agents.claude.controls import SETTINGS_FILE
from corral._agents.shared.launch import (
    check_effort,
    header_references,
    secret_variables,
    server_command,
    variable_references,
)
from corral._agents.spec import ACP_OPTIONS, Launch, LaunchContext, MeterRoute
from corral.errors import AuthenticationFailed
from corral.options import RunOptions
from corral.values import Json, as_object

PROMPT_LIMIT = 9 * 1024 * 1024
"""It refuses more than 10 MB."""
MODEL_ALIASES = frozenset({"default", "opus", "sonnet", "haiku", "fable", "best", "opusplan"})

SUPPORTS = frozenset(
    {
        "attachments",
        "fork",
        "images",
        "include_directories",
        "inherit",
        "max_cost",
        "max_turns",
        "mcp_servers",
        "output_schema",
        "permission_mode",
        "reasoning_effort",
        "replace_system_prompt",
        "resume",
        "retries",
        "system_prompt",
    }
)
SUPPORTS_ACP = (ACP_OPTIONS - {"session_mode", "audio"}) | {"retries"}
"""Without ``session_mode``: a mode that edits without asking would bypass the policy."""

SECRET_ENV = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_BEARER_TOKEN_BEDROCK",
    "ANTHROPIC_FOUNDRY_API_KEY",
)
_CLOUDS = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
ENV_NAMES = (
    *_CLOUDS,
    "ANTHROPIC_*",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_SKIP_*_AUTH",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
)
CONDITIONAL_ENV: dict[str, tuple[str, ...]] = {
    "CLAUDE_CODE_USE_BEDROCK": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_BEARER_TOKEN_BEDROCK",
        "AWS_REGION",
        "AWS_PROFILE",
    ),
    "CLAUDE_CODE_USE_VERTEX": ("CLOUD_ML_REGION", "GOOGLE_APPLICATION_CREDENTIALS"),
}
"""The keys of a cloud are passed on only if the model runs there: Claude Code's commands see
them."""
CREDENTIAL_FILES = (".claude/.credentials.json",)
ANTHROPIC = "https://api.anthropic.com"
USER_FILES = tuple(
    f".claude/{name}"
    for name in ("settings.json", "CLAUDE.md", "agents", "commands", "skills", "plugins")
)
KEY_HINT = (
    "Set ANTHROPIC_API_KEY, or CLAUDE_CODE_OAUTH_TOKEN (from `claude setup-token`), or sign in"
    " once by running `claude` in a terminal."
)

EFFORTS = ("low", "medium", "high", "xhigh")
MCP_FILE = "mcp.json"
_SYSTEM_FILE = "system.md"
_SOURCES = {"nothing": "", "project": "project,local", "user": "user"}
"""The settings that take effect, by the option ``inherit``."""
_GUARD = "\u2060"
"""A word joiner: trimming does not remove it, and no model sees it."""

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_PATIENT = {
    "API_FORCE_IDLE_TIMEOUT": "0",
    "API_TIMEOUT_MS": "100000000",
    "CLAUDE_ENABLE_STREAM_WATCHDOG": "0",
    "CLAUDE_ENABLE_BYTE_WATCHDOG": "0",
}
"""Without these it sends a request again if the response takes long."""
_SWITCHES = {
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    # A sub-agent or a command in the background would run on after its turn.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    # Unset, it asks the model before its tool servers are connected, and then without their
    # tools. The limits are in milliseconds.
    "MCP_CONNECTION_NONBLOCKING": "0",
    "MCP_TIMEOUT": "300000",
    "MCP_CONNECT_TIMEOUT_MS": "300000",
}


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    """Raises, before anything is spawned, if Claude Code cannot do what is asked."""
    auth_note = _auth(place)
    files = dict(place.controls.files)
    files[SETTINGS_FILE] = json.dumps(
        {**json.loads(files.get(SETTINGS_FILE, "{}")), **_fetch_settings(place)}
    )
    flags = [
        *("--print", "--verbose", "--include-partial-messages", "--forward-subagent-text"),
        *("--output-format", "stream-json", "--input-format", "stream-json"),
        *("--permission-prompt-tool", "stdio", "--strict-mcp-config"),
        *("--setting-sources", _SOURCES[run.inherit]),
        *("--settings", f"{place.home}/{SETTINGS_FILE}"),
        *place.controls.flags,
        *_flags(run, place, resume, files),
    ]
    text = f"{_GUARD}{prompt}" if prompt.lstrip().startswith("/") else prompt
    started = place.grants.started(run.mcp_servers)
    env = {**environment(run, place), **secret_variables(started, place.key)}
    argv = (*place.program, *flags)
    return Launch(
        argv=argv,
        env=env,
        stdin=text.encode(),
        files=files,
        notes=(auth_note,),
        service_url=_service_url(place),
    )


def launch_acp(run: RunOptions, place: LaunchContext, _prompt: str, _resume: str | None) -> Launch:
    """For claude-agent-acp: prompts, sessions and most options are sent by the protocol, and the
    policy with each session."""
    auth_note = _auth(place)
    # claude-agent-acp runs `claude auth status` in its own and in the session's folder. That
    # command reads all settings and would run the hooks of a repository.
    options = dict(place.controls.settings)
    settings = as_object(options["settings"])
    options["settings"] = {**settings, **_fetch_settings(place), "disableAllHooks": True}
    env = {**environment(run, place), "NO_BROWSER": "1"}
    # It would run `git status` for its system prompt, and git would run the repository's filters.
    env["CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS"] = "1"
    if run.model is not None:
        env["ANTHROPIC_MODEL"] = run.model
    return Launch(
        argv=place.program,
        env=env,
        stdin=b"",
        cwd=place.home,
        session_meta={"claudeCode": {"options": options}},
        notes=(auth_note,),
        service_url=_service_url(place),
    )


def _service_url(place: LaunchContext) -> str | None:
    if any(place.env.get(name) for name in _CLOUDS):
        return None
    return place.env.get("ANTHROPIC_BASE_URL") or ANTHROPIC


def meter_route(run: RunOptions, env: Mapping[str, str]) -> MeterRoute | str:
    keys = tuple(name for name in _KEYS if env.get(name))
    if any(env.get(name) for name in _CLOUDS) or not keys:
        return f"model calls are counted only with {' or '.join(_KEYS)}"
    return MeterRoute(
        url_env="ANTHROPIC_BASE_URL",
        url=env.get("ANTHROPIC_BASE_URL") or ANTHROPIC,
        key_env=keys,
        vendors=("anthropic",),
        pause_env=_PATIENT,
    )


def _fetch_settings(place: LaunchContext) -> dict[str, Json]:
    """It asks Anthropic's service about a URL before it fetches it. With a model elsewhere that
    service cannot be reached, and nothing would be fetched."""
    return {"skipWebFetchPreflight": True} if place.env.get("ANTHROPIC_BASE_URL") else {}


def environment(run: RunOptions, place: LaunchContext) -> dict[str, str]:
    env = {
        "CLAUDE_CONFIG_DIR": os.path.join(place.home, ".claude"),
        "TMPDIR": place.tmp,
        "CLAUDE_CODE_TMPDIR": place.tmp,
        "CLAUDE_CODE_MAX_RETRIES": str(run.retries),
        "NO_COLOR": "1",
        **_SWITCHES,
    }
    if run.inherit == "nothing":
        env["CLAUDE_CODE_DISABLE_CLAUDE_MDS"] = "1"
    return env


def _flags(
    run: RunOptions, place: LaunchContext, resume: str | None, files: dict[str, str]
) -> list[str]:
    """The flags of the options. Adds the files that they name to ``files``."""
    check_effort(run, "Claude Code", EFFORTS)
    budget, schema = run.max_cost, run.output_schema
    values = {
        "--model": run.model,
        "--resume": resume,
        "--max-turns": None if run.max_turns is None else str(run.max_turns),
        "--max-budget-usd": None if budget is None else f"{budget:f}",
        "--effort": run.reasoning_effort,
        "--json-schema": None if schema is None else json.dumps(schema),
    }
    flags = [word for flag, value in values.items() if value is not None for word in (flag, value)]
    if run.inherit == "nothing":
        flags.append("--disable-slash-commands")
    if resume is not None and run.fork:
        flags.append("--fork-session")
    system = run.system_prompt or run.replace_system_prompt
    if system is not None:
        files[_SYSTEM_FILE] = system
        name = "append-system-prompt" if run.system_prompt is not None else "system-prompt"
        flags += [f"--{name}-file", os.path.join(place.home, _SYSTEM_FILE)]
        flags += ["--system-prompt-snapshot", "off"]
    if started := place.grants.started(run.mcp_servers):
        # References to environment variables, which Claude Code replaces.
        servers: dict[str, Json] = {}
        for number, server in enumerate(started):
            # It is connected before the first request, which then declares its tools; otherwise the
            # model would have to search for them.
            how: dict[str, Json] = {"alwaysLoad": True}
            if server.url is not None:
                headers: Json = header_references(number, server)
                where: dict[str, Json] = {"type": "http", "url": server.url, "headers": headers}
            else:
                command, *args = server_command(number, started, place.key)
                env: Json = variable_references(number, server)
                where = {"command": command, "args": [*args], "env": env}
            servers[server.name] = {**where, **how}
        files[MCP_FILE] = json.dumps({"mcpServers": servers})
        flags += ["--mcp-config", os.path.join(place.home, MCP_FILE)]
    for folder in run.include_directories:
        flags += ["--add-dir", os.path.join(place.cwd, folder)]
    return flags


def _auth(place: LaunchContext) -> str:
    """A note on which credentials are used."""
    env = place.env
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", *_CLOUDS):
        if env.get(name):
            return f"authentication: {name}"
    if place.credentials:
        return "authentication: the login in ~/.claude"
    raise AuthenticationFailed(
        "no credentials for Claude Code were found", hint=KEY_HINT, phase="config"
    )
