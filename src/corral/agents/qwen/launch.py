"""Starting Qwen Code: arguments, settings, environment, and how the prompt is passed.

Our settings are passed as the system's settings, which override those of the user and the
repository. In an untrusted folder the repository's files have no effect. MCP servers run in a
trusted folder only; there its ``.qwen`` has effect, and its ``.env`` may set variables that are
not set.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from msgspec.structs import replace

from corral.agents.qwen.controls import SETTINGS_FILE
from corral.agents.shared import mcp_config, prompt_command
from corral.agents.shared.launch_checks import check_effort, find_credentials
from corral.agents.spec import ACP_OPTIONS, Launch, LaunchContext, MeterRoute
from corral.errors import UntrustedFolder
from corral.options import RunOptions
from corral.values import Json

_SERVICES = {
    "OPENAI_API_KEY": ("openai", "OPENAI_BASE_URL", "https://api.openai.com/v1"),
    "ANTHROPIC_API_KEY": ("anthropic", "ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
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
    stdin, files, notes = prompt.encode(), dict[str, str](), list[str]()
    if prompt_command.has_special_syntax(prompt) and prompt_command.has_template_syntax(prompt):
        note, stdin = prompt_command.escape_prompt(prompt)
        notes.append(note)
    elif prompt_command.has_special_syntax(prompt):
        stdin, files = prompt_command.prompt_as_command(prompt, place, ".qwen")
    flags = ["--input-format=stream-json", "--output-format=stream-json"]
    flags += ["--include-partial-messages"]
    flags += [f"--resume={resume}", *(["--fork-session"] if run.fork else [])] if resume else []
    flags += [f"--max-session-turns={run.max_turns}"] if run.max_turns is not None else []
    flags += [f"--append-system-prompt={run.system_prompt}"] if run.system_prompt else []
    return replace(
        base,
        argv=(*base.argv, *flags),
        stdin=stdin,
        files={**base.files, **files},
        notes=(*base.notes, *notes),
    )


def launch_acp(run: RunOptions, place: LaunchContext, _prompt: str, _resume: str | None) -> Launch:
    base = _launch(run, place)
    return replace(base, argv=(*base.argv, "--acp"))


def meter_route(run: RunOptions, env: Mapping[str, str]) -> MeterRoute | str:
    key = next((name for name in _SERVICES if env.get(name)), None)
    if key is None:
        return f"model calls are counted only with {' or '.join(_SERVICES)}"
    service, url_env, url = _SERVICES[key]
    return MeterRoute(
        url_env=url_env,
        url=env.get(url_env) or url,
        key_env=(key,),
        vendors=("openai-chat" if service == "openai" else service,),
        unused_env=tuple(name for name in _SERVICES if name != key),
    )


def _launch(run: RunOptions, place: LaunchContext) -> Launch:
    key = find_credentials(place, _SERVICES, "Qwen Code", KEY_HINT)
    service, url_env, url = _SERVICES[key]
    check_effort(run, "Qwen Code", _EFFORTS)
    flags = [*place.controls.flags, f"--auth-type={service}"]
    flags += [f"--model={run.model}"] if run.model is not None else []
    flags += ["--extensions=none"] if run.inherit != "user" else []
    flags += [f"--system-prompt={run.replace_system_prompt}"] if run.replace_system_prompt else []
    flags += [f"--add-dir={os.path.join(place.cwd, name)}" for name in run.include_directories]
    # Whether the folder is trusted. In an untrusted folder the repository's own settings have no
    # effect, so it is trusted only if an option needs that.
    if run.mcp_servers and run.inherit != "project" and place.project_files:
        raise UntrustedFolder(
            "MCP servers need a trusted folder, and trust would let this repository's own settings"
            f" take effect: {', '.join(place.project_files)}",
            hint="If you trust them, set inherit='project' (--inherit project).",
            phase="config",
        )
    settings = {
        **json.loads(place.controls.files[SETTINGS_FILE]),
        **_settings(run, place, trusted=bool(run.mcp_servers) or run.inherit == "project"),
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
        **mcp_config.secret_variables(run),
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


def _settings(run: RunOptions, place: LaunchContext, *, trusted: bool) -> dict[str, Json]:
    """Our settings, which override those of the user and the repository."""
    servers: dict[str, Json] = {
        server.name: mcp_config.server_config(number, server)
        for number, server in enumerate(run.mcp_servers)
        if server.name in place.controls.servers
    }
    model: dict[str, Json] = {"generationConfig": {"maxRetries": 0}}
    if run.reasoning_effort is not None:
        model["reasoningEffort"] = run.reasoning_effort
    settings: dict[str, Json] = {
        "$version": 4,
        "security": {"folderTrust": {"enabled": not trusted}},
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
