"""Starting Copilot: arguments, environment, tool servers."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping

from corral._agents.copilot.stream import KEY_HINT
from corral._agents.shared.launch import (
    find_credentials,
    header_references,
    refuse_project_files,
    refuse_user_settings,
    secret_variables,
    server_command,
    variable_references,
)
from corral._agents.spec import ACP_OPTIONS, Launch, LaunchContext, MeterRoute
from corral.errors import ConfigError
from corral.options import RunOptions
from corral.values import Json

TOKENS = ("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN")
PROVIDER = "COPILOT_PROVIDER_BASE_URL"
_KEYS = ("COPILOT_PROVIDER_API_KEY", "COPILOT_PROVIDER_BEARER_TOKEN")
SECRET_ENV = (*TOKENS, *_KEYS, "COPILOT_PROVIDER_HEADERS")
ENV_NAMES = (
    *SECRET_ENV,
    PROVIDER,
    "COPILOT_PROVIDER_TYPE",
    "COPILOT_PROVIDER_WIRE_API",
    "COPILOT_PROVIDER_TRANSPORT",
    "COPILOT_PROVIDER_AZURE_API_VERSION",
    "COPILOT_PROVIDER_MODEL_ID",
    "COPILOT_PROVIDER_WIRE_MODEL",
    "COPILOT_PROVIDER_MAX_PROMPT_TOKENS",
    "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS",
    "COPILOT_MODEL",
    "COPILOT_GH_HOST",
    "COPILOT_CACHE_HOME",
    "GH_HOST",
)
HOOKS = (".github/hooks",)
SKILLS = (".agents/skills", ".github/skills", ".github/agents")
"""Files of a repository that Copilot offers to the model, whatever its switches say."""
SHORTEST_KEY = 8
"""Copilot redacts its key in its own output: a short key would also match parts of the JSON."""

SUPPORTS_HEADLESS = frozenset(
    {"inherit", "mcp_servers", "reasoning_effort", "resume", "system_prompt"}
)
SUPPORTS_ACP = ACP_OPTIONS | {"inherit", "reasoning_effort"}

_MODES = ("agent", "plan")
"""The session modes in which it asks, by the last part of their URIs."""
_REPORT = "usage.json"
_SERVERS = "mcp.json"
_HOOK_FILE = ".copilot/hooks/corral.json"
_HOOK_SECONDS = 86_400
_NAMES = uuid.UUID("5d1f1c0e-6d1e-4c53-9a53-3b1c3f1f0b7a")
"""A session's id is computed from the path of its home, so that it is known before the start."""


def launch_headless(
    run: RunOptions, place: LaunchContext, prompt: str, resume: str | None
) -> Launch:
    """One process per prompt. The prompt is sent on stdin: as plain text, of any length."""
    refuse_project_files(run, place, "Copilot would offer this repository's own skills and agents")
    session = resume or str(uuid.uuid5(_NAMES, place.home))
    files = _files(run, place)
    if place.hook_command:
        # It shows each call to ``on_tool_call``. A command that takes too long counts as
        # permission, so it gets longer than a run can take.
        hook: Json = {"type": "command", "bash": place.hook_command, "timeoutSec": _HOOK_SECONDS}
        files[_HOOK_FILE] = json.dumps({"version": 1, "hooks": {"preToolUse": [hook]}})
    report = os.path.join(place.tmp, _REPORT)
    flags = ["--output-format", "json", f"--usage-output-file={report}", "--no-ask-user"]
    flags.append(f"--resume={session}" if resume else f"--session-id={session}")
    if run.system_prompt is not None:
        prompt = f"{run.system_prompt}\n\n{prompt}"
    return Launch(
        argv=(*place.program, *flags, *_common(run, place), *place.controls.flags),
        env=_env(run, place),
        stdin=prompt.encode(),
        files=files,
        session_id=session,
        report=report,
        notes=(_auth(run, place),),
        service_url=place.env.get(PROVIDER),
    )


def launch_acp(run: RunOptions, place: LaunchContext, _prompt: str, _resume: str | None) -> Launch:
    """The persistent agent."""
    refuse_project_files(
        run, place, "Copilot would obey this repository's own hooks, skills and agents"
    )
    # In the mode ``autopilot`` it never asks, and writes anywhere.
    mode = (run.session_mode or "agent").rpartition("#")[2]
    if place.grants.is_limited and mode not in _MODES:
        raise ConfigError(
            f"session_mode={run.session_mode!r} would bypass the policy",
            hint="Use the policy instead: policy='edits' or policy='all'.",
        )
    return Launch(
        argv=(*place.program, "--acp", *_common(run, place), *place.controls.flags),
        env=_env(run, place),
        stdin=b"",
        files=_files(run, place),
        notes=(_auth(run, place),),
        service_url=place.env.get(PROVIDER),
    )


def meter_route(run: RunOptions, env: Mapping[str, str]) -> MeterRoute | str:
    keys = tuple(name for name in _KEYS if env.get(name))
    url = env.get(PROVIDER)
    if not url or not keys or env.get("COPILOT_PROVIDER_TYPE") == "azure":
        return f"model calls are counted only with {PROVIDER} and its key"
    return MeterRoute(
        url_env=PROVIDER,
        url=url,
        key_env=keys,
        vendors=("openai-chat", "openai", "anthropic"),
        unused_env=(*TOKENS,),
    )


def _files(run: RunOptions, place: LaunchContext) -> dict[str, str]:
    """The MCP servers, with references to environment variables, which Copilot replaces."""
    servers: dict[str, Json] = {}
    started = place.grants.started(run.mcp_servers)
    for number, server in enumerate(started):
        if server.url is not None:
            headers: Json = header_references(number, server)
            where: dict[str, Json] = {"type": "http", "url": server.url, "headers": headers}
        else:
            command, *args = server_command(number, started, place.key)
            env: Json = variable_references(number, server)
            where = {"type": "local", "command": command, "args": [*args], "env": env}
        servers[server.name] = {**where, "tools": ["*"]}
    return {_SERVERS: json.dumps({"mcpServers": servers})} if servers else {}


def _common(run: RunOptions, place: LaunchContext) -> list[str]:
    refuse_user_settings(run)
    flags = [
        "--no-auto-update",
        "--no-remote",
        "--no-remote-export",
        "--disable-builtin-mcps",
        "--log-level=none",
        f"--secret-env-vars={','.join(SECRET_ENV)}",
    ]
    # The persistent agent ignores the servers that ACP passes.
    if place.grants.started(run.mcp_servers):
        flags.append(f"--additional-mcp-config=@{os.path.join(place.home, _SERVERS)}")
    if run.inherit == "nothing":
        flags.append("--no-custom-instructions")
    if run.model is not None:
        flags.append(f"--model={run.model}")
    if run.reasoning_effort is not None:
        flags.append(f"--reasoning-effort={run.reasoning_effort}")
    folders = (os.path.join(place.cwd, name) for name in place.grants.writable)
    return [*flags, *(f"--add-dir={folder}" for folder in folders)]


def _auth(run: RunOptions, place: LaunchContext) -> str:
    """A note on which credentials are used. Raises if they or the model are missing."""
    env = place.env
    for name in _KEYS:
        if 0 < len(env.get(name, "")) < SHORTEST_KEY:
            raise ConfigError(
                f"{name} is shorter than {SHORTEST_KEY} characters",
                hint="Copilot redacts it in its own output, which would break. A server"
                " that takes no key needs none.",
            )
    if env.get(PROVIDER):
        if not (run.model or env.get("COPILOT_MODEL") or env.get("COPILOT_PROVIDER_MODEL_ID")):
            raise ConfigError(f"with {PROVIDER} a model must be named", hint="Give model=.")
        return f"authentication: {PROVIDER}; GitHub is not contacted"
    return f"authentication: {find_credentials(place, TOKENS, 'Copilot', KEY_HINT)}"


def _env(run: RunOptions, place: LaunchContext) -> dict[str, str]:
    env = {
        "COPILOT_HOME": os.path.join(place.home, ".copilot"),
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_ALLOW_ALL": "false",
        "TMPDIR": place.tmp,
        "NO_COLOR": "1",
    }
    if place.env.get(PROVIDER):
        env["COPILOT_OFFLINE"] = "true"
    return {**env, **secret_variables(place.grants.started(run.mcp_servers), place.key)}
