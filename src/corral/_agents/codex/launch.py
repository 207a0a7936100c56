"""Starting Codex: arguments, a private home, and the model that it calls.

Every setting is an argument, and ``--strict-config`` makes a setting that Codex does not know an
error. Otherwise Codex would ignore it, and with it a part of the policy.
"""

from __future__ import annotations

import json
import os
import tomllib

from corral._agents.codex.controls import HOOKS, MODE_ACP, hook, toml_list
from corral._agents.shared.launch import (
    Route,
    behind_key,
    refuse_project_files,
    refuse_user_settings,
    secret_name,
    secret_variables,
    server_command,
)
from corral._agents.spec import Launch, LaunchContext, image_name
from corral._core.quoting import toml_string
from corral.errors import AuthenticationFailed, ConfigError
from corral.options import RunOptions

PROMPT_LIMIT = 1_048_576
"""Codex counts characters; a text never has fewer bytes than characters."""
LONGEST_ARGUMENT = 120_000
"""Linux allows 131,071 bytes per argument."""

SECRET_ENV = ("OPENAI_API_KEY", "CODEX_API_KEY")
ENV_NAMES = (*SECRET_ENV, "OPENAI_BASE_URL")
CREDENTIAL_FILES = (".codex/auth.json",)
SUPPORTS = frozenset(
    {
        "fork",
        "images",
        "include_directories",
        "inherit",
        "mcp_servers",
        "output_schema",
        "reasoning_effort",
        "replace_system_prompt",
        "resume",
        "retries",
        "system_prompt",
    }
)

OPENAI = "https://api.openai.com/v1"
PROVIDER = "corral"
"""Our own provider entry, which uses HTTP directly. Codex's own entry ignores OPENAI_BASE_URL and
tries a web socket five times first."""
_OFF = ("plugins", "apps", "goals", "image_generation", "tool_suggest", "shell_snapshot")
"""Features that contact OpenAI, offer tools that no policy knows, or run the user's profile."""
_NO_TRAFFIC = (
    "analytics.enabled=false",
    "check_for_update_on_startup=false",
    'otel.exporter="none"',
    'otel.trace_exporter="none"',
    'otel.metrics_exporter="none"',
)
"""Codex would send metrics to ab.chatgpt.com and check for a newer version."""
_NO_GIT = {"GIT_DIR": "/dev/null"}
"""Codex itself runs ``git status`` in the working directory, and git runs the filters in the
repository's settings. With this variable git finds no repository. It is removed from the
environment of the agent's commands."""
PROJECT_FILES = (
    ".codex/config.toml",
    ".codex/hooks.json",
    ".codex/rules",
    ".codex/agents",
    ".codex/prompts",
    ".codex/skills",
)
"""Files in the working directory that codex-acp obeys: it declares every folder trusted."""


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    """Raises, before anything is spawned, if Codex cannot do what is asked."""
    settings, notes = provider(run, place)
    files = {".codex/config.toml": ""}  # the home must exist; its content is not read
    flags = ["exec", "--json", "--ignore-user-config", "--strict-config", "--skip-git-repo-check"]
    flags += ["--color", "never", "--disable", "unbounded_connection_retries"]
    refuse_user_settings(run)
    hooks = _hooks(place)
    if run.inherit == "project":
        trust = toml_string("trusted")
        flags += ["-c", f"projects.{toml_string(place.cwd)}.trust_level={trust}"]
    else:
        # Codex does not obey an untrusted repository, but it would read its instructions.
        flags += [] if hooks else ["--disable", "hooks"]
        flags += ["--ignore-rules", "-c", "project_doc_max_bytes=0"]
        flags += ["-c", "skills.include_instructions=false"]
    for name in _OFF:
        flags += ["--disable", name]
    for number, path in enumerate(run.images):
        flags.append(f"--image={os.path.join(place.images, image_name(number, path))}")
    if run.model is not None:
        flags += ["--model", run.model]
    if run.replace_system_prompt is not None:
        files["instructions.md"] = run.replace_system_prompt
        named = toml_string(os.path.join(place.home, "instructions.md"))
        settings.append(f"model_instructions_file={named}")
    if run.system_prompt is not None:
        settings.append(f"developer_instructions={toml_string(run.system_prompt)}")
    if run.reasoning_effort is not None:
        settings.append(f"model_reasoning_effort={toml_string(run.reasoning_effort)}")
    if run.output_schema is not None:
        files["schema.json"] = json.dumps(run.output_schema)
        flags += ["--output-schema", os.path.join(place.home, "schema.json")]
    settings += [*_servers(run, place), *_NO_TRAFFIC, *hooks]
    # A login shell's profile may wait, as pyenv's does for a lock, and delay every command.
    settings.append("allow_login_shell=false")
    secrets = secret_variables(place.grants.started(run.mcp_servers), place.key)
    hidden = [*SECRET_ENV, *_NO_GIT, *secrets]
    settings.append(f"shell_environment_policy.exclude={toml_list(hidden)}")
    for setting in settings:
        if len(setting.encode()) > LONGEST_ARGUMENT:
            raise ConfigError(
                f"{setting.partition('=')[0]} is longer than an argument can be",
                hint="Put the text into a file, or into the prompt.",
            )
        flags += ["-c", setting]
    flags += place.controls.flags
    how = "fork" if run.fork else "resume"
    last = ["-"] if resume is None else [how, resume, "-"]
    return Launch(
        argv=(*place.program, *flags, *last),
        env={**environment(run, place), **secrets},
        stdin=prompt.encode(),
        files=files,
        notes=(*notes, *place.controls.notes),
        service_url=_service_url(place),
    )


def launch_acp(run: RunOptions, place: LaunchContext, _prompt: str, _resume: str | None) -> Launch:
    """For codex-acp: its settings are JSON, and its mode is the one for the policy.

    codex-acp applies the JSON to sessions only, so the same settings are also written to the
    file in the private home: what Codex does when its process starts (plug-ins, version checks)
    depends on that file only.
    """
    refuse_user_settings(run)
    refuse_project_files(run, place, "Codex would obey this repository's own settings")
    lines, notes = provider(run, place)
    off: tuple[str, ...] = (*_OFF, "unbounded_connection_retries")
    hooks = _hooks(place)
    lines += [*hooks, "bypass_hook_trust=true"] if hooks else []
    if run.inherit != "project":
        off = off if hooks else (*off, "hooks")
        lines += ["project_doc_max_bytes=0", "skills.include_instructions=false"]
        # The working directory is the project, whatever repository contains it: settings in
        # folders above are not read.
        lines.append("project_root_markers=[]")
    hidden = toml_list([*SECRET_ENV, *_NO_GIT])
    lines += ["allow_login_shell=false", f"shell_environment_policy.exclude={hidden}"]
    lines += [*_NO_TRAFFIC, *(f"features.{name}=false" for name in off)]
    if run.has_person:  # otherwise it asks in plan mode only
        lines.append("features.default_mode_request_user_input=true")
    if run.model is not None:
        lines.append(f"model={toml_string(run.model)}")
    lines += place.controls.flags
    text = "\n".join(lines) + "\n"
    env = {
        **environment(run, place),
        "CODEX_CONFIG": json.dumps(tomllib.loads(text)),
        "INITIAL_AGENT_MODE": str(place.controls.settings[MODE_ACP]),
        "NO_BROWSER": "1",
        "CODEX_ACP_PROMPT_SUGGESTIONS": "false",  # a call of the model after each turn
    }
    notes += (
        "for each session it calls a small model for a title, and does not count those tokens",
    )
    files = {".codex/config.toml": text}
    return Launch(
        argv=place.program,
        env=env,
        stdin=b"",
        files=files,
        notes=notes,
        service_url=_service_url(place),
    )


def _service_url(place: LaunchContext) -> str | None:
    """None with a sign-in: then the vendor's servers are several."""
    has_key = any(place.env.get(name) for name in SECRET_ENV)
    return place.env.get("OPENAI_BASE_URL") or (OPENAI if has_key else None)


meter_route: Route = behind_key(dict.fromkeys(SECRET_ENV, (("openai",), "OPENAI_BASE_URL", OPENAI)))


def environment(run: RunOptions, place: LaunchContext) -> dict[str, str]:
    return {
        "CODEX_HOME": os.path.join(place.home, ".codex"),
        "TMPDIR": place.tmp,
        "NO_COLOR": "1",
        "RUST_LOG": "error",
        **_NO_GIT,
    }


RESUME_SETTINGS = (
    "-c",
    f"model_provider={toml_string(PROVIDER)}",
    "-c",
    f"model_providers.{PROVIDER}={{name={toml_string(PROVIDER)},base_url={toml_string(OPENAI)},"
    'wire_api="responses",env_key="OPENAI_API_KEY"}',
)
"""Codex resumes a conversation only with the provider that it was started with."""


def provider(run: RunOptions, place: LaunchContext) -> tuple[list[str], tuple[str, ...]]:
    """The settings of the model's provider, and a note on them."""
    env = place.env
    key = next((name for name in SECRET_ENV if env.get(name)), None)
    url = env.get("OPENAI_BASE_URL")
    if key is None and url is None:
        if not place.credentials:
            raise AuthenticationFailed(
                "no credentials for Codex were found",
                hint="Set OPENAI_API_KEY, or sign in once with `codex login`.",
                phase="config",
            )
        return [], ("credentials: the login in ~/.codex/auth.json",)
    fields = [
        f"name={toml_string(PROVIDER)}",
        f"base_url={toml_string(url or OPENAI)}",
        'wire_api="responses"',
    ]
    fields += [f"{what}_max_retries={run.retries}" for what in ("request", "stream")]
    if key is not None:
        fields.append(f"env_key={toml_string(key)}")
    note = f"credentials: {key or 'none'}; the model is at {url or OPENAI}"
    settings = [f"model_provider={toml_string(PROVIDER)}"]
    return [*settings, f"model_providers.{PROVIDER}={{{','.join(fields)}}}"], (note,)


def _hooks(place: LaunchContext) -> list[str]:
    """The setting of the hooks: the one that judges paths, where the policy needs one, and the one
    that shows each call to ``on_tool_call``."""
    rules = {name: str(value) for name, value in place.controls.folder_rules(place).items()}
    if place.hook_command:
        others = rules.get(HOOKS, "[]")[1:-1]
        rules[HOOKS] = f"[{hook(place.hook_command)}{',' if others else ''}{others}]"
    return [f"{name}={value}" for name, value in rules.items()]


def _servers(run: RunOptions, place: LaunchContext) -> list[str]:
    """A server that does not start is an error: Codex would continue silently."""
    settings: list[str] = []
    started = place.grants.started(run.mcp_servers)
    for number, server in enumerate(started):
        if server.name not in place.controls.servers:
            continue
        # Secrets are references to environment variables.
        if server.url is not None:
            pairs = [
                f"{toml_string(name)}={toml_string(secret_name(number, name))}"
                for name in server.headers
            ]
            how = f"url={toml_string(server.url)},env_http_headers={{{','.join(pairs)}}}"
        else:
            program, *arguments = server_command(number, started, place.key)
            names = [secret_name(number, name) for name in server.env]
            how = f"command={toml_string(program)},args={toml_list(arguments)}"
            how += f",env_vars={toml_list(names)}"
        more = place.controls.servers[server.name]
        settings.append(f"mcp_servers.{server.name}={{{how},required=true{more}}}")
    return settings
