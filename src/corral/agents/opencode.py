"""OpenCode as a peer that stays: what it is, how it is started, what it may do.

Facts hold for 1.18.18, each seen in a run of the real program:

- Left alone it asks for nothing, and a tool that its own rules deny is hidden
  from the model, with no word of a refusal. So what is not allowed is asked for,
  and refused by us: then it is told.
- A refusal ends its turn, unless ``continue_loop_on_deny`` is set.
- It works in ``$PWD``, whatever its working directory is.
- Where its model is not to be had it takes its maker's own hosted one, in
  silence; so that provider is off unless it is asked for.
- It runs the plugins of a repository whatever its switches say
  (``OPENCODE_DISABLE_PROJECT_CONFIG``, ``--pure``): a second reader of the
  configuration knows none of them. So a folder that carries any is refused.
- With a file it reads the ``AGENTS.md`` beside it, and no switch stops that.
- An API error comes without its status: only the text tells what it was.
"""

from __future__ import annotations

import json
import os

from corral.agents.opencode_failures import KEY_HINT, explain
from corral.agents.profile import ACP_OPTIONS, Agent, Compiled, Launch, Package, Place, Probe, Row
from corral.errors import (
    AuthenticationFailed,
    ConfigError,
    PolicyError,
    UntrustedFolder,
)
from corral.events import Json, ToolKind
from corral.options import Run
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy
from corral.wire.acp_quirks import Quirks

READ = ("read", "list", "glob", "grep", "lsp")
WRITE = ("edit", "write", "patch", "apply_patch", "multiedit")
SHELL = ("bash", "skill")
NETWORK = ("webfetch", "websearch", "codesearch")
HARMLESS = ("todowrite", "todoread")
DELEGATE = "task"
"""A sub-agent asks in a session of its own, which nobody answers: for ``full`` alone."""

TOOLS: dict[str, ToolKind] = {
    **dict.fromkeys(READ, "read"),
    "glob": "search",
    "grep": "search",
    **dict.fromkeys(WRITE, "edit"),
    **dict.fromkeys(SHELL, "execute"),
    **dict.fromkeys(NETWORK, "fetch"),
    **dict.fromkeys(HARMLESS, "think"),
    DELEGATE: "other",
}
_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": READ,
    "write": WRITE,
    "shell": SHELL,
    "network": NETWORK,
}
OWN_SERVER = "corral"
"""The tool server of the caller's own functions."""

CUSTOM = "custom"
"""The provider behind OPENAI_BASE_URL: any server that speaks chat completions."""
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
ENV_FAMILY = (*SECRET_ENV, "OPENAI_BASE_URL")

SUPPORTS = ACP_OPTIONS | {"inherit"}

_SETTINGS = ("opencode.json", "opencode.jsonc")
_FOLDERS = ("plugin", "tool", "agent", "command", "skill", "mode")
PROJECT_FILES = (
    *_SETTINGS,
    *(f".opencode/{name}" for name in _SETTINGS),
    *(f".opencode/{name}{many}" for name in _FOLDERS for many in ("", "s")),
)
"""What OpenCode would obey. Not ``.opencode`` as such: its installer puts one into the home."""
_FENCES = ("*.opencode/*", "*opencode.json", "*opencode.jsonc")
"""What the agent wrote there would rule the next run."""

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


def launch(run: Run, place: Place, _prompt: str, _resume: str | None) -> Launch:
    """Raises before anything is spawned where there is no model to be had."""
    own = run.inherit == "project"
    _trust(run, place)
    config, notes = _config(run, place)
    switches = _SWITCHES if own else (*_SWITCHES, "PROJECT_CONFIG")
    env = {
        "HOME": place.home,
        "XDG_CONFIG_HOME": os.path.join(place.home, ".config"),
        "XDG_DATA_HOME": os.path.join(place.home, ".local", "share"),
        "XDG_STATE_HOME": os.path.join(place.home, ".local", "state"),
        "XDG_CACHE_HOME": os.path.join(place.home, ".cache"),
        "TMPDIR": place.tmp,
        "PWD": place.cwd,
        "NO_COLOR": "1",
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        **{f"OPENCODE_DISABLE_{name}": "1" for name in switches},
    }
    flags = () if own else ("--pure",)
    return Launch(argv=(*place.program, "acp", *flags), env=env, stdin=b"", notes=notes)


def _trust(run: Run, place: Place) -> None:
    if run.inherit == "user":
        raise ConfigError("opencode-acp cannot inherit the user's settings")
    if run.inherit == "nothing" and place.project_files:
        raise UntrustedFolder(
            "OpenCode would run this repository's own settings and plugins:"
            f" {', '.join(place.project_files[:5])}",
            hint="If you trust them, say inherit='project' (--inherit project).",
            phase="config",
        )


def _config(run: Run, place: Place) -> tuple[dict[str, Json], tuple[str, ...]]:
    model, env = run.model, place.env
    hosted = model is not None and model.startswith(f"{HOSTED}/")
    if model is not None and not all(model.partition("/")):
        raise ConfigError(
            f"OpenCode names a model by its provider: provider/{model}",
            hint=f"{CUSTOM}/{model} is the one behind OPENAI_BASE_URL.",
        )
    found = [name for name in ENV_FAMILY if env.get(name)]
    found += [f"~/{name}" for name in place.credentials]
    if not found and not hosted:
        raise AuthenticationFailed(
            "no credentials for OpenCode were found", hint=KEY_HINT, phase="config"
        )
    config: dict[str, Json] = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "permission": permissions(run.policy, run, place.cwd),
        "experimental": {"continue_loop_on_deny": True},
        # A title costs a call of the model for every session, and nobody sees it.
        "agent": {"title": {"disable": True}},
    }
    if run.policy.mode == "plan":
        config["default_agent"] = "plan"
    if model is not None:
        config |= {"model": model, "small_model": model}
    if not hosted and not env.get("OPENCODE_API_KEY"):
        config["disabled_providers"] = [HOSTED]
    if env.get("OPENAI_BASE_URL"):
        config["provider"] = {CUSTOM: _custom(model)}
    return config, (f"credentials: {', '.join(found) or 'none'}",)


def _custom(model: str | None) -> Json:
    """The values are named, not written: OpenCode fills them in from its environment."""
    name = (model or "").removeprefix(f"{CUSTOM}/")
    listed = model is not None and model.startswith(f"{CUSTOM}/")
    return {
        "npm": "@ai-sdk/openai-compatible",
        "name": "OPENAI_BASE_URL",
        "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
        "models": {name: {}} if listed else {},
    }


def permissions(policy: Policy, run: Run, cwd: str) -> dict[str, Json]:
    """The policy in OpenCode's own rules, of which the last that matches decides. Raises
    ``PolicyError`` for a tool name that is nearly one of its own."""
    for where in ("allow_tools", "deny_tools"):
        for name in getattr(policy, where) or ():
            _check_name(name, where)
    if policy.mode == "native":
        return {}
    delegate = "allow" if policy.is_unlimited else "deny"
    rules: dict[str, Json] = {"*": "ask"}
    if policy.allow_tools is not None:  # every question comes to us, and we know the names
        return {**rules, "external_directory": "deny", DELEGATE: "deny"}
    rules |= dict.fromkeys(HARMLESS, "allow")
    for capability, tools in _TOOLS_OF.items():
        rules |= dict.fromkeys(tools, "allow" if policy.verdict(capability) == "allow" else "ask")
    if policy.shell_rules:
        rules["bash"] = "ask"
    for server in run.mcp_servers:
        rules[f"{server.name}_*"] = _mcp_rule(policy, own=server.name == OWN_SERVER)
    for name in policy.deny_tools:
        rules["edit" if name in WRITE else name] = "ask"
    rules["edit"] = {"*": rules["edit"], **dict.fromkeys(_FENCES, "deny")}
    outside: dict[str, Json] = {"*": "allow" if policy.is_unlimited else "ask"}
    for folder in policy.writable:
        whole = os.path.normpath(os.path.join(cwd, folder))
        outside |= {whole: "allow", f"{whole}/*": "allow"}
    return {**rules, "external_directory": outside, DELEGATE: delegate}


def _mcp_rule(policy: Policy, *, own: bool) -> str:
    """A question about such a tool looks like one about any other, which counts as shell: it
    can be put to us only where the two verdicts are the same."""
    verdict = policy.verdict("mcp", own=own)
    if verdict == "allow":
        return "allow"
    return "ask" if verdict == policy.verdict("shell") else "deny"


def _check_name(name: str, where: str) -> None:
    if name in TOOLS or "_" in name:
        return
    from difflib import get_close_matches

    if near := get_close_matches(name, TOOLS, 1, 0.75):
        raise PolicyError(f"{where}: OpenCode has no tool {name!r}; did you mean {near[0]!r}?")


def compile_policy(policy: Policy, run: Run) -> Compiled:
    """The report; the rules themselves travel in the configuration of a launch."""
    permissions(policy, run, os.path.sep)
    return Compiled(tuple(_row(policy, capability) for capability in CAPABILITIES))


def _row(policy: Policy, capability: Capability) -> Row:
    if policy.mode == "native":
        return Row(capability, "allow", "native", "the agent's own default: it asks for nothing")
    verdict = policy.verdict(capability)
    enforcement: Enforcement = "native" if verdict == "allow" else "brokered"
    notes: list[str] = []
    free_shell = policy.verdict("shell") == "allow"
    if policy.allow_tools is not None:
        tools = _TOOLS_OF.get(capability, ())
        chosen = [name for name in policy.allow_tools if name in tools]
        if capability == "mcp":
            chosen = [name for name in policy.allow_tools if name not in TOOLS]
        verdict, enforcement = "allow" if chosen else "deny", "brokered"
        notes.append(f"allow_tools: {', '.join(chosen)}" if chosen else "allow_tools: not listed")
        free_shell = "bash" in policy.allow_tools
    elif verdict == "ask":
        notes.append("put to whoever answers; with nobody there it is denied")
    if (
        capability == "mcp"
        and policy.allow_tools is None
        and _mcp_rule(policy, own=False) == "deny"
    ):
        verdict, enforcement = "deny", "native"
        notes = [
            "its questions cannot be told from those about the shell: not offered to the model"
        ]
    if capability == "network" and free_shell:
        if policy.network == "deny":
            enforcement = "impossible"
        notes.append("a permitted shell reaches the network: this agent has no wall for it")
    if capability == "read":
        notes.append("outside the workspace what holds for the shell holds for reading")
    if capability == "shell":
        if policy.shell_rules:
            enforcement = "brokered"
            notes.append(f"{len(policy.shell_rules)} shell rules")
        if free_shell:
            notes.append("it sees the keys in OpenCode's own environment")
        if not policy.is_unlimited:
            notes.append("sub-agents are off")
    return Row(capability, verdict, enforcement, "; ".join(notes))


QUIRKS = Quirks(
    late_updates=0.1,
    name_from_title=True,
    mcp_prefixes=(f"{OWN_SERVER}_",),
    usage="last_step",
    command_marks=("/", " ", "\t", "\r", "\n"),
    command_guard="\u2060",
)
"""``command_marks``: blanks too, for it trims before it looks. ``command_guard``: a word
joiner, which no trimming takes away and no model sees."""

AGENTS = (
    Agent(
        name="opencode-acp",
        aliases=("opencode",),
        title="OpenCode",
        description="OpenCode as a peer that stays: models of many providers, asks, keeps warm",
        transport="acp",
        programs=("opencode",),
        package=Package(
            npm="opencode-ai",
            tested="1.18.18",
            minimum="1.18.18",
            binaries={
                "linux-x86_64": "opencode-linux-x64/bin/opencode",
                "linux-aarch64": "opencode-linux-arm64/bin/opencode",
            },
        ),
        compile=compile_policy,
        launch=launch,
        explain=explain,
        quirks=QUIRKS,
        tools=TOOLS,
        probe=Probe(
            write=("write", {"filePath": "probe.txt", "content": "written by the agent\n"}),
            shell=("bash", {"command": "touch shell.txt", "description": "Probe the shell"}),
            url_env="OPENAI_BASE_URL",
            key_env="OPENAI_API_KEY",
            model=f"{CUSTOM}/scripted",
        ),
        supports=SUPPORTS,
        capabilities=("tools", "files", "resume", "mcp", "usage", "thinking", "permissions"),
        asks=True,
        resumes=True,
        env_family=ENV_FAMILY,
        secret_env=SECRET_ENV,
        credential_files=(".local/share/opencode/auth.json",),
        parent_files=PROJECT_FILES,
        noise=("Error handling request",),
    ),
)
