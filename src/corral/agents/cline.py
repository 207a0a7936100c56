"""Cline as a persistent agent. Facts hold for 3.0.65, each seen in a run of the real program.

It asks before every call, reading included, but for those of a sub-agent (so there is none) and
the hooks of a repository (so it is refused). Paths are judged when it asks: by itself it reads and
writes anywhere. What the policy denies is not offered (``disabledTools``). It tells no tokens,
takes no tool servers and drops images. Models of OpenAI get ``apply_patch``, whose question names
no paths: it counts as a command. It gives up its turn after six refusals in a row.
"""

import json

from msgspec.structs import replace

from corral.agents.acp_command import keyed_agent
from corral.agents.shared.tool_allowlist import SHELL_REACHES_NETWORK
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
HINT = f"Set {KEY}: of the service at {URL} where that is set, else of Cline's own."
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
                   repeats_finished_calls=True)  # fmt: skip
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
    """With nobody to ask, what asks is denied; but rules may still allow single commands."""
    if policy.allow_tools is not None and policy.mode != "native":
        tools = TOOLS_OF.get(capability, ())
        return "allow" if any(name in tools for name in policy.allow_tools) else "deny"
    verdict = policy.verdict(capability)
    rules = capability == "shell" and any(r.split()[0] == "allow" for r in policy.shell_rules)
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
    """It asks us for every call of what is left."""
    check_names(policy, KINDS, "Cline", lambda _name: False, strict=run.strict)
    settings = {"telemetryOptOut": True, "autoUpdateEnabled": False}
    files = {SETTINGS: json.dumps({**settings, "disabledTools": disabled(policy, run)})}
    return CompiledPolicy(tuple(_row(policy, c, run) for c in CAPABILITIES), files=files)


def _row(policy: Policy, capability: Capability, run: RunOptions) -> PolicyRow:
    verdict = verdict_of(policy, capability, run)
    if capability == "mcp":
        return PolicyRow(capability, "deny", "native", "it takes no tool servers")
    if verdict == "deny":
        shell = policy.shell == "allow" or policy.allow_tools is not None
        free = shell and verdict_of(policy, "shell", run) == "allow"
        if capability == "network" and free and policy.network == "deny":
            return PolicyRow(capability, verdict, "impossible", SHELL_REACHES_NETWORK)
        return PolicyRow(capability, verdict, "native", "not offered to the model")
    where = {
        "read": "outside the workspace, reading follows the rule for the shell",
        "write": "in the workspace and the writable folders, except protected names",
    }.get(capability, "")
    return PolicyRow(capability, verdict, "brokered", "" if policy.is_unlimited else where)


BASE = keyed_agent("cline --acp", "Cline", (KEY,), HINT, private)
PACKAGE = Package("cline", "3.0.65", "3.0.65", {"linux-x86_64": "@cline/cli-linux-x64/bin/cline"})
OWN = (".clinerules", ".cline", ".agents", "AGENTS.md")


def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
    plain = BASE.launch(run, place, prompt, resume)
    return replace(plain, files={**plain.files, **place.compiled.files})


AGENTS = (
    replace(
        BASE,
        package=PACKAGE,
        transport=AcpTransport(quirks=QUIRKS),
        tools=KINDS,
        probe=PROBE,
        env_names=(KEY, URL),
        compile=compile_policy,
        launch=launch,
        project_files=OWN,
    ),
)
