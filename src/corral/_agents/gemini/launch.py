"""Starting the Gemini CLI: arguments, settings, environment, and how the prompt is passed.

The prompt must reach the model as plain text. On stdin the CLI would take a leading ``/`` for a
command and inline the files after every ``@``. So a prompt with either is written as a custom
command in the private home, whose text the CLI sends unchanged, and stdin names that command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from corral._agents.gemini.controls import POLICY_FILE
from corral._agents.shared.launch import (
    PromptInput,
    escape_slash,
    has_template_syntax,
    plain_prompt,
    refuse_trust,
    secret_variables,
    server_config,
    without_versions,
)
from corral._agents.spec import ACP_OPTIONS, Launch, LaunchContext, MeterRoute, image_name
from corral.errors import AuthenticationFailed, ConfigError
from corral.options import RunOptions
from corral.values import Json, deep_merge

PROMPT_LIMIT = 8 * 1024 * 1024 - 64 * 1024
"""The CLI silently cuts stdin at 8 MiB; the margin is for the system prompt."""

MODEL_ALIASES = frozenset({"auto", "pro", "flash", "flash-lite"})

SUPPORTS = frozenset(
    {
        "system_prompt",
        "replace_system_prompt",
        "images",
        "expand_files",
        "sandbox",
        "include_directories",
        "max_turns",
        "reasoning_effort",
        "retries",
        "mcp_servers",
        "resume",
        "inherit",
    }
)

SUPPORTS_ACP = (SUPPORTS - {"expand_files"}) | ACP_OPTIONS

SECRET_ENV = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
ENV_NAMES = (
    *SECRET_ENV,
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_VERTEX_BASE_URL",
    "GOOGLE_GENAI_USE_VERTEXAI",
    "GOOGLE_GENAI_USE_GCA",
    "GOOGLE_GENAI_API_VERSION",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION",
    "GOOGLE_CLOUD_QUOTA_PROJECT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GEMINI_CLI_USE_COMPUTE_ADC",
    "CLOUD_SHELL",
    "GEMINI_MODEL",
    "GEMINI_SANDBOX",
)
CREDENTIAL_FILES = (
    ".gemini/oauth_creds.json",
    ".gemini/google_accounts.json",
    ".gemini/gemini-credentials.json",
    ".gemini/installation_id",
)
USER_SETTINGS = ".gemini/settings.json"
USER_FILES = (".gemini/extensions", ".gemini/skills", ".gemini/agents", ".gemini/GEMINI.md")
PROJECT_FILES = (".gemini", ".agents/skills")
PARENT_FILES = (".env", ".gemini/.env")
"""Searched in the working directory and every folder above it, up to the root."""

_DOT_ENV_NAMES = (*SECRET_ENV, "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION")
"""Variables that a ``.env`` may set even in an untrusted folder, unless they are already set."""


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    """Raises, before anything is spawned, if the CLI cannot do what is asked."""
    if run.system_prompt is not None:
        prompt = f"{run.system_prompt}\n\n{prompt}"
    if run.images and has_template_syntax(prompt):
        raise ConfigError(
            "with images the prompt may not contain {{args}}, !{ or @{",
            hint="The Gemini CLI would act on them.",
        )
    names = [
        f"@{{{os.path.join(place.images, image_name(number, path))}}}"
        for number, path in enumerate(run.images)
    ]
    text = plain_prompt("\n".join([prompt, *names]), place, ".gemini", is_command=bool(run.images))
    if run.expand_files and not run.images:
        text = PromptInput(escape_slash(prompt))
    flags = ["--output-format", "stream-json"]
    if resume is not None:
        flags += ["--resume", resume]
    return _launch(run, place, flags, text)


def launch_acp(run: RunOptions, place: LaunchContext, _prompt: str, _resume: str | None) -> Launch:
    """The persistent CLI: prompts and sessions are sent by the protocol."""
    # In ``autoEdit`` the file tools do not consult the policy file at all.
    if run.session_mode in ("autoEdit", "yolo") and place.controls.files:
        raise ConfigError(
            f"session_mode={run.session_mode!r} would bypass the policy",
            hint="Use the policy instead: policy='edits' or policy='all'.",
        )
    run = replace(run, images=())  # they are part of the prompt
    return _launch(run, place, ["--acp"], PromptInput(b""))


def _launch(run: RunOptions, place: LaunchContext, flags: list[str], prompt: PromptInput) -> Launch:
    method, auth_note = _auth(place)
    trusted = _trust(run, place)
    theirs = dict(place.user_settings)
    if isinstance(servers := theirs.get("mcpServers"), dict):
        # A trusted server's tools do not ask.
        theirs["mcpServers"] = {
            name: {**server, "trust": False} if isinstance(server, dict) else server
            for name, server in servers.items()
        }
    settings = deep_merge(theirs, _settings(run, place, method))
    settings_text = msgspec.json.format(msgspec.json.encode(settings), indent=1).decode()
    folder_rules = place.controls.folder_rules(place)
    # None in the agent's own mode, which has no policy file.
    rules = {**place.controls.files, **{name: str(text) for name, text in folder_rules.items()}}
    files = {**prompt.files, ".gemini/settings.json": settings_text, **rules}
    env = {
        "GEMINI_CLI_HOME": place.home,
        "TMPDIR": place.tmp,
        "GEMINI_CLI_NO_RELAUNCH": "1",
        "GEMINI_CLI_TRUST_WORKSPACE": "true" if trusted else "false",
        "GEMINI_FORCE_FILE_STORAGE": "true",
        "NO_COLOR": "1",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        **secret_variables(place.grants.started(run.mcp_servers), place.key),
    }
    if run.inherit != "project":
        env |= {name: "" for name in _DOT_ENV_NAMES if name not in place.env}
    if run.replace_system_prompt is not None:
        files["system.md"] = run.replace_system_prompt
        env["GEMINI_SYSTEM_MD"] = os.path.join(place.home, "system.md")
    notes = [auth_note, *place.controls.notes]
    if trusted:
        notes.append("the folder is trusted: GEMINI.md in it is read")
    notes += prompt.notes
    common = _flags(run, place, has_rules=bool(rules))
    variable, url = _SERVICES.get(method, ("", None))
    return Launch(
        argv=(*place.program, *flags, *common),
        env=env,
        stdin=prompt.stdin,
        files=files,
        notes=tuple(notes),
        service_url=place.env.get(variable) or url,
    )


def _flags(run: RunOptions, place: LaunchContext, *, has_rules: bool) -> list[str]:
    flags = [*place.controls.flags]
    if has_rules:
        policy = os.path.join(place.home, POLICY_FILE)
        flags += ["--policy", policy, "--admin-policy", policy]
    if run.model is not None:
        flags += [f"--model={run.model}"]
    if run.sandbox == "agent":
        flags.append("--sandbox")
    if run.inherit != "user":
        flags += ["--extensions", "none"]
    if run.inherit == "nothing":
        # A second name behind one flag would join the prompt.
        for server in place.grants.started(run.mcp_servers):
            flags += ["--allowed-mcp-server-names", server.name]
    images = (place.images,) if run.images else ()
    for folder in (*run.include_directories, *place.grants.writable, *images):
        if "," in folder:
            raise ConfigError(f"the Gemini CLI takes no folder with a comma: {folder}")
        flags += ["--include-directories", os.path.join(place.cwd, folder)]
    return flags


def _auth(place: LaunchContext) -> tuple[str, str]:
    """The authentication method for the credentials that were found, and a note on it."""
    env = place.env
    has_login = any(path.endswith("oauth_creds.json") for path in place.credentials)
    if _on(env.get("GOOGLE_GENAI_USE_VERTEXAI")):
        return "vertex-ai", "authentication: Vertex AI (GOOGLE_GENAI_USE_VERTEXAI)"
    if env.get("GEMINI_API_KEY"):
        also = "; a Google login was found too and is not used" if has_login else ""
        return "gemini-api-key", f"authentication: GEMINI_API_KEY{also}"
    if has_login or _on(env.get("GOOGLE_GENAI_USE_GCA")):
        return "oauth-personal", "authentication: the Google login in ~/.gemini"
    if _on(env.get("CLOUD_SHELL")):
        return "cloud-shell", "authentication: Cloud Shell"
    if _on(env.get("GEMINI_CLI_USE_COMPUTE_ADC")):
        return "compute-default-credentials", "authentication: compute credentials"
    if env.get("GOOGLE_GEMINI_BASE_URL"):
        return "gateway", "authentication: left to GOOGLE_GEMINI_BASE_URL"
    raise AuthenticationFailed(
        "no credentials for the Gemini CLI were found",
        hint="Set GEMINI_API_KEY or GOOGLE_API_KEY, or sign in once by running `gemini` in a"
        " terminal.",
        phase="config",
    )


_without_version = without_versions(GOOGLE_GEMINI_BASE_URL="/v1beta")


def own_names(env: dict[str, str]) -> dict[str, str]:
    """The same variables, with the key under the name that the CLI reads: it uses
    ``GOOGLE_API_KEY`` for Vertex AI only."""
    env = _without_version(env)
    others = ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA")
    if env.get("GEMINI_API_KEY") or any(_on(env.get(name)) for name in others):
        return env
    kept = {name: value for name, value in env.items() if name != "GOOGLE_API_KEY"}
    key = env.get("GOOGLE_API_KEY")
    return {**kept, "GEMINI_API_KEY": key} if key else env


_SERVICES = {
    "gemini-api-key": ("GOOGLE_GEMINI_BASE_URL", "https://generativelanguage.googleapis.com"),
    "gateway": ("GOOGLE_GEMINI_BASE_URL", None),
    "oauth-personal": ("CODE_ASSIST_ENDPOINT", "https://cloudcode-pa.googleapis.com"),
    "vertex-ai": ("GOOGLE_VERTEX_BASE_URL", None),
}
"""Authentication method → the variable with the service's URL, and the URL without it."""


def meter_route(run: RunOptions, env: Mapping[str, str]) -> MeterRoute | str:
    if _on(env.get("GOOGLE_GENAI_USE_VERTEXAI")) or not env.get("GEMINI_API_KEY"):
        return "model calls are counted only with GEMINI_API_KEY"
    variable, url = _SERVICES["gemini-api-key"]
    return MeterRoute(
        url_env=variable,
        url=env.get(variable) or url or "",
        key_env=("GEMINI_API_KEY",),
        vendors=("gemini",),
        unused_env=("GOOGLE_API_KEY",),
    )


def _on(value: str | None) -> bool:
    return value is not None and value.lower() in ("true", "1")


def _trust(run: RunOptions, place: LaunchContext) -> bool:
    """Whether the folder is trusted. In an untrusted folder the repository's own settings have no
    effect, so it is trusted only if an option needs that."""
    if run.inherit == "project":
        return True
    reasons = [
        why
        for why, needed in (
            ("MCP servers", bool(place.grants.started(run.mcp_servers))),
            ("plan mode", place.grants.is_plan),
            ("on_tool_call", bool(place.hook_command)),
            ("inherit='user'", run.inherit == "user"),
        )
        if needed
    ]
    if reasons:
        trust = "trust would let this repository's own settings take effect"
        refuse_trust(place, f"{' and '.join(reasons)} need a trusted folder, and {trust}")
    return bool(reasons)


def _settings(run: RunOptions, place: LaunchContext, method: str) -> dict[str, Json]:
    own = run.inherit != "nothing"
    started = place.grants.started(run.mcp_servers)
    servers: dict[str, Json] = {
        server.name: server_config(number, started, place.key)
        for number, server in enumerate(started)
    }
    settings: dict[str, Json] = {
        "security": {
            "auth": {"selectedType": method, "useExternal": method == "gateway"},
            "folderTrust": {"enabled": False},
            "environmentVariableRedaction": {"enabled": True},
            # The answer "always" would turn on a mode in which edits bypass the policy.
            "disableAlwaysAllow": True,
        },
        # A model's correction could change an edit after it was permitted.
        "tools": {"disableLLMCorrection": True},
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "maxAttempts": run.retries + 1,
            "plan": {"enabled": place.grants.is_plan},
            # Loading a session leaves an empty file with its id. Because of that file the next
            # start would delete all files with that id, also the conversation.
            "sessionRetention": {"enabled": False},
            "topicUpdateNarration": False,
        },
        "model": {"maxSessionTurns": run.max_turns if run.max_turns is not None else -1},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "skills": {"enabled": own},
        "hooksConfig": {"enabled": own or bool(place.hook_command)},
        "advanced": {"ignoreLocalEnv": run.inherit != "project"},
        "context": {"fileFiltering": {"enableRecursiveFileSearch": False}},
    }
    if place.hook_command:
        # The CLI runs the command before each tool call, and before it consults its policy; in an
        # untrusted folder it would not. A command that takes too long counts as permission, so it
        # gets longer than a run can take.
        hook: dict[str, Json] = {"type": "command", "name": "corral"}
        hook |= {"command": place.hook_command, "timeout": 86_400_000}
        settings["hooks"] = {"BeforeTool": [{"hooks": [hook]}]}
    if run.reasoning_effort is not None:
        # Settings that override how much the models think: all that the CLI may choose, and the
        # one that is asked for, which it may not know.
        model = run.model
        from corral._models.gemini.request import thinking_config  # most runs have no effort

        models = {**_MODEL_GROUPS}
        if model is not None and model not in MODEL_ALIASES:
            models[model] = model
        overrides: list[Json] = []
        for name, sample in models.items():
            thinking = thinking_config(sample, run.reasoning_effort)
            if isinstance(level := thinking.get("thinkingLevel"), str):
                thinking["thinkingLevel"] = level.upper()
            if thinking:
                config: Json = {"generateContentConfig": {"thinkingConfig": thinking}}
                overrides.append({"match": {"model": name}, "modelConfig": config})
        settings["modelConfigs"] = {
            "customOverrides": overrides,
        }
    if servers:
        settings["mcpServers"] = servers
        if not own:
            settings["mcp"] = {"allowed": [*servers]}
    return settings


_MODEL_GROUPS = {"chat-base-2.5": "gemini-2.5-pro", "chat-base-3": "gemini-3-pro"}
"""Settings that the CLI's own entries for models inherit → one of these models."""


CONVERSATION_FILES = ".gemini/tmp/*/chats/session-*-{}.jsonl"
_MINUTE = "session-%Y-%m-%dT%H-%M-"
"""Their names contain the minute in which the conversation started. A conversation that is loaded
in the same minute is destroyed: the CLI writes a new, empty conversation to the same name. So its
file is renamed to an earlier minute first."""


def rename_to_earlier(names: Sequence[str], session_id: str, now: float) -> dict[str, str]:
    """Files of this conversation that must not be loaded now → a new name for each."""
    rest = f"{session_id[:8]}.jsonl"
    taken, renamed = {*names}, dict[str, str]()
    for name in names:
        earlier, free = now, name
        if not name.endswith(rest) or name < _name(now, rest):
            continue
        while free in taken:
            earlier -= 60
            free = _name(earlier, rest)
        taken.add(free)
        renamed[name] = free
    return renamed


def _name(at: float, rest: str) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(_MINUTE) + rest
