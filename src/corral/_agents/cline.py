"""Cline as a persistent agent. Each fact was seen in a run of version 3.0.65.

It asks before every call, reading included. Exceptions are the calls of a sub-agent (so there are
no sub-agents) and the hooks of a repository (so such a repository is refused). Paths are judged
when it asks: without that it reads and writes anywhere. What the policy denies is not offered
(``disabledTools``). It reports no tokens, takes no MCP servers and drops images. Models with
``gpt`` or ``codex`` in their name, and its default behind a URL is one, get ``apply_patch`` and not
``editor``. The permission request of a patch names no paths: it counts as a command. It ends its
turn after six denials in a row. It adds the file after an ``@`` to the prompt without asking; a
word joiner before the sign, which no model sees, prevents that.
"""

import json

from msgspec.structs import replace

from corral._agents.acp_command import keyed_agent
from corral._agents.grants import Grants
from corral._agents.shared.controls import (
    NO_SERVERS,
    READS_OUTSIDE,
    check_names,
    tools_by_capability,
)
from corral._agents.shared.launch import behind_url
from corral._agents.spec import (
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
from corral.errors import ConfigError
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import Capability

KEY, URL, CUSTOM = "CLINE_API_KEY", "OPENAI_BASE_URL", "openai-compatible"
HINT = f"Set {KEY}: the key of the service at {URL}, or of Cline's own service if {URL} is not set."
SETTINGS = ".cline/data/settings/global-settings.json"
NEVER = ("spawn_agent",)
KINDS: dict[str, ToolKind] = {
    **dict.fromkeys(NEVER, "other"),
    "read_files": "read",
    "search_codebase": "search",
    "editor": "edit",
    "apply_patch": "edit",
    "run_commands": "execute",
    "fetch_web_content": "fetch",
}
TOOLS_OF = tools_by_capability(KINDS)
QUIRKS = AcpQuirks(name_before_text=": ", path_key="path", set_model="session/set_model",
                   model_list_complete=False, late_updates=0.1,
                   repeats_finished_calls=True, mention_escape="\u2060")  # fmt: skip
FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (("run_commands", {"commands": ["{command}"]}),),
    "write": (("editor", {"path": "{abspath}", "new_text": "{text}"}),),
    "edit": (("editor", {"path": "{abspath}", "old_text": "{before}", "new_text": "{after}"}),),
    "read": (("read_files", {"files": [{"path": "{path}"}]}),),
    "search": (("search_codebase", {"queries": ["{pattern}"]}),),
    "fetch": (("fetch_web_content", {"requests": [{"url": "{url}", "prompt": "What is there?"}]}),),
}
"""How the model calls the tools."""
PROBE = Probe(forms=FORMS, url_env=URL, key_env=KEY, model="scripted")


def private(place: LaunchContext) -> tuple[dict[str, str], dict[str, str]]:
    url, at = place.env.get(URL), "2026-01-01T00:00:00Z"
    custom = {CUSTOM: {"settings": {"provider": CUSTOM, "baseUrl": url}, "updatedAt": at}}
    providers = json.dumps({"version": 1, "providers": custom})
    service = CUSTOM if url else "cline"
    env = {"CLINE_PROVIDER": service, "CLINE_SESSION_BACKEND_MODE": "local"}
    return env, {".cline/data/settings/providers.json": providers}


def disabled_tools(grants: Grants) -> set[str]:
    disabled = {*NEVER}
    if not grants.is_native:
        disabled |= {*grants.denied}
        for capability, tools in TOOLS_OF.items():
            disabled |= {*tools} if grants.of(capability).is_denied else set()
        if grants.shell.is_denied:
            disabled.add("apply_patch")
    return disabled


def _writes_by_patches(model: str | None) -> bool:
    return any(part in (model or "").lower() for part in ("gpt", "codex"))


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """It asks us before every call of the tools that are offered."""
    check_names(grants.tool_lists, KINDS, "Cline", lambda _name: False, strict=run.strict)
    enforced: dict[Capability, Enforced] = {"mcp": NO_SERVERS}
    disabled = disabled_tools(grants)
    for capability in TOOLS_OF if not grants.is_native else ():
        if not grants.of(capability).is_denied:
            reads = capability == "read" and grants.is_limited
            enforced[capability] = Enforced("brokered", READS_OUTSIDE if reads else "")
    if "write" in enforced and "apply_patch" in disabled and _writes_by_patches(run.model):
        why = f"{run.model} writes with apply_patch only, which counts as a command"
        enforced["write"] = Enforced("impossible", f"{why}: allow commands, or use another model")
    settings = {"telemetryOptOut": True, "autoUpdateEnabled": False}
    files = {SETTINGS: json.dumps({**settings, "disabledTools": sorted(disabled)})}
    return AgentControls(enforced=enforced, own_default="it asks before every call", files=files)


BASE = keyed_agent("cline --acp", "Cline", (KEY,), HINT, private)
PACKAGE = Package(
    "cline",
    "3.0.65",
    "3.0.65",
    {"linux-x86_64": "@cline/cli-linux-x64/bin/cline"},
    digests=digests_of("cline"),
)
OWN = (".clinerules", ".cline", ".agents", "AGENTS.md")


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    # Without a tool that writes, the model would report what it could not do, as a success.
    writes = not place.grants.is_native and not place.grants.write.is_denied
    if (
        run.model is None
        and run.strict
        and writes
        and "apply_patch" in disabled_tools(place.grants)
    ):
        raise ConfigError(
            "whether Cline has a tool that writes depends on the model",
            hint="Name it: model= (--model). Those with gpt or codex in their name have none unless"
            " commands are allowed.",
        )
    plain = BASE.launch(run, place, prompt, resume)
    files = {**plain.files, **place.controls.files}
    return replace(plain, files=files, service_url=place.env.get(URL))


AGENTS = (
    replace(
        BASE,
        notes=(
            "With `CLINE_API_KEY`, and `OPENAI_BASE_URL` for your own service. It asks before "
            "every call. No MCP servers, no images, no token counts. A model with `gpt` or "
            "`codex` in its name writes with patches, which count as commands: if the policy "
            "denies commands, it may not write, and a model must be named. A repository with "
            "files that it obeys (`.cline`, `AGENTS.md`, …) is refused without `inherit`."
        ),
        package=PACKAGE,
        transport=AcpTransport(quirks=QUIRKS, arguments=("--acp",)),
        tools=KINDS,
        probe=PROBE,
        hosts=(
            "api.cline.bot",
            "api.anthropic.com",
            "api.openai.com",
            "generativelanguage.googleapis.com",
            "openrouter.ai",
        ),
        env_names=(KEY, URL),
        controls=controls,
        launch=launch,
        meter_route=behind_url(URL, KEY),
        project_files=OWN,
        skill_folder=".cline/skills",
    ),
)
