"""Cline as a persistent agent. Each fact was seen in a run of version 3.0.65.

It asks before every call, reading included. Exceptions are the calls of a sub-agent (so there are
no sub-agents) and the hooks of a repository (so such a repository is refused). Paths are judged
when it asks: without that it reads and writes anywhere. What the policy denies is not offered
(``disabledTools``). It reports no tokens, takes no MCP servers and drops images. OpenAI's models
get ``apply_patch``, whose permission request names no paths: it counts as a command. It ends its
turn after six denials in a row. It adds the file after an ``@`` to the prompt without asking; a
word joiner before the sign, which no model sees, prevents that.
"""

import json

from msgspec.structs import replace

from corral.agents.acp_command import keyed_agent
from corral.agents.shared import report_notes
from corral.agents.shared.meter_routes import behind_url
from corral.agents.shared.tool_names import check_names
from corral.agents.spec import (
    AcpTransport,
    Act,
    CompiledPolicy,
    Form,
    Launch,
    LaunchContext,
    Package,
    PolicyRow,
    Probe,
)
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import CAPABILITIES, Capability, Policy, Verdict
from corral.protocol.acp.quirks import AcpQuirks

KEY, URL, CUSTOM = "CLINE_API_KEY", "OPENAI_BASE_URL", "openai-compatible"
HINT = f"Set {KEY}: the key of the service at {URL}, or of Cline's own service if {URL} is not set."
SETTINGS = ".cline/data/settings/global-settings.json"
NEVER = ("spawn_agent",)
TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": ("read_files", "search_codebase"),
    "write": ("editor", "apply_patch"),
    "shell": ("run_commands",),
    "network": ("fetch_web_content",),
}
KINDS: dict[str, ToolKind] = {
    **dict.fromkeys(NEVER, "other"),
    "read_files": "read",
    "search_codebase": "search",
    "editor": "edit",
    "apply_patch": "edit",
    "run_commands": "execute",
    "fetch_web_content": "fetch",
}
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
PROBE = Probe(("editor", {"path": "{cwd}/probe.txt", "new_text": "written by the agent\n"}),
              ("run_commands", {"commands": ["touch shell.txt"]}), URL, KEY, "scripted",
              ("read_files", {"files": [{"path": "here.txt"}]}), forms=FORMS)  # fmt: skip


def private(place: LaunchContext) -> tuple[dict[str, str], dict[str, str]]:
    url, at = place.env.get(URL), "2026-01-01T00:00:00Z"
    custom = {CUSTOM: {"settings": {"provider": CUSTOM, "baseUrl": url}, "updatedAt": at}}
    providers = json.dumps({"version": 1, "providers": custom})
    service = CUSTOM if url else "cline"
    env = {"CLINE_PROVIDER": service, "CLINE_SESSION_BACKEND_MODE": "local"}
    return env, {".cline/data/settings/providers.json": providers}


def verdict_of(policy: Policy, capability: Capability, run: RunOptions) -> Verdict:
    """*ask* is *deny* if no one can answer; but rules may still allow single commands."""
    if policy.allow_tools is not None and policy.mode != "native":
        tools = TOOLS_OF.get(capability, ())
        return "allow" if any(name in tools for name in policy.allow_tools) else "deny"
    verdict = policy.verdict(capability)
    rules = capability == "shell" and policy.allows_commands
    if rules and verdict == "deny":
        return "ask"
    return "deny" if verdict == "ask" and not (run.interactive or rules) else verdict


def disabled(policy: Policy, run: RunOptions) -> list[str]:
    """The tools that are not offered."""
    if policy.mode == "native":
        return [*NEVER]
    denied: list[Capability] = [c for c in TOOLS_OF if verdict_of(policy, c, run) == "deny"]
    found = [*NEVER, *policy.deny_tools, *(tool for c in denied for tool in TOOLS_OF[c])]
    if "shell" in denied:
        found.append("apply_patch")
    return sorted({*found})


def compile_policy(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """It asks us before every call of the tools that are offered."""
    check_names(policy, KINDS, "Cline", lambda _name: False, strict=run.strict)
    settings = {"telemetryOptOut": True, "autoUpdateEnabled": False}
    files = {SETTINGS: json.dumps({**settings, "disabledTools": disabled(policy, run)})}
    return CompiledPolicy(tuple(_row(policy, c, run) for c in CAPABILITIES), files=files)


def _row(policy: Policy, capability: Capability, run: RunOptions) -> PolicyRow:
    verdict = verdict_of(policy, capability, run)
    if capability == "mcp":
        return PolicyRow(capability, "deny", "native", report_notes.NO_SERVERS)
    if verdict == "deny":
        shell = policy.shell == "allow" or policy.allow_tools is not None
        free = shell and verdict_of(policy, "shell", run) == "allow"
        if capability == "network" and free and policy.network == "deny":
            return PolicyRow(capability, verdict, "impossible", report_notes.SHELL_REACHES_NETWORK)
        return PolicyRow(capability, verdict, "native", report_notes.NOT_OFFERED)
    where = {
        "read": report_notes.READS_OUTSIDE,
        "write": report_notes.WRITES_INSIDE,
    }.get(capability, "")
    return PolicyRow(capability, verdict, "brokered", "" if policy.is_unlimited else where)


BASE = keyed_agent("cline --acp", "Cline", (KEY,), HINT, private)
PACKAGE = Package("cline", "3.0.65", "3.0.65", {"linux-x86_64": "@cline/cli-linux-x64/bin/cline"})
OWN = (".clinerules", ".cline", ".agents", "AGENTS.md")


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    plain = BASE.launch(run, place, prompt, resume)
    files = {**plain.files, **place.compiled.files}
    return replace(plain, files=files, service_url=place.env.get(URL))


AGENTS = (
    replace(
        BASE,
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
        compile=compile_policy,
        launch=launch,
        meter_route=behind_url(URL, KEY),
        project_files=OWN,
    ),
)
