"""goose as a persistent agent. Each fact was seen in a run of version 1.52.0.

In the mode ``approve`` it asks before every call, reading included. Paths are judged when it asks:
without that it reads and writes anywhere. What the policy denies is not offered
(``available_tools``). It has no tool that reads a file: it uses its shell. ``read_image``, which
also fetches URLs, is never offered, and its other extensions (sub-agents, skills, apps, and one
that installs extensions) are off.

It runs the hooks of plug-ins (``.agents/plugins``) of the folder that its process is started in. So
it is started in its private home, unless the repository is trusted. It reads files with hints in
the folder of the session; a variable prevents that. A prompt that begins with ``/`` is a command,
or a skill of the repository.

It reports the usage of its last model call. An error of the service is reported as an answer,
except that of a wrong key.
"""

from __future__ import annotations

import json

from msgspec.structs import replace

from corral._agents.acp_command import keyed_agent
from corral._agents.grants import Grants
from corral._agents.shared.controls import (
    READS_OUTSIDE,
    UNASKED_BY_DEFAULT,
    check_names,
    other_hooks,
    server_prefixed,
    tools_by_capability,
)
from corral._agents.shared.errors import AgentErrors
from corral._agents.shared.launch import behind_key, without_versions
from corral._agents.spec import (
    ACP_OPTIONS,
    AcpTransport,
    Act,
    AgentControls,
    Enforced,
    Form,
    Launch,
    LaunchContext,
    Package,
    Probe,
)
from corral._agents.tested_files import digests_of
from corral._protocol.acp.quirks import AcpQuirks
from corral.errors import ConfigError, CorralError
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import Capability

_SERVICES = {
    "GOOGLE_API_KEY": (("gemini",), "GOOGLE_HOST", "https://generativelanguage.googleapis.com"),
    "ANTHROPIC_API_KEY": (("anthropic",), "ANTHROPIC_HOST", "https://api.anthropic.com"),
    "OPENAI_API_KEY": (("openai-chat", "openai"), "OPENAI_BASE_URL", "https://api.openai.com/v1"),
}
KEYS: tuple[str, ...] = tuple(_SERVICES)
URLS: tuple[str, ...] = tuple(url for _, url, _ in _SERVICES.values())
MODEL = "GOOSE_MODEL"
HINT = f"Set {' or '.join(KEYS)}: the first of them that is set chooses the service."
CONFIG = ".config/goose/config.yaml"
NEVER = ("read_image",)
KINDS: dict[str, ToolKind] = {
    **dict.fromkeys(NEVER, "other"),
    "tree": "search",
    "write": "edit",
    "edit": "edit",
    "shell": "execute",
}
TOOLS_OF = tools_by_capability(KINDS)
OFF = (
    "analyze",
    "apps",
    "chatrecall",
    "code_execution",
    "extensionmanager",
    "scheduler",
    "skills",
    "summarize",
    "summon",
    "todo",
    "tom",
)
"""Its own extensions, besides the one with the tools above."""
_FAILED, _RETRY = "Ran into this error: ", "\n\nPlease retry if you think this is a transient"
QUIRKS = AcpQuirks(
    name_from_meta=("goose", "toolCall", "toolName"),
    name_before_text=" · ",
    kinds=KINDS,
    path_key="path",
    server_prefix="{}__",
    denied_texts=("was not advertised for this model turn",),
    error_text=_FAILED,
    error_pattern=_RETRY,
    usage="last_step",
    late_updates=0.1,
    command_prefixes=("/", " ", "\t", "\r", "\n"),
    command_escape="\u2060",
)
FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (("shell", {"command": "{command}"}),),
    "write": (("write", {"path": "{path}", "content": "{text}"}),),
    "edit": (("edit", {"path": "{path}", "before": "{before}", "after": "{after}"}),),
    "list": (("tree", {"path": "{path}"}),),
}
"""How the model calls the tools."""


def _failed(_kind: str, message: str) -> CorralError:
    return ERRORS.from_service(message.removeprefix(_FAILED).partition(_RETRY)[0])


ERRORS = AgentErrors(title="goose", program="goose", key_hint=HINT, failed=_failed)


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """It asks us before every call of the tools that are offered."""
    check_names(grants.tool_lists, KINDS, "goose", server_prefixed(run, "__"), strict=run.strict)
    offered = {*KINDS} - {*NEVER}
    if not grants.is_native:
        offered &= {*(KINDS if grants.listed is None else grants.listed)} - {*grants.denied}
    enforced: dict[Capability, Enforced] = {}
    for capability, names in TOOLS_OF.items() if not grants.is_native else ():
        if grants.of(capability).is_denied:
            offered -= {*names}
        else:
            reads = capability == "read" and grants.is_limited
            enforced[capability] = Enforced("brokered", READS_OUTSIDE if reads else "")
    if not grants.mcp.is_denied:
        enforced["mcp"] = Enforced("brokered")
    # JSON is YAML.
    own = {"type": "platform", "bundled": True, "description": ""}
    extensions = {name: {**own, "name": name, "enabled": False} for name in OFF}
    tools = {"available_tools": sorted(offered)} if offered else {}
    developer = {**own, "name": "developer", "enabled": bool(offered), **tools}
    config = {"extensions": {**extensions, "developer": developer}}
    unhooked = (UNASKED_BY_DEFAULT,) if grants.is_native else other_hooks(run)
    return AgentControls(
        enforced=enforced,
        own_default="it asks for nothing",
        files={CONFIG: json.dumps(config)},
        unhooked=unhooked,
    )


def private(place: LaunchContext) -> tuple[dict[str, str], dict[str, str]]:
    key = next(name for name in KEYS if place.env.get(name))
    provider = key.removesuffix("_API_KEY").lower()
    switches = {"GOOSE_DISABLE_SESSION_NAMING": "true", "GOOSE_TELEMETRY_OFF": "1"}
    mode = {} if place.grants.is_native else {"GOOSE_MODE": "approve"}
    env = {"GOOSE_PROVIDER": provider, "GOOSE_DISABLE_KEYRING": "1", **switches, **mode}
    return env, dict(place.controls.files)


BASE = keyed_agent("goose acp", "goose", KEYS, HINT, private)


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    model = run.model or place.env.get(MODEL)
    if not model:
        raise ConfigError("goose has no default model", hint=f"Name it: model= (--model), {MODEL}.")
    plain = BASE.launch(run, place, prompt, resume)
    key = next(name for name in KEYS if place.env.get(name))
    _, url_env, url = _SERVICES[key]
    env = {**plain.env, MODEL: model}
    trusted = run.inherit == "project"
    env |= {} if trusted else {"CONTEXT_FILE_NAMES": "[]"}
    service_url = place.env.get(url_env) or url
    cwd = None if trusted else place.home
    return replace(plain, env=env, cwd=cwd, service_url=service_url)


AGENTS = (
    replace(
        BASE,
        notes=(
            "x86-64 Linux, with `GOOGLE_API_KEY`, `ANTHROPIC_API_KEY` or `OPENAI_API_KEY`: "
            "the first that is set chooses the service. A model must be named (`--model` or "
            "`GOOSE_MODEL`). It asks before every call. It reads files through its shell; "
            "without a shell it only lists them. No sub-agents, skills or images from files. "
            "A cancelled prompt ends its process, because its commands would go on; the next "
            "prompt starts another."
        ),
        package=Package(
            "@aaif/goose-binary-linux-x64",
            "1.52.0",
            "1.52.0",
            {"linux-x86_64": "@aaif/goose-binary-linux-x64/bin/goose"},
            digests=digests_of("@aaif/goose-binary-linux-x64"),
            elsewhere="see github.com/aaif-goose/goose",
        ),
        transport=AcpTransport(
            quirks=QUIRKS,
            arguments=("acp",),
            model_at_start=True,
            commands_outlive_cancel=True,
        ),
        tools=KINDS,
        probe=Probe(
            forms=FORMS,
            url_env="OPENAI_BASE_URL",
            key_env="OPENAI_API_KEY",
            model="scripted",
            mcp_name="{server}__{tool}",
        ),
        supports=(ACP_OPTIONS - {"session_mode", "audio"}) | {"inherit"},
        capabilities=("tools", "files", "resume", "mcp", "usage", "permissions"),
        hosts=("generativelanguage.googleapis.com", "api.anthropic.com", "api.openai.com"),
        skill_folder=".agents/skills",
        env_names=(*KEYS, *URLS, MODEL),
        own_names=without_versions(GOOGLE_HOST="/v1beta", ANTHROPIC_HOST="/v1"),
        controls=controls,
        launch=launch,
        explain=ERRORS.explain,
        meter_route=behind_key(_SERVICES),
    ),
)
