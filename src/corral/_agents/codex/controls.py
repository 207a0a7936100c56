"""Grants in Codex's own controls: its sandbox, and the tools that it offers.

Facts that this depends on, each seen in runs of the real program:

- It has no tools for reading: it reads with its shell, and the sandbox lets the shell see the
  whole disk. Without a shell it sees the content of the prompt, and images.
- ``exec`` sends no permission requests: what the sandbox does not allow is denied, such as
  patches outside the workspace and commands that would write there.
- The workspace's sandbox opens ``/tmp`` unless a setting excludes it, and makes ``.git``,
  ``.codex`` and ``.agents`` read-only, but only at the top of the workspace: ``sub/.git`` can be
  written. Its permission profiles cannot express more: their patterns match only files that
  exist. ``view_image`` reads everywhere. So a hook of corral judges the paths of both tools
  (``corral._system.hook_guard``).
- A read-only sandbox has no network, and no setting changes that.
- By default an MCP server may run every tool that declares itself read-only, and its resources
  need no permission. So a denied server is not started.
- Full access approves every tool of every server: it is used for ``full`` only.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from corral._agents.grants import ExceptionKind, Grants, read_tool_lists
from corral._agents.shared.controls import (
    UNASKED_BY_DEFAULT,
    check_names,
    other_hooks,
    tools_by_capability,
    without_rules,
)
from corral._agents.spec import (
    ADD_PATCH,
    EDIT_PATCH,
    Act,
    AgentControls,
    Enforced,
    Form,
    LaunchContext,
)
from corral._core.quoting import toml_string
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcer, Policy, Verdict
from corral.values import Json

SHELL = ("exec_command", "write_stdin", "shell", "shell_command", "local_shell")
WRITE = ("apply_patch",)
READ = ("view_image",)
NETWORK = ("web_search",)

HARMLESS = ("update_plan", "tool_search")
"""Tools without an effect, which only a hook sees."""
TOOLS: dict[str, ToolKind] = {
    **dict.fromkeys(SHELL, "execute"),
    **dict.fromkeys(WRITE, "edit"),
    **dict.fromkeys(READ, "read"),
    **dict.fromkeys(NETWORK, "fetch"),
}
_TOOLS_OF = tools_by_capability(TOOLS)


_HOOK_SECONDS = 86_400
_READ_ONLY = "a tool that declares itself read-only"
"""A hook that takes longer counts as permission, so it gets longer than it can need."""
HOOKS = "hooks.PreToolUse"
"""The setting that lists the commands that Codex runs before tool calls."""
READS_ALL = "include_directories changes nothing: Codex reads the whole disk"


def is_agent_tool(name: str) -> bool:
    """Whether a tool that Codex reports as unknown exists and was left out by the policy."""
    return name in TOOLS or name.startswith("mcp__")


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
    "write": (("apply_patch", {"input": ADD_PATCH}),),
    "edit": (("apply_patch", {"input": EDIT_PATCH}),),
    "delegate": (("spawn_agent", {"message": "{prompt}"}),),
    "mcp_resource": (("read_mcp_resource", {"server": "{server}", "uri": "{uri}"}),),
}
"""How the model calls the tools."""


def _is_on(grants: Grants, capability: Capability) -> bool:
    """Whether the tools of a capability are offered: Codex cannot leave out one of them."""
    grant = grants.of(capability)
    return grant.verdict == "allow" and not grant.subjects("tool", "deny")


def _server_settings(grants: Grants, name: str) -> str | None:
    """Settings that choose the tools of an MCP server. None for one that may not be used."""
    own = f"mcp__{name}__"
    denied = [tool.removeprefix(own) for tool in sorted(grants.denied) if tool.startswith(own)]
    settings = ',default_tools_approval_mode="approve"'
    settings += f",disabled_tools={toml_list(denied)}" if denied else ""
    if grants.listed is not None:
        listed = [tool.removeprefix(own) for tool in grants.listed if tool.startswith(own)]
        return f"{settings},enabled_tools={toml_list(listed)}" if listed else None
    return settings if grants.of_server(name).verdict == "allow" else None


def _path_hook(
    grants: Grants, run: RunOptions, tools: tuple[str, ...], *, one_folder: bool
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
            "writable": [*grants.writable, place.tmp],
        }
        # -I: nothing of the working directory is imported.
        program = (sys.executable, "-I", "-m", "corral._system.hook_guard", json.dumps(guarded))
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


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """Raises ``PolicyError`` for a tool name that is nearly one of Codex's."""
    if grants.is_native:
        return AgentControls(
            own_default="a read-only sandbox that cannot ask",
            servers={server.name: "" for server in run.mcp_servers},
        )
    check_names(grants.tool_lists, TOOLS, "Codex", _is_mcp, strict=run.strict)
    shell, reads, writes = (_is_on(grants, name) for name in ("shell", "read", "write"))
    tools: tuple[str, ...] = ()  # whose paths corral's hook judges before each call
    if not grants.is_unlimited:
        tools = (*(WRITE if writes else ()), *(READ if reads and not shell else ()))
    # No hook is configured but ours.
    trust = ("--dangerously-bypass-hook-trust",) if tools or run.hooked else ()
    servers = {server.name: _server_settings(grants, server.name) for server in run.mcp_servers}
    made = AgentControls(
        enforced=_enforced_headless(grants),
        flags=(*_flags(grants, boxed=False), *trust),
        for_folders=_path_hook(grants, run, tools, one_folder=True),
        servers={name: settings for name, settings in servers.items() if settings is not None},
        notes=(READS_ALL,) if run.include_directories and shell else (),
        unhooked=("it searches the web without asking",)
        if _is_on(grants, "network")
        else other_hooks(run),
    )
    return replace(made, in_sandbox=replace(made, flags=(*_flags(grants, boxed=True), *trust)))


def _flags(grants: Grants, *, boxed: bool) -> tuple[str, ...]:
    """``boxed``: in corral's sandbox. Two sandboxes, one in the other, do not work. Corral's
    enforces the same and more."""
    if grants.is_unlimited:
        return ("--sandbox", "danger-full-access", "-c", 'web_search="live"')
    network, shell = _is_on(grants, "network"), _is_on(grants, "shell")
    flags: list[str] = []
    if boxed:
        flags += ["--sandbox", "danger-full-access"]
    elif _is_on(grants, "write"):
        reaches = str(network and shell).lower()
        flags += ["--sandbox", "workspace-write"]
        flags += ["-c", "sandbox_workspace_write.exclude_slash_tmp=true"]
        flags += ["-c", f"sandbox_workspace_write.network_access={reaches}"]
        flags += [f"--add-dir={folder}" for folder in grants.writable]
    else:
        flags += ["--sandbox", "read-only"]
    flags += ["-c", f'web_search="{"live" if network else "disabled"}"']
    if not shell:
        flags += ["--disable", "shell_tool", "--disable", "unified_exec"]
    if not _is_on(grants, "read"):
        flags += ["--disable", "view_image"]
    # A sub-agent's calls make no events.
    flags += ["--disable", "multi_agent"]
    return tuple(flags)


def _enforced_headless(grants: Grants) -> dict[Capability, Enforced]:
    is_on = {name: _is_on(grants, name) for name in _TOOLS_OF}
    by: dict[Capability, Enforcer] = {
        name: "native" if is_on[name] else "not offered" for name in _TOOLS_OF
    }
    shell, read = is_on["shell"], "no tool that reads is offered"
    if is_on["read"]:
        read = "the whole disk, with its shell"
        read = read if shell else "only images of the workspace: it reads with its shell"
    elif shell and grants.free_shell and grants.listed is None:
        by["read"], read = "impossible", "it reads with its shell, and its sandbox hides nothing"
    network = "its sandbox restricts commands too" if shell and not is_on["network"] else ""
    if shell and is_on["network"] and not is_on["write"]:
        network = "only its search: commands in a read-only sandbox have no network"
    restricts: Mapping[ExceptionKind, Enforcer] = (
        {} if grants.is_unlimited else {"commands": "native"}
    )
    write = ""
    if is_on["write"] and grants.is_unlimited:
        write = "anywhere: there is no sandbox"
    elif is_on["write"] and shell:
        write = "commands cannot write .git, .codex and .agents of the workspace"
    elif is_on["write"]:
        write = "a model that Codex does not know gets no tool for writing"
    return {
        "read": Enforced(by["read"], read),
        "write": Enforced(by["write"], write),
        "shell": without_rules(
            grants,
            offered=shell,
            note="it has no effective rules for commands" if grants.rules else "",
        ),
        "network": Enforced(by["network"], network, restricts),
        "mcp": Enforced(note="denied servers are not started"),
    }


MODE_ACP = "mode"
"""The key of the settings that holds the mode of codex-acp."""


def without_lists(policy: Policy, run: RunOptions) -> Policy:
    """For codex-acp, which asks about a kind of call and does not name the tool: each of Codex's
    tools is one capability. Lists with tools of MCP servers are not changed, and then refused."""
    check_names(read_tool_lists(policy), TOOLS, "Codex", _is_mcp, strict=run.strict)
    listed, denied = read_tool_lists(policy)
    if policy.mode == "native" or any(map(_is_mcp, (*(listed or ()), *denied))):
        return policy
    verdicts: dict[str, Verdict] = {}
    for capability, tools in _TOOLS_OF.items():
        if listed is not None:
            verdicts[capability] = "allow" if {*listed} & {*tools} else "deny"
        elif {*denied} & {*tools}:
            verdicts[capability] = "deny"
    if listed is not None:
        verdicts["mcp"] = verdicts["own_mcp"] = "deny"
    return replace(policy, allow_tools=None, deny_tools=(), **verdicts)


def controls_acp(grants: Grants, run: RunOptions) -> AgentControls:
    """For codex-acp, which asks us."""
    images = grants.read.verdict == "allow" and not grants.is_unlimited and not run.hooked
    # It asks about patches, and we judge them when we answer. It does not ask about images. The
    # sessions of one process in a pool have several folders.
    hook = _path_hook(grants, run, READ if images else (), one_folder=False)

    def made(*, asks_nothing: bool) -> AgentControls:
        # Its default mode writes without asking. In read-only it asks about each change, and an
        # allowed change is made outside its sandbox.
        mode = "agent-full-access" if asks_nothing else "read-only"
        flags = ['web_search="live"']
        if not grants.is_unlimited:
            search = "live" if grants.network.verdict == "allow" else "disabled"
            off = ["multi_agent", *(() if asks_nothing else ("shell_tool", "unified_exec"))]
            off += [] if images else ["view_image"]
            flags = [f'web_search="{search}"', *(f"features.{name}=false" for name in off)]
        # What codex-acp does without asking.
        reasons = (
            (grants.is_native, UNASKED_BY_DEFAULT),
            (grants.is_unlimited, "with policy 'all' it asks about nothing"),
            (grants.network.verdict == "allow", "it searches the web without asking"),
            (_starts_foreign(grants, run), f"{_READ_ONLY} runs without asking"),
        )
        return AgentControls(
            enforced=_enforced_headless(grants)
            if grants.is_unlimited
            else _enforced_acp(grants, run),
            flags=tuple(flags),
            settings={MODE_ACP: mode},
            for_folders=hook,
            unhooked=tuple(text for applies, text in reasons if applies),
        )

    # Corral's sandbox may enforce all that the policy does not allow.
    by_sandbox = not grants.write.would_ask and not grants.rules and not run.hooked
    needed = grants.shell.verdict == grants.read.verdict == "allow"
    servers = not grants.started(run.mcp_servers) or grants.mcp.verdict == "allow"
    boxed = made(asks_nothing=grants.is_unlimited or (by_sandbox and needed and servers))
    return replace(made(asks_nothing=grants.is_unlimited), in_sandbox=boxed)


def _enforced_acp(grants: Grants, run: RunOptions) -> dict[Capability, Enforced]:
    if grants.listed is not None or grants.denied or grants.is_native:
        why = "it has no lists of MCP tools, and no default that asks: codex-cli can, or policy all"
        return dict.fromkeys(CAPABILITIES, Enforced("impossible", why))
    shell = without_rules(grants, offered=False, note="its shell is off")
    if grants.shell.verdict == "allow":
        why = "a command that it asks permission for runs outside its sandbox"
        shell = Enforced("impossible", f"{why}: codex-cli can, or policy all")
    denied = grants.mcp.verdict == "deny"  # and so not started
    mcp = Enforced("native" if denied else "brokered", exceptions={"own": "brokered"})
    if grants.mcp.verdict != "allow" and _starts_foreign(grants, run):
        why = f"{_READ_ONLY} runs without asking: use codex-cli"
        mcp = Enforced("impossible", why, {"own": "brokered"})
    reads = grants.read.verdict == "allow"
    images = "only images of the workspace" if reads else "nothing"
    return {
        "read": Enforced(
            "native" if reads else "not offered", f"{images}: it reads with its shell, which is off"
        ),
        "write": Enforced("brokered", "it asks for each patch; a denial ends the turn"),
        "shell": shell,
        "network": Enforced(
            "native" if grants.network.verdict == "allow" else "not offered",
            exceptions={"commands": "native"},  # there are none
        ),
        "mcp": mcp,
    }


def _starts_foreign(grants: Grants, run: RunOptions) -> bool:
    """Whether an MCP server is started that is not the caller's own."""
    return any(server.name != OWN_SERVER for server in grants.started(run.mcp_servers))


def _is_mcp(name: str) -> bool:
    return name.startswith("mcp__")
