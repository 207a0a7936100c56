"""Grants in OpenCode's own rules. The last rule that matches decides.

There are two ways to start it. The persistent agent (``controls_acp``) asks us about each file that
it reads or writes, and we judge where the path leads. What the policy denies, or would ask about
if no one can answer, is denied by a rule and so not offered to the model. One process per prompt
(``controls``) would end its run at the first permission request, so there every call is
allowed or denied by a rule.

Facts that this depends on, each seen in runs of the real program:

- A rule for a file compares text, relative to the repository that contains the working directory,
  and links are followed afterwards. The whole repository counts as inside. So unless it has a
  shell, OpenCode is prevented from finding the repository (``launch``): then paths are relative
  to ``/``, and the rules name the workspace and the links in it that lead out.
- Models with ``gpt`` in their name write with patches only, and the rules do not see where a
  patch moves a file to; a permission request shows it.
- The rules for ``glob`` and ``grep`` compare the pattern and not the folder: a headless agent has
  neither tool if links lead out of the workspace.
- Its rules for commands see the *commands* in a line. A line without any (``> file``,
  ``cd . > file``) runs unseen, whatever the rules say, and empties or creates a file. So a shell
  that is not allowed is not offered at all, not even for asking, and rules for single commands are
  advisory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import product

from msgspec.structs import replace

from corral._agents.grants import Grant, Grants
from corral._agents.shared.controls import (
    READS_OUTSIDE,
    UNASKED_BY_DEFAULT,
    check_names,
    other_hooks,
    server_prefixed,
    tools_by_capability,
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
from corral._core.protected_paths import NAMES
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcer
from corral.values import Json

READ = ("read", "list", "glob", "grep", "lsp")
WRITE = ("edit", "write", "patch", "apply_patch", "multiedit")
SHELL = ("bash", "skill")
NETWORK = ("webfetch", "websearch", "codesearch")
HARMLESS = ("todowrite", "todoread")
DELEGATE = "task"
"""A sub-agent asks in a separate session, which gets no answer: for ``full`` only."""

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
_TOOLS_OF = tools_by_capability(TOOLS)

SEARCH = ("glob", "grep")
"""They start ripgrep."""
UNLIMITED: dict[str, Json] = {"*": "allow", "read": {"*": "allow", "*proc/*environ": "deny"}}
"""Its own key stands in its environment, which no task needs to read."""
UNAVAILABLE = "invalid"
"""What a call of a tool that is not offered becomes: it tells the model so."""

FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (("bash", {"command": "{command}", "description": "Run it"}),),
    "write": (
        ("write", {"filePath": "{path}", "content": "{text}"}),
        ("apply_patch", {"patchText": ADD_PATCH}),
    ),
    "edit": (
        ("edit", {"filePath": "{path}", "oldString": "{before}", "newString": "{after}"}),
        ("apply_patch", {"patchText": EDIT_PATCH}),
    ),
    "read": (("read", {"filePath": "{path}"}),),
    "list": (("read", {"filePath": "{path}"}), ("list", {"path": "{path}"})),
    "find": (("glob", {"pattern": "*", "path": "{path}"}),),
    "search": (("grep", {"pattern": "{pattern}", "path": "{path}"}),),
    "fetch": (("webfetch", {"url": "{url}", "format": "text"}),),
    "web_search": (("websearch", {"query": "{query}"}), ("codesearch", {"query": "{query}"})),
    "delegate": (
        ("task", {"description": "Do it", "prompt": "{prompt}", "subagent_type": "general"}),
    ),
    "skill": (("skill", {"name": "{skill}"}),),
}
"""How the model calls the tools."""


RIPGREP = "rg"
_UNSEEN = "a line without a command (`> file`) runs without asking"


_NATIVE = AgentControls(own_default="it asks for nothing", for_folders=lambda _place: {})
_UNLIMITED = AgentControls(for_folders=lambda _place: {**UNLIMITED})


def controls_acp(grants: Grants, run: RunOptions) -> AgentControls:
    """For the persistent agent, which asks us. Raises ``PolicyError`` for a tool name that is
    nearly one of OpenCode's."""
    check_names(grants.tool_lists, TOOLS, "OpenCode", server_prefixed(run, "_"), strict=run.strict)
    if grants.is_native:
        return replace(_NATIVE, unhooked=(UNASKED_BY_DEFAULT,))
    if grants.is_unlimited and not run.hooked:
        return replace(_UNLIMITED, unhooked=(_UNSEEN,))
    base: dict[str, Json] = {"*": "deny", UNAVAILABLE: "allow"}
    if grants.listed is not None:
        # Every permission request comes to us, with the name of the tool.
        base |= {_key(name): "ask" for name in grants.listed}
    else:
        base |= _acp_grants(grants, run)
    # Its rules have one name for all tools that write; permission requests tell them apart.
    base |= {name: "deny" for name in grants.denied if name not in WRITE}

    def rules(place: LaunchContext) -> dict[str, Json]:
        found = dict(base)
        if RIPGREP not in place.helpers:
            found |= dict.fromkeys(SEARCH, "deny")
        beyond = offers_shell(found) or (grants.listed is None and grants.shell.verdict != "deny")
        found["external_directory"] = "allow" if beyond else _outside(grants, place.cwd)
        found["doom_loop"] = "ask" if beyond else "deny"
        return {**found, DELEGATE: "deny"}

    foreign = any(s.name != OWN_SERVER for s in grants.started(run.mcp_servers))
    unhooked = ("calls of MCP servers that the policy allows do not ask",) if foreign else ()
    if grants.free_shell or grants.rules:
        unhooked = (_UNSEEN,)
    return AgentControls(enforced=_enforced_acp(grants), for_folders=rules, unhooked=unhooked)


def _acp_grants(grants: Grants, run: RunOptions) -> dict[str, Json]:
    """What the capabilities and the shell rules allow or ask about."""
    rules: dict[str, Json] = dict.fromkeys(HARMLESS, "allow")
    rules |= dict.fromkeys(READ, "deny" if grants.read.is_denied else "ask")
    rules["edit"] = "deny" if grants.write.is_denied else "ask"
    rules |= dict.fromkeys(NETWORK, grants.network.verdict)
    rules |= dict.fromkeys(SHELL, "allow" if grants.shell.verdict == "allow" else "deny")
    if run.hooked:
        rules = {name: "ask" if rule == "allow" else rule for name, rule in rules.items()}
    if grants.rules:
        rules["bash"] = "ask"
    for server in run.mcp_servers:
        verdict = grants.of_server(server.name).verdict
        asks = verdict == "ask" and not _can_ask_about_servers(grants)
        rules[f"{server.name}_*"] = "deny" if asks else verdict
    return rules


def _can_ask_about_servers(grants: Grants) -> bool:
    """A permission request for such a tool looks like one for the shell, so it can be answered only
    if both verdicts are the same."""
    return grants.shell.verdict == "ask"


def _enforced_acp(grants: Grants) -> dict[Capability, Enforced]:
    """Tools that a list names ask, and so do those for files."""
    by: dict[Capability, Enforcer] = {
        name: "brokered"
        if grants.listed is not None or grants.of(name).verdict == "ask"
        else "native"
        for name in CAPABILITIES
    }
    for capability in ("read", "write"):
        by[capability] = "native" if grants.of(capability).is_denied else "brokered"
    shell = _shell_note(grants)
    if grants.rules:
        by["shell"], shell = "advisory", f"{_UNSEEN}; {shell}"
    elif grants.shell.verdict == "ask":
        by["shell"], shell = "not offered", f"{_UNSEEN}; {shell}"
    servers, own = "", by["mcp"]
    if not _can_ask_about_servers(grants) and "ask" in (grants.mcp.verdict, grants.own_mcp.verdict):
        servers = "its permission requests look like those of the shell"
        by["mcp"] = "not offered" if grants.mcp.verdict == "ask" else by["mcp"]
        own = "not offered" if grants.own_mcp.verdict == "ask" else own
    elif grants.listed is None:
        own = "brokered" if grants.own_mcp.verdict == "ask" else "native"
    tool: Enforcer = "native" if grants.listed is None else "brokered"
    return {
        "read": Enforced(by["read"], READS_OUTSIDE, {"tool": tool}),
        "write": Enforced(by["write"]),
        "shell": Enforced(by["shell"], shell, {} if grants.rules else {"tool": tool}),
        "network": Enforced(by["network"], "", {"tool": tool}),
        "mcp": Enforced(by["mcp"], servers, {"tool": tool, "own": own}),
    }


def _shell_note(grants: Grants) -> str:
    keys = "it sees the keys in OpenCode's own environment; " if grants.free_shell else ""
    return f"{keys}sub-agents are off"


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """For one process per prompt: each call is allowed, or denied. Raises as ``controls_acp``."""
    check_names(grants.tool_lists, TOOLS, "OpenCode", server_prefixed(run, "_"), strict=run.strict)
    hooks = other_hooks(run)
    if grants.is_native:
        return replace(_NATIVE, unhooked=hooks)
    if grants.is_unlimited:
        return replace(_UNLIMITED, unhooked=hooks)
    base: dict[str, Json] = {"*": "deny"}
    if grants.listed is not None:
        base |= {_key(name): "allow" for name in grants.listed}
    else:
        base |= dict.fromkeys(HARMLESS, "allow")
        for capability, tools in _TOOLS_OF.items():
            base |= dict.fromkeys(map(_key, tools), _flat(grants.of(capability)))
        for server in run.mcp_servers:
            base[f"{server.name}_*"] = _flat(grants.of_server(server.name))
    if grants.rules and "bash" not in grants.denied:
        commands = {rule.pattern: rule.verdict for rule in reversed(grants.rules)}
        base["bash"] = {"*": base.get("bash", "deny"), **commands}
    base |= {_key(name): "deny" for name in grants.denied}
    shell = offers_shell(base)
    if not shell:
        base |= dict.fromkeys(("list", "lsp"), "deny")  # their rules do not see paths

    # An agent with a shell can read and write everywhere anyway.
    near: dict[str, Json] = {
        "read": {"*": "allow"},
        "edit": {"*": "allow", **dict.fromkeys(_fences(), "deny")},
    }

    def rules(place: LaunchContext) -> dict[str, Json]:
        found = dict(base)
        for name in ("read", "edit"):
            if found.get(name) == "allow":
                found[name] = _paths(grants, place, name) if not shell else near[name]
        if RIPGREP not in place.helpers or (place.links.unreadable and not shell):
            found |= dict.fromkeys(SEARCH, "deny")
        outside = "allow" if shell else _outside(grants, place.cwd)
        # It asks about a call that is repeated again and again, and a permission request ends the
        # run.
        return {**found, "external_directory": outside, DELEGATE: "deny", "doom_loop": "deny"}

    return AgentControls(
        enforced=_enforced_headless(grants, run, base), for_folders=rules, unhooked=hooks
    )


def writes_by_patches(model: str) -> bool:
    """OpenCode decides by the model's name; this matches a few more names."""
    return "gpt" in model.lower()


def offers_shell(rules: Mapping[str, Json]) -> bool:
    """Whether these rules offer a shell to the model."""
    return rules.get("bash", rules.get("*", "allow")) != "deny"


def _enforced_headless(
    grants: Grants, run: RunOptions, rules: Mapping[str, Json]
) -> dict[Capability, Enforced]:
    read = "outside the workspace only the writable folders may be read"
    if not grants.free_shell and not grants.read.is_denied:
        read += "; glob and grep are off where links lead out of the workspace"
    write = Enforced()
    one_name = "its rules do not tell edit, write and apply_patch apart"
    if rules.get("edit", "deny") == "deny":
        write = Enforced("not offered", one_name if grants.write.subjects("tool", "deny") else "")
    elif grants.listed is not None and not {"edit", "write"} <= {*grants.listed}:
        write = Enforced("advisory", f"{one_name}: list edit and write")
    elif writes_by_patches(run.model or ""):
        why = "its rules do not see where a patch moves a file to: use opencode-acp"
        write = Enforced("impossible", why)
    shell = _shell_note(grants)
    if grants.rules:
        shell = f"its rules see no line without a command (`> file`); {shell}"
    return {
        "read": Enforced("native", read),
        "write": write,
        "shell": Enforced("advisory" if grants.rules else "native", shell),
    }


def _fences(root: str = "") -> Iterable[str]:
    """Patterns for the protected names, at any depth below ``root``."""
    # OpenCode compares case, and a file system may not: what git obeys is named in every case.
    in_every_case = ("." + "".join(letters) for letters in product("gG", "iI", "tT"))
    for name in (*NAMES, *in_every_case):
        for place in (name, f"*/{name}"):
            yield from (f"{root}{place}", f"{root}{place}/*")


def _paths(grants: Grants, place: LaunchContext, tool: str) -> dict[str, Json]:
    """The workspace and the writable folders, without what is protected and without links that
    lead out. Paths are relative to ``/``."""
    rules: dict[str, Json] = {"*": "deny"}
    roots = [_relative(each) for each in (place.cwd, *_writable(grants, place.cwd))]
    for root in roots:
        rules |= dict.fromkeys(_tree(root), "allow")
    links, denied = place.links, place.links.unreadable
    if tool == "edit":
        denied = links.found
        for root in roots:
            rules |= dict.fromkeys(_fences(f"{root}/" if root else ""), "deny")
    for path in (*(link.path for link in denied), *(links.aliases if denied else ())):
        rules |= dict.fromkeys(_tree(_relative(path)), "deny")
    return rules


def _tree(path: str) -> tuple[str, ...]:
    return (path, f"{path}/*") if path else ("*",)


def _relative(path: str) -> str:
    return path.strip("/")


def _writable(grants: Grants, cwd: str) -> list[str]:
    return [os.path.normpath(os.path.join(cwd, folder)) for folder in grants.writable]


def _outside(grants: Grants, cwd: str) -> dict[str, Json]:
    rules: dict[str, Json] = {"*": "deny"}
    for folder in _writable(grants, cwd):
        rules |= {folder: "allow", f"{folder}/*": "allow"}
    return rules


def _flat(grant: Grant) -> str:
    return "allow" if grant.verdict == "allow" else "deny"


def _key(tool: str) -> str:
    """The name of a tool in OpenCode's rules, which have one name for all tools that write."""
    return "edit" if tool in WRITE else tool
