"""A policy in Codex's own controls: its sandbox, and the tools that it offers.

Facts that this depends on, each seen in runs of the real program:

- It has no tools for reading: it reads with its shell, and the sandbox lets the shell see the
  whole disk. Without a shell it sees the content of the prompt, and images.
- ``exec`` sends no permission requests: what the sandbox does not allow is denied, such as
  patches outside the workspace and commands that would write there.
- The workspace's sandbox opens ``/tmp`` unless a setting excludes it, and makes ``.git``,
  ``.codex`` and ``.agents`` read-only, but only at the top of the workspace: ``sub/.git`` can be
  written. Its permission profiles cannot express more: their patterns match only files that
  exist. ``view_image`` reads everywhere. So a hook of corral judges the paths of both tools
  (``corral.system.hook_guard``).
- A read-only sandbox has no network, and no setting changes that.
- By default an MCP server may run every tool that declares itself read-only, and its resources
  need no permission. So a denied server is not started.
- Full access approves every tool of every server: it is used for ``full`` only.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from corral.agents.shared import report_notes
from corral.agents.shared.tool_names import check_names
from corral.agents.spec import Act, CompiledPolicy, Form, LaunchContext, PolicyRow
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, Verdict
from corral.quoting import toml_string
from corral.values import Json

SHELL = ("exec_command", "write_stdin", "shell", "shell_command", "local_shell")
WRITE = ("apply_patch",)
READ = ("view_image",)
NETWORK = ("web_search",)

HARMLESS = ("update_plan", "tool_search")
"""Tools without an effect, which only the judge at the wire sees."""
TOOLS: dict[str, ToolKind] = {
    **dict.fromkeys(SHELL, "execute"),
    **dict.fromkeys(WRITE, "edit"),
    **dict.fromkeys(READ, "read"),
    **dict.fromkeys(NETWORK, "fetch"),
}
_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": READ,
    "write": WRITE,
    "shell": SHELL,
    "network": NETWORK,
}


_HOOK_SECONDS = 86_400
"""A hook that takes longer counts as permission, so it gets longer than it can need."""
HOOKS = "hooks.PreToolUse"
"""The setting that lists the commands that Codex runs before tool calls."""
READS_ALL = "include_directories changes nothing: Codex reads the whole disk"


def asked_at_wire(policy: Policy) -> tuple[Capability, ...]:
    """What a person can be asked about at the wire. OpenAI itself searches the web. If commands
    need no permission, the sandbox decides what they write: then it stays read-only."""
    return (
        ("read", "shell", "mcp") if allows(policy, "shell") else ("read", "write", "shell", "mcp")
    )


def is_agent_tool(name: str) -> bool:
    """Whether a tool that Codex reports as unknown exists and was left out by the policy."""
    return name in TOOLS or name.startswith("mcp__")


def patch(path: str, line: str) -> str:
    """A patch that adds a file of one line."""
    return f"*** Begin Patch\n*** Add File: {path}\n+{line}\n*** End Patch\n"


def toml_list(texts: Iterable[str]) -> str:
    return f"[{','.join(map(toml_string, texts))}]"


FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (
        ("exec_command", {"cmd": "{command}"}),
        ("shell", {"command": ["sh", "-c", "{command}"]}),
        ("shell_command", {"command": "{command}"}),
        ("exec_command", {"cmd": "{command}", "sandbox_permissions": "require_escalated"}),
    ),
    "background": (("exec_command", {"cmd": "{command}", "yield_time_ms": 250, "tty": True}),),
    "write": (("apply_patch", {"input": patch("{path}", "{text}")}),),
    "edit": (
        (
            "apply_patch",
            {
                "input": "*** Begin Patch\n*** Update File: {path}\n@@\n-{before}\n+{after}\n"
                "*** End Patch\n"
            },
        ),
    ),
    "delegate": (("spawn_agent", {"message": "{prompt}"}),),
    "mcp_resource": (("read_mcp_resource", {"server": "{server}", "uri": "{uri}"}),),
}
"""How the model calls the tools."""


def allows(policy: Policy, capability: Capability) -> bool:
    """Whether the capability is allowed, by its verdict or by the lists of tools."""
    tools = _TOOLS_OF.get(capability, ())
    if any(name in policy.deny_tools for name in tools):
        return False
    if policy.allow_tools is not None:
        return any(name in policy.allow_tools for name in tools)
    return policy.verdict(capability) == "allow"


def guarded_tools(policy: Policy) -> tuple[str, ...]:
    """The tools whose paths corral's hook judges before each call. A shell can read images
    anyway."""
    if policy.is_unlimited or policy.mode == "native":
        return ()
    tools = WRITE if allows(policy, "write") else ()
    return tools if allows(policy, "shell") or not allows(policy, "read") else (*tools, *READ)


def _servers(policy: Policy, run: RunOptions) -> dict[str, str]:
    """The MCP servers that are started, with the settings that choose their tools."""
    if policy.mode == "native":
        return {server.name: "" for server in run.mcp_servers}
    found = {server.name: _server_settings(policy, server.name) for server in run.mcp_servers}
    return {name: settings for name, settings in found.items() if settings is not None}


def _server_settings(policy: Policy, name: str) -> str | None:
    """None for a server that may not be used."""
    own = f"mcp__{name}__"
    denied = [tool.removeprefix(own) for tool in sorted(policy.deny_tools) if tool.startswith(own)]
    settings = ',default_tools_approval_mode="approve"'
    settings += f",disabled_tools={toml_list(denied)}" if denied else ""
    if policy.allow_tools is not None:
        listed = [tool.removeprefix(own) for tool in policy.allow_tools if tool.startswith(own)]
        return f"{settings},enabled_tools={toml_list(listed)}" if listed else None
    is_allowed = policy.verdict("mcp", own=name == OWN_SERVER) == "allow"
    return settings if is_allowed else None


def _path_hook(
    policy: Policy, run: RunOptions, tools: tuple[str, ...], *, one_folder: bool
) -> Callable[[LaunchContext], dict[str, Json]] | None:
    """A hook of corral that judges each call of these tools by its paths. Codex's sandbox protects
    ``.git`` and its own settings at the top of the workspace only, and lets it read everywhere.
    ``one_folder``: all sessions of the process work in one folder."""
    if not tools:
        return None

    def setting(place: LaunchContext) -> dict[str, Json]:
        guarded = {
            "cwd": place.cwd if one_folder else None,
            "readable": list(run.include_directories),
            "writable": [*policy.writable, place.tmp],
        }
        # -I: nothing of the working directory is imported.
        program = (sys.executable, "-I", "-m", "corral.system.hook_guard", json.dumps(guarded))
        # Codex takes any exit code but 2 as permission.
        command = f"{shlex.join(program)} || exit 2"
        return {HOOKS: f"[{hook(command, tools)}]"}

    return setting


def hook(command: str, tools: tuple[str, ...] = ()) -> str:
    """The setting of a command that Codex runs before each call of these tools; without any, before
    each call of a tool."""
    matcher = f"matcher={toml_string('^(' + '|'.join(tools) + ')$')}," if tools else ""
    run = f'{{type="command",command={toml_string(command)},timeout={_HOOK_SECONDS}}}'
    return f"{{{matcher}hooks=[{run}]}}"


def compile_headless(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """Raises ``PolicyError`` for a tool name that is nearly one of Codex's."""
    if policy.mode == "native":
        note = "the agent's own default: a read-only sandbox that cannot ask"
        rows = tuple(PolicyRow(capability, "ask", "native", note) for capability in CAPABILITIES)
        return CompiledPolicy(rows, servers=_servers(policy, run))
    check_names(policy, TOOLS, "Codex", _is_mcp, strict=run.strict)
    tools = guarded_tools(policy)
    # No hook is configured but ours.
    trust = ("--dangerously-bypass-hook-trust",) if tools or run.hooked else ()
    reads_all = run.include_directories and allows(policy, "shell")
    return CompiledPolicy(
        tuple(_row(policy, run, capability) for capability in CAPABILITIES),
        (*_flags(policy, run), *trust),
        for_folders=_path_hook(policy, run, tools, one_folder=True),
        servers=_servers(policy, run),
        notes=(READS_ALL,) if reads_all else (),
        unhooked=_unhooked_headless(policy, run),
    )


def _unhooked_headless(policy: Policy, run: RunOptions) -> tuple[str, ...]:
    """What codex-cli does without asking the hook of ``on_tool_call``."""
    if allows(policy, "network"):
        return ("it searches the web without asking",)
    return report_notes.other_hooks(run)


def _flags(policy: Policy, run: RunOptions) -> tuple[str, ...]:
    if policy.is_unlimited:
        return ("--sandbox", "danger-full-access", "-c", 'web_search="live"')
    flags: list[str] = []
    if run.in_sandbox:
        # Two sandboxes, one in the other, do not work. Corral's enforces the same and more.
        flags += ["--sandbox", "danger-full-access"]
    elif allows(policy, "write"):
        reaches = allows(policy, "network") and allows(policy, "shell")
        flags += ["--sandbox", "workspace-write"]
        flags += ["-c", "sandbox_workspace_write.exclude_slash_tmp=true"]
        flags += ["-c", f"sandbox_workspace_write.network_access={str(reaches).lower()}"]
        for folder in policy.writable:
            flags.append(f"--add-dir={folder}")
    else:
        flags += ["--sandbox", "read-only"]
    flags += ["-c", f'web_search="{"live" if allows(policy, "network") else "disabled"}"']
    if not allows(policy, "shell"):
        flags += ["--disable", "shell_tool", "--disable", "unified_exec"]
    if not allows(policy, "read"):
        flags += ["--disable", "view_image"]
    # A sub-agent's calls make no events.
    flags += ["--disable", "multi_agent"]
    return tuple(flags)


def _row(policy: Policy, run: RunOptions, capability: Capability) -> PolicyRow:
    verdict: Verdict = policy.verdict(capability)
    notes: list[str] = []
    shell = allows(policy, "shell")
    if policy.allow_tools is not None or (capability != "read" and _is_named(policy, capability)):
        verdict = "allow" if _is_free(policy, capability) else "deny"
        notes.append("by the lists of tools")
    elif verdict == "ask":
        notes.append(report_notes.HEADLESS_DENIED)
    reads_anyway = capability == "read" and verdict != "allow" and shell
    has_rules = capability == "shell" and bool(policy.shell_rules)
    enforcement: Enforcement = "impossible" if reads_anyway or has_rules else "native"
    if note := _note(policy, capability, verdict, shell=shell):
        notes.append(note)
    if capability == "mcp":
        notes += report_notes.own_functions(run, policy.verdict("mcp", own=True), verdict)
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))


def _note(policy: Policy, capability: Capability, verdict: Verdict, *, shell: bool) -> str:
    """A note on the capability. ``shell``: commands are allowed."""
    if capability == "write":
        return _write_note(policy, shell=shell) if verdict == "allow" else ""
    by_verdict: dict[tuple[Capability, bool, bool], str] = {
        # (capability, is it allowed, is the shell allowed)
        ("read", True, True): "the whole disk, with its shell",
        ("read", True, False): "only images of the workspace: it reads with its shell",
        ("read", False, True): "it reads with its shell, and its sandbox hides nothing",
        ("read", False, False): "no tool that reads is offered",
        ("network", False, True): "its sandbox restricts commands too",
        ("mcp", False, True): "its servers are not started",
        ("mcp", False, False): "its servers are not started",
    }
    if capability == "shell":
        return "it has no effective rules for commands" if policy.shell_rules else ""
    if capability == "network" and verdict == "allow" and shell and not allows(policy, "write"):
        return "only its search: commands in a read-only sandbox have no network"
    return by_verdict.get((capability, verdict == "allow", shell), "")


def _write_note(policy: Policy, *, shell: bool) -> str:
    if policy.is_unlimited:
        return "anywhere: there is no sandbox"
    if shell:
        return "commands cannot write .git, .codex and .agents of the workspace"
    return "a model that Codex does not know gets no tool for writing"


MODE_ACP = "mode"
"""The key of the compiled settings that holds the mode of codex-acp."""


def mode_acp(policy: Policy, run: RunOptions) -> str:
    """The mode of codex-acp. Its default mode writes without asking. In ``read-only`` it asks about
    each change, and an allowed change is made outside its sandbox."""
    return "agent-full-access" if _asks_nothing(policy, run) else "read-only"


def _asks_nothing(policy: Policy, run: RunOptions) -> bool:
    """Whether codex-acp may do everything without asking: under the policy ``all``, or if corral's
    sandbox enforces all that the policy does not allow."""
    if policy.is_unlimited:
        return True
    by_sandbox = policy.verdict("write") != "ask" and not policy.shell_rules
    needed = (policy.verdict("shell"), policy.verdict("read"))
    servers = not run.mcp_servers or policy.verdict("mcp") == "allow"
    return (
        run.in_sandbox
        and not run.hooked
        and by_sandbox
        and needed == ("allow", "allow")
        and servers
    )


def views_images(policy: Policy, *, hooked: bool = False) -> bool:
    """Whether codex-acp offers the tool that reads images; it does not ask before it uses it.
    ``hooked``: the caller decides about each call."""
    return policy.verdict("read") == "allow" and not policy.is_unlimited and not hooked


def settings_acp(policy: Policy, run: RunOptions) -> list[str]:
    if policy.is_unlimited:
        return ['web_search="live"']
    search = "live" if policy.verdict("network") == "allow" else "disabled"
    off = ["multi_agent"]
    if not _asks_nothing(policy, run):
        off += ["shell_tool", "unified_exec"]
    if not views_images(policy, hooked=run.hooked):
        off.append("view_image")
    return [f'web_search="{search}"', *(f"features.{name}=false" for name in off)]


def without_lists(policy: Policy, run: RunOptions) -> Policy:
    """For codex-acp, which asks about a kind of call and does not name the tool: each of Codex's
    tools is one capability. Lists with tools of MCP servers are not changed, and then refused."""
    check_names(policy, TOOLS, "Codex", _is_mcp, strict=run.strict)
    names = {*(policy.allow_tools or ()), *policy.deny_tools}
    if policy.mode == "native" or any(map(_is_mcp, names)):
        return policy
    verdicts: dict[str, Verdict] = {}
    for capability, tools in _TOOLS_OF.items():
        if policy.allow_tools is not None or names.intersection(tools):
            verdicts[capability] = "allow" if allows(policy, capability) else "deny"
    if policy.allow_tools is not None:
        verdicts["mcp"] = verdicts["own_mcp"] = "deny"
    return replace(policy, allow_tools=None, deny_tools=(), **verdicts)


def compile_acp(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """For codex-acp, which asks us."""
    policy = without_lists(policy, run)
    if policy.is_unlimited:
        rows = compile_headless(policy, run).report
    else:
        rows = tuple(_asking_row(policy, run, capability) for capability in CAPABILITIES)
    mode: Json = mode_acp(policy, run)
    # It asks about patches, and we judge them when we answer. It does not ask about images. The
    # sessions of one process in a pool have several folders.
    tools = READ if views_images(policy, hooked=run.hooked) else ()
    return CompiledPolicy(
        rows,
        tuple(settings_acp(policy, run)),
        settings={MODE_ACP: mode},
        for_folders=_path_hook(policy, run, tools, one_folder=False),
        unhooked=_unhooked(policy, run),
    )


def _unhooked(policy: Policy, run: RunOptions) -> tuple[str, ...]:
    """What codex-acp does without asking."""
    return tuple(
        report_notes.applying(
            (
                (policy.mode == "native", report_notes.UNASKED_BY_DEFAULT),
                (policy.is_unlimited, "with policy 'all' it asks about nothing"),
                (policy.verdict("network") == "allow", "it searches the web without asking"),
                (_foreign(run), "a tool that declares itself read-only runs without asking"),
            )
        )
    )


def _asking_row(policy: Policy, run: RunOptions, capability: Capability) -> PolicyRow:
    verdict = policy.verdict(capability)
    lists = policy.allow_tools is not None or policy.deny_tools or policy.mode == "native"
    if lists or (capability == "shell" and (verdict == "allow" or policy.shell_rules)):
        why = "a command that it asks permission for runs outside its sandbox"
        why = "it has no lists of MCP tools, and no default that asks" if lists else why
        return PolicyRow(capability, verdict, "impossible", f"{why}: codex-cli can, or policy all")
    if capability == "write":
        return PolicyRow(
            capability, verdict, "brokered", "it asks for each patch; a denial ends the turn"
        )
    if capability == "mcp" and verdict != "allow" and _foreign(run):
        why = "a tool that declares itself read-only runs without asking: use codex-cli"
        return PolicyRow(capability, verdict, "impossible", why)
    if capability == "mcp":
        return PolicyRow(capability, verdict, "brokered")
    reads = "only images of the workspace" if verdict == "allow" else "nothing"
    notes = {"shell": "its shell is off", "read": f"{reads}: it reads with its shell, which is off"}
    return PolicyRow(capability, verdict, "native", notes.get(capability, ""))


def _foreign(run: RunOptions) -> bool:
    return any(server.name != OWN_SERVER for server in run.mcp_servers)


def _is_named(policy: Policy, capability: Capability) -> bool:
    return any(name in policy.deny_tools for name in _TOOLS_OF.get(capability, ()))


def _is_free(policy: Policy, capability: Capability) -> bool:
    """Whether the lists of tools allow the capability. The shell can read."""
    if capability == "mcp":
        return any(map(_is_mcp, policy.allow_tools or ()))
    return allows(policy, capability) or (capability == "read" and allows(policy, "shell"))


def _is_mcp(name: str) -> bool:
    return name.startswith("mcp__")
