"""Starting OpenCode: arguments, configuration, environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from msgspec.structs import replace

from corral._agents.opencode.controls import RIPGREP, offers_shell
from corral._agents.opencode.stream import KEY_HINT
from corral._agents.shared.launch import (
    behind_url,
    header_references,
    hook_script,
    refuse_project_files,
    refuse_user_settings,
    secret_variables,
    server_command,
    variable_references,
)
from corral._agents.spec import ACP_OPTIONS, Launch, LaunchContext, MeterRoute
from corral.errors import AuthenticationFailed, ConfigError, UntrustedFolder
from corral.options import RunOptions
from corral.values import Json, McpServer

CUSTOM = "custom"
"""The provider behind OPENAI_BASE_URL: any server that speaks chat completions. Without a named
model, OpenCode's own choice among OpenAI's is requested there."""
HOSTED = "opencode"

SECRET_ENV = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GOOGLE_GENERATIVE_AI_API_KEY",
    "OPENROUTER_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "DEEPSEEK_API_KEY",
    "XAI_API_KEY",
    "OPENCODE_API_KEY",
)
ENV_NAMES = (*SECRET_ENV, "OPENAI_BASE_URL")
_BEHIND_URL = behind_url("OPENAI_BASE_URL", SECRET_ENV[0], SECRET_ENV[1:])

SUPPORTS_ACP = ACP_OPTIONS | {"inherit"}
SUPPORTS_HEADLESS = frozenset({"inherit", "mcp_servers", "resume", "system_prompt", "thinking"})

_MCP_MS = 30_000
"""Start timeout of an MCP server. With OpenCode's own 5 s a server on a busy machine is silently
left out."""

_MODELS = "models.json"
_SETTINGS = ("opencode.json", "opencode.jsonc")
_FOLDERS = ("plugin", "tool", "agent", "command", "skill", "mode")
PROJECT_FILES = (
    *_SETTINGS,
    *(f".opencode/{name}" for name in _SETTINGS),
    *(f".opencode/{name}{many}" for name in _FOLDERS for many in ("", "s")),
)
"""Files that OpenCode would obey. The folder ``.opencode`` alone does not count: the installer
creates one in the home."""

HELPERS = {
    RIPGREP: (
        "*/*/node_modules/@vscode/ripgrep-*/bin/rg",
        "*/*/node_modules/@openai/codex-*/vendor/*/codex-path/rg",
    )
}
"""OpenCode searches with ripgrep, and downloads it from GitHub if it is not on PATH."""
_NPMRC = ".config/opencode/.npmrc"
"""OpenCode installs a package for plug-ins into the folder of its settings. This file makes npm
work offline."""
_INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md", "CONTEXT.md")
"""Sent to the model with a file that it reads in the same folder, without checking the rules."""
_LONGEST_VARIABLE = 120_000
"""Linux allows 131,071 bytes per variable."""

_SWITCHES = (
    "AUTOUPDATE",
    "CLAUDE_CODE",
    "DEFAULT_PLUGINS",
    "EXTERNAL_SKILLS",
    "FFF",  # leaves a library of 5 MB in TMPDIR, every time
    "LSP_DOWNLOAD",
    "MODELS_FETCH",
    "SHARE",
    "TERMINAL_TITLE",
)


_PLUGIN = "hook.js"
_HOOK = """export const Corral = async () => ({
  "tool.execute.before": async (call, made) => {
    const answer = await ask(call.tool, made.args);
    if (answer.deny !== undefined) throw new Error(answer.deny);
    if (answer.input !== undefined) replace(made.args, answer.input);
  },
});
"""
"""A plugin that shows each call to ``on_tool_call``. OpenCode applies its rules afterwards."""


def launch_acp(run: RunOptions, place: LaunchContext, _prompt: str, _resume: str | None) -> Launch:
    """The persistent agent. Raises, before anything is spawned, if no model is available."""
    flags = () if run.inherit == "project" else ("--pure",)
    return _launch(run, place, _rules(place), ("acp", *flags), {}, {})


def launch_headless(
    run: RunOptions, place: LaunchContext, prompt: str, resume: str | None
) -> Launch:
    """One process per prompt. The prompt is sent on stdin: OpenCode would quote an argument."""
    config, files = dict[str, Json](), dict[str, str]()
    flags = ["--format", "json", "--dir", place.cwd]
    if place.hook_command:
        config["plugin"] = [f"file://{os.path.join(place.home, _PLUGIN)}"]
        files[_PLUGIN] = hook_script(place.hook_command, _HOOK)
    elif run.inherit != "project":
        flags.append("--pure")
    if run.thinking:
        flags.append("--thinking")
    if resume is not None:
        flags += ["-s", resume]
    if run.system_prompt is not None:
        files["system.md"] = run.system_prompt
        config["instructions"] = [os.path.join(place.home, "system.md")]
    if servers := place.grants.started(run.mcp_servers):
        config["mcp"] = _mcp_servers(servers, place.key)
    rules = _rules(place)
    launch = _launch(run, place, rules, ("run", *flags), config, files)
    notes: tuple[str, ...] = ()
    if place.grants.is_limited and not offers_shell(rules):
        notes = _check_rules(run, place, writes=rules.get("edit") != "deny")
    return replace(
        launch,
        env={**launch.env, **secret_variables(servers, place.key)},
        stdin=prompt.encode(),
        notes=(*launch.notes, *notes),
    )


def _launch(
    run: RunOptions,
    place: LaunchContext,
    rules: dict[str, Json],
    arguments: tuple[str, ...],
    config: dict[str, Json],
    files: dict[str, str],
) -> Launch:
    """``config`` and ``files`` are added to what both ways to start it need."""
    _check(run, place)
    common, notes = _config(run, place, rules)
    return Launch(
        argv=(*place.program, *arguments),
        env=_env(run, place, {**common, **config}, rules),
        stdin=b"",
        files={_NPMRC: "offline=true\n", **({_MODELS: "{}"} if _is_custom(run) else {}), **files},
        notes=notes,
        path_folders=(os.path.dirname(place.helpers[RIPGREP]),) if RIPGREP in place.helpers else (),
        # Otherwise it is not known: OpenCode has a service for each provider.
        service_url=place.env.get("OPENAI_BASE_URL") if _is_behind_url(run) else None,
    )


def meter_route(run: RunOptions, env: Mapping[str, str]) -> MeterRoute | str:
    if not _is_behind_url(run):
        return f"only the calls of {CUSTOM}/…, behind OPENAI_BASE_URL, are counted"
    return _BEHIND_URL(run, env)


def _is_behind_url(run: RunOptions) -> bool:
    """Whether the model is the one behind OPENAI_BASE_URL, if that is set."""
    return run.model is None or run.model.startswith(f"{CUSTOM}/")


def _rules(place: LaunchContext) -> dict[str, Json]:
    if place.controls.for_folders is None:
        raise TypeError("the policy was not compiled for OpenCode")
    return place.controls.for_folders(place)


def _check(run: RunOptions, place: LaunchContext) -> None:
    """Raises ``UntrustedFolder`` for files that OpenCode would obey or send regardless of its
    rules."""
    refuse_user_settings(run)
    refuse_project_files(
        run, place, "OpenCode would run this repository's own settings and plugins"
    )
    leaks = [x.path for x in place.links.unreadable if os.path.basename(x.path) in _INSTRUCTIONS]
    if leaks:
        raise UntrustedFolder(
            f"OpenCode would send the model what these links lead to: {', '.join(leaks[:5])}",
            hint="Remove the links, or replace them by copies.",
            phase="config",
        )


def _check_rules(run: RunOptions, place: LaunchContext, *, writes: bool) -> tuple[str, ...]:
    """Raises ``ConfigError`` for what rules alone cannot enforce, unless ``strict`` is off."""
    hint = "Use opencode-acp, which asks for each file."
    if writes and run.model is None and run.strict:
        raise ConfigError(
            "whether OpenCode's rules are effective depends on the model", hint=f"Name it. {hint}"
        )
    if not place.links.complete and run.strict:
        raise ConfigError("the workspace has too many files to look for links", hint=hint)
    if {"*", "?"} & {*"".join((place.cwd, *place.grants.writable))} and run.strict:
        raise ConfigError(f"a folder's name is a pattern to OpenCode: {place.cwd}", hint=hint)
    if not place.links.unreadable:
        return ()
    count = len(place.links.unreadable)
    return (f"glob and grep are off: {count} links lead out of the workspace",)


def _is_custom(run: RunOptions) -> bool:
    """Whether only the model behind OPENAI_BASE_URL is used. Then OpenCode gets an empty list of
    models: reading its own list, of thousands, takes a third of its start time."""
    return run.inherit != "project" and (run.model or "").startswith(f"{CUSTOM}/")


def _env(
    run: RunOptions, place: LaunchContext, config: dict[str, Json], rules: dict[str, Json]
) -> dict[str, str]:
    own = run.inherit == "project"
    switches = _SWITCHES if own else (*_SWITCHES, "PROJECT_CONFIG")
    more = {"OPENCODE_MODELS_PATH": os.path.join(place.home, _MODELS)} if _is_custom(run) else {}
    if not offers_shell(rules):
        # Its own git finds no repository: programs in the repository's settings do not run, and
        # only the working directory counts as inside. A shell would need git.
        more["GIT_DIR"] = "/dev/null"
    content = json.dumps(config)
    if len(content.encode()) > _LONGEST_VARIABLE:
        raise ConfigError(
            f"the rules for OpenCode are too long: {len(place.links.found)} links lead out of the"
            f" workspace, and {len(place.links.aliases)} are links to its folders",
            hint="Use opencode-acp, which asks for each file.",
        )
    return {
        **more,
        "HOME": place.home,
        "XDG_CONFIG_HOME": os.path.join(place.home, ".config"),
        "XDG_DATA_HOME": os.path.join(place.home, ".local", "share"),
        "XDG_STATE_HOME": os.path.join(place.home, ".local", "state"),
        "XDG_CACHE_HOME": os.path.join(place.home, ".cache"),
        "TMPDIR": place.tmp,
        "PWD": place.cwd,
        "NO_COLOR": "1",
        "OPENCODE_CONFIG_CONTENT": content,
        **{f"OPENCODE_DISABLE_{name}": "1" for name in switches},
    }


def _config(
    run: RunOptions, place: LaunchContext, rules: dict[str, Json]
) -> tuple[dict[str, Json], tuple[str, ...]]:
    model, env = run.model, place.env
    hosted = model is not None and model.startswith(f"{HOSTED}/")
    found = _credentials(place, model, hosted=hosted)
    config: dict[str, Json] = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        # Both run programs of the repository, such as its formatter.
        "formatter": False,
        "lsp": False,
        "permission": rules,
        "experimental": {"continue_loop_on_deny": True},
        # A title costs a call of the model for every session, and no user sees it.
        "agent": {"title": {"disable": True}},
    }
    if place.grants.is_plan:
        config["default_agent"] = "plan"
    if model is not None:
        config |= {"model": model, "small_model": model}
    if not hosted and not env.get("OPENCODE_API_KEY"):
        config["disabled_providers"] = [HOSTED]
    if env.get("OPENAI_BASE_URL"):
        # The values are references to environment variables, which OpenCode replaces.
        options: Json = {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"}
        provider: dict[str, Json] = {"options": options}
        if model is not None and model.startswith(f"{CUSTOM}/"):
            provider["npm"], provider["name"] = "@ai-sdk/openai-compatible", "OPENAI_BASE_URL"
            provider["models"] = {model.removeprefix(f"{CUSTOM}/"): {}}
            config["provider"] = {CUSTOM: provider}
        elif model is None:
            # OpenCode chooses a model of the providers that it is configured with, else that of any
            # provider whose key it finds. If there is none, it fails without a reason, or waits.
            config |= {"provider": {"openai": provider}, "enabled_providers": ["openai"]}
    notes: tuple[str, ...] = (f"credentials: {', '.join(found) or 'none'}",)
    if RIPGREP not in place.helpers:
        notes += ("glob and grep are off: ripgrep (rg) is not on PATH",)
    return config, notes


def _credentials(place: LaunchContext, model: str | None, *, hosted: bool) -> list[str]:
    """Raises ``ConfigError`` for a model without a provider, ``AuthenticationFailed`` if there are
    no credentials and the model is not hosted by OpenCode."""
    if model is not None and not all(model.partition("/")):
        raise ConfigError(
            f"OpenCode names a model by its provider: provider/{model}",
            hint=f"{CUSTOM}/{model} is the one behind OPENAI_BASE_URL.",
        )
    found = [name for name in ENV_NAMES if place.env.get(name)]
    found += [f"~/{name}" for name in place.credentials]
    if not found and not hosted:
        raise AuthenticationFailed(
            "no credentials for OpenCode were found", hint=KEY_HINT, phase="config"
        )
    return found


def _mcp_servers(started: tuple[McpServer, ...], key: str) -> dict[str, Json]:
    """With references to environment variables, which OpenCode replaces."""
    servers: dict[str, Json] = {}
    for number, server in enumerate(started):
        common: dict[str, Json] = {"enabled": True, "timeout": _MCP_MS}
        if server.url is not None:
            headers: Json = header_references(number, server, "{{env:{}}}")
            where: dict[str, Json] = {"type": "remote", "url": server.url, "headers": headers}
            servers[server.name] = {**common, **where, "oauth": False}
        else:
            command: Json = [*server_command(number, started, key)]
            env: Json = variable_references(number, server, "{{env:{}}}")
            where = {"type": "local", "command": command, "environment": env}
            servers[server.name] = {**common, **where}
    return servers
