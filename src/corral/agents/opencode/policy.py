"""A policy in OpenCode's own rules. The last rule that matches decides.

There are two ways to start it. The persistent agent (``acp_rules``) asks us about each file that
it reads or writes, and we judge where the path leads. What the policy denies, or would ask about
if no one can answer, is denied by a rule and so not offered to the model. One process per prompt
(``headless_rules``) would end its run at the first permission request, so there every call is
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
from collections.abc import Callable, Iterable

import msgspec

from corral.agents.shared import report_notes
from corral.agents.shared.tool_names import check_names, server_prefixed
from corral.agents.spec import Act, CompiledPolicy, Form, LaunchContext, PolicyRow
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, Verdict
from corral.protected_paths import NAMES, Links
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
_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": READ,
    "write": WRITE,
    "shell": SHELL,
    "network": NETWORK,
}

SEARCH = ("glob", "grep")
"""They start ripgrep."""
UNLIMITED: dict[str, Json] = {"*": "allow", "read": {"*": "allow", "*proc/*environ": "deny"}}
"""Its own key stands in its environment, which no task needs to read."""
UNAVAILABLE = "invalid"
"""What a call of a tool that is not offered becomes: it tells the model so."""

FORMS: dict[Act, tuple[Form, ...]] = {
    "run": (("bash", {"command": "{command}", "description": "Run it"}),),
    "write": (("write", {"filePath": "{path}", "content": "{text}"}),),
    "edit": (("edit", {"filePath": "{path}", "oldString": "{before}", "newString": "{after}"}),),
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


class Folders(msgspec.Struct, frozen=True):
    """The facts besides the policy that the rules depend on."""

    cwd: str = os.path.sep
    links: Links = Links()
    has_ripgrep: bool = True


def folders_of(place: LaunchContext) -> Folders:
    return Folders(place.cwd, place.links, RIPGREP in place.helpers)


def acp_rules(policy: Policy, run: RunOptions, folders: Folders) -> dict[str, Json]:
    """For the persistent agent, which asks us. Raises ``PolicyError`` for a tool name that is
    nearly one of OpenCode's."""
    _check_names(policy, run)
    if policy.mode == "native":
        return {}
    if policy.is_unlimited and not run.hooked:
        return {**UNLIMITED}
    rules: dict[str, Json] = {"*": "deny", UNAVAILABLE: "allow"}
    if policy.allow_tools is not None:
        # Every permission request comes to us, with the name of the tool.
        rules |= {_key(name): "ask" for name in policy.allow_tools}
    else:
        rules |= _acp_grants(policy, run)
    # Its rules have one name for all tools that write; permission requests tell them apart.
    rules |= {name: "deny" for name in policy.deny_tools if name not in WRITE}
    if not folders.has_ripgrep:
        rules |= dict.fromkeys(SEARCH, "deny")
    beyond = offers_shell(rules)
    if policy.allow_tools is None:
        beyond = beyond or _effective(policy, run, "shell") != "deny"
    rules["external_directory"] = "allow" if beyond else _outside(policy, folders.cwd)
    rules["doom_loop"] = "ask" if beyond else "deny"
    return {**rules, DELEGATE: "deny"}


def _acp_grants(policy: Policy, run: RunOptions) -> dict[str, Json]:
    """What the capabilities and the shell rules allow or ask about."""
    rules: dict[str, Json] = dict.fromkeys(HARMLESS, "allow")
    asks = {c: "deny" if _effective(policy, run, c) == "deny" else "ask" for c in CAPABILITIES}
    rules |= dict.fromkeys(READ, asks["read"]) | {"edit": asks["write"]}
    rules |= dict.fromkeys(NETWORK, _effective(policy, run, "network"))
    rules |= dict.fromkeys(SHELL, _flat(policy.verdict("shell")))
    if run.hooked:
        rules = {name: "ask" if rule == "allow" else rule for name, rule in rules.items()}
    if policy.shell_rules:
        rules["bash"] = "ask"
    for server in run.mcp_servers:
        rules[f"{server.name}_*"] = _mcp_rule(policy, run, own=server.name == OWN_SERVER)
    return rules


def headless_rules(policy: Policy, run: RunOptions, folders: Folders) -> dict[str, Json]:
    """For one process per prompt: allowed, or denied. Raises as ``acp_rules`` does."""
    _check_names(policy, run)
    if policy.mode == "native":
        return {}
    if policy.is_unlimited:
        return {**UNLIMITED}
    rules = _headless_grants(policy, run)
    rules |= {_key(name): "deny" for name in policy.deny_tools}
    shell = offers_shell(rules)
    for name in ("read", "edit"):
        if rules.get(name) == "allow":
            rules[name] = _paths(policy, folders, name) if not shell else _near(name)
    if not shell:
        rules |= dict.fromkeys(("list", "lsp"), "deny")  # their rules do not see paths
    if not folders.has_ripgrep or (folders.links.unreadable and not shell):
        rules |= dict.fromkeys(SEARCH, "deny")
    outside = "allow" if shell else _outside(policy, folders.cwd)
    # It asks about a call that is repeated again and again, and a permission request ends the run.
    return {**rules, "external_directory": outside, DELEGATE: "deny", "doom_loop": "deny"}


def _headless_grants(policy: Policy, run: RunOptions) -> dict[str, Json]:
    """What the list of tools, or else the capabilities, and the shell rules allow."""
    rules: dict[str, Json] = {"*": "deny"}
    if policy.allow_tools is not None:
        rules |= {_key(name): "allow" for name in policy.allow_tools}
    else:
        rules |= dict.fromkeys(HARMLESS, "allow")
        for capability, tools in _TOOLS_OF.items():
            rules |= dict.fromkeys(map(_key, tools), _flat(policy.verdict(capability)))
        for server in run.mcp_servers:
            verdict = policy.verdict("mcp", own=server.name == OWN_SERVER)
            rules[f"{server.name}_*"] = _flat(verdict)
    if policy.shell_rules and "bash" not in policy.deny_tools:
        commands = {rule.pattern: rule.verdict for rule in reversed(policy.rules)}
        rules["bash"] = {"*": rules.get("bash", "deny"), **commands}
    return rules


def writes_by_patches(model: str) -> bool:
    """OpenCode decides by the model's name; this matches a few more names."""
    return "gpt" in model.lower()


def offers_shell(rules: dict[str, Json]) -> bool:
    """Whether these rules offer a shell to the model."""
    return rules.get("bash", rules.get("*", "allow")) != "deny"


def _effective(
    policy: Policy, run: RunOptions, capability: Capability, *, own: bool = False
) -> Verdict:
    """*ask* is *deny* if no one can answer."""
    verdict = policy.verdict(capability, own=own)
    return "deny" if verdict == "ask" and not run.interactive else verdict


def _near(tool: str) -> dict[str, Json]:
    """For an agent with a shell, which can read and write everywhere anyway."""
    return {"*": "allow", **(dict.fromkeys(_fences(), "deny") if tool == "edit" else {})}


def _fences(root: str = "") -> Iterable[str]:
    """Patterns for the protected names, at any depth below ``root``."""
    for name in NAMES:
        for place in (name, f"*/{name}"):
            yield from (f"{root}{place}", f"{root}{place}/*")


def _paths(policy: Policy, folders: Folders, tool: str) -> dict[str, Json]:
    """The workspace and the writable folders, without what is protected and without links that
    lead out. Paths are relative to ``/``."""
    rules: dict[str, Json] = {"*": "deny"}
    roots = [_relative(each) for each in (folders.cwd, *_writable(policy, folders.cwd))]
    for root in roots:
        rules |= dict.fromkeys(_tree(root), "allow")
    links, denied = folders.links, folders.links.unreadable
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


def _writable(policy: Policy, cwd: str) -> list[str]:
    return [os.path.normpath(os.path.join(cwd, folder)) for folder in policy.writable]


def _outside(policy: Policy, cwd: str) -> dict[str, Json]:
    rules: dict[str, Json] = {"*": "deny"}
    for folder in _writable(policy, cwd):
        rules |= {folder: "allow", f"{folder}/*": "allow"}
    return rules


def _flat(verdict: Verdict) -> str:
    return "allow" if verdict == "allow" else "deny"


def _key(tool: str) -> str:
    """The name of a tool in OpenCode's rules, which have one name for all tools that write."""
    return "edit" if tool in WRITE else tool


def _mcp_rule(policy: Policy, run: RunOptions, *, own: bool) -> str:
    """A permission request for such a tool looks like one for the shell, so it can be answered only
    if both verdicts are the same."""
    verdict = _effective(policy, run, "mcp", own=own)
    return "deny" if verdict == "ask" != policy.verdict("shell") else verdict


def _check_names(policy: Policy, run: RunOptions) -> None:
    check_names(policy, TOOLS, "OpenCode", server_prefixed(run, "_"), strict=run.strict)


def compile_acp(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """For the persistent agent. Its rules name folders, and are part of its configuration."""
    acp_rules(policy, run, Folders())  # raises now the errors that the launch would raise
    return CompiledPolicy(
        tuple(_row(policy, run, capability) for capability in CAPABILITIES),
        for_folders=lambda place: acp_rules(policy, run, folders_of(place)),
        unhooked=_unhooked(policy, run),
    )


def _unhooked(policy: Policy, run: RunOptions) -> tuple[str, ...]:
    """The calls that the persistent agent makes without asking, even if its rules say ``ask``."""
    if policy.mode == "native":
        return (report_notes.UNASKED_BY_DEFAULT,)
    if _has_free_shell(policy) or policy.shell_rules:
        return (_UNSEEN,)
    if any(server.name != OWN_SERVER for server in run.mcp_servers):
        return ("calls of MCP servers that the policy allows do not ask",)
    return ()


def _row(policy: Policy, run: RunOptions, capability: Capability) -> PolicyRow:
    if policy.mode == "native":
        return PolicyRow(capability, "allow", "native", report_notes.OWN_DEFAULT)
    if policy.is_unlimited:
        note = "a permitted shell reaches the network" if capability == "network" else ""
        return PolicyRow(capability, "allow", "native", note)
    verdict, enforcement, notes = _verdict_row(policy, run, capability)
    return _ROWS[capability](policy, verdict, enforcement, notes)


def _file_row(
    capability: Capability,
) -> Callable[[Policy, Verdict, Enforcement, list[str]], PolicyRow]:
    def row(
        _policy: Policy, verdict: Verdict, enforcement: Enforcement, notes: list[str]
    ) -> PolicyRow:
        if verdict == "allow":
            enforcement = "brokered"
            notes.append("each call is judged by where its path leads")
        if capability == "read":
            notes.append(report_notes.READS_OUTSIDE)
        return PolicyRow(capability, verdict, enforcement, "; ".join(notes))

    return row


def _network_row(
    policy: Policy, verdict: Verdict, enforcement: Enforcement, notes: list[str]
) -> PolicyRow:
    if _has_free_shell(policy):
        notes.append(report_notes.SHELL_REACHES_NETWORK)
        if policy.network == "deny" and verdict != "allow":
            enforcement = "impossible"
    return PolicyRow("network", verdict, enforcement, "; ".join(notes))


def _mcp_row(
    policy: Policy, verdict: Verdict, enforcement: Enforcement, notes: list[str]
) -> PolicyRow:
    asks = enforcement == "brokered" and verdict == "ask"
    if asks and policy.verdict("shell") != "ask":
        why = "its permission requests look like those of the shell"
        return PolicyRow("mcp", "deny", "native", f"{why}: {report_notes.NOT_OFFERED}")
    return PolicyRow("mcp", verdict, enforcement, "; ".join(notes))


def _has_free_shell(policy: Policy) -> bool:
    if policy.allow_tools is not None:
        return "bash" in policy.allow_tools
    return policy.verdict("shell") == "allow"


def _listed(policy: Policy, capability: Capability) -> tuple[Verdict, str]:
    """The verdict by the list of tools."""
    names, tools = policy.allow_tools or (), _TOOLS_OF.get(capability, ())
    chosen = [name for name in names if name in tools]
    if capability == "mcp":
        chosen = [name for name in names if name not in TOOLS]
    return "allow" if chosen else "deny", report_notes.listed(chosen)


def _verdict_row(
    policy: Policy, run: RunOptions, capability: Capability
) -> tuple[Verdict, Enforcement, list[str]]:
    if policy.allow_tools is not None:
        verdict, note = _listed(policy, capability)
        return verdict, "brokered", [note]
    verdict = policy.verdict(capability)
    if verdict == "ask" and run.interactive:
        return verdict, "brokered", [report_notes.ASKED]
    if verdict == "ask":
        return verdict, "native", [report_notes.ASK_DENIED]
    return verdict, "native", [report_notes.NOT_OFFERED] if verdict == "deny" else []


def _shell_row(
    policy: Policy, verdict: Verdict, enforcement: Enforcement, notes: list[str]
) -> PolicyRow:
    if policy.shell_rules:
        enforcement = "advisory"
        notes.append(f"{len(policy.shell_rules)} shell rules; {_UNSEEN}")
    elif verdict == "ask" and policy.allow_tools is None:
        verdict, enforcement = "deny", "native"
        notes = [f"ask→deny: {_UNSEEN}, so the shell is not offered to the model"]
    if _has_free_shell(policy):
        notes.append("it sees the keys in OpenCode's own environment")
    notes.append("sub-agents are off")
    return PolicyRow("shell", verdict, enforcement, "; ".join(notes))


_ROWS: dict[Capability, Callable[[Policy, Verdict, Enforcement, list[str]], PolicyRow]] = {
    "read": _file_row("read"),
    "write": _file_row("write"),
    "shell": _shell_row,
    "network": _network_row,
    "mcp": _mcp_row,
}
"""(policy, verdict, how it is enforced, notes so far) → the row of a capability."""


def compile_headless(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """For one process per prompt."""
    headless_rules(policy, run, Folders())
    return CompiledPolicy(
        tuple(_headless_row(policy, run, capability) for capability in CAPABILITIES),
        for_folders=lambda place: headless_rules(policy, run, folders_of(place)),
        unhooked=report_notes.other_hooks(run),
    )


def _headless_row(policy: Policy, run: RunOptions, capability: Capability) -> PolicyRow:
    if policy.mode == "native":
        return PolicyRow(capability, "allow", "native", report_notes.OWN_DEFAULT)
    verdict, enforcement, notes = _headless_verdict_row(policy, capability)
    if verdict == "deny":
        notes.append(report_notes.NOT_OFFERED)
    limited = capability == "write" and verdict == "allow" and not policy.is_unlimited
    if limited and writes_by_patches(run.model or ""):
        enforcement = "impossible"
        notes.append("its rules do not see where a patch moves a file to: use opencode-acp")
    reaches = capability == "network" and _has_free_shell(policy)
    if reaches and policy.network == "deny" and verdict != "allow":
        enforcement = "impossible"
    if capability == "shell" and policy.shell_rules:
        enforcement = "advisory"
    if reaches:
        notes.append(report_notes.SHELL_REACHES_NETWORK)
    notes += _headless_notes(policy, capability, verdict)
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))


def _headless_verdict_row(
    policy: Policy, capability: Capability
) -> tuple[Verdict, Enforcement, list[str]]:
    if policy.allow_tools is not None:
        verdict, note = _listed(policy, capability)
        writes = capability == "write" and verdict == "allow"
        if writes and not {"edit", "write"} <= {*policy.allow_tools}:
            why = "its rules do not tell edit, write and apply_patch apart: list edit and write"
            return verdict, "advisory", [note, why]
        return verdict, "native", [note]
    verdict = policy.verdict(capability)
    if verdict == "ask":
        return "deny", "native", [report_notes.HEADLESS_DENIED]
    return verdict, "native", []


def _headless_notes(policy: Policy, capability: Capability, verdict: Verdict) -> list[str]:
    free_shell, notes = _has_free_shell(policy), list[str]()
    if capability == "read":
        notes.append("outside the workspace only the writable folders may be read")
        if not free_shell and verdict == "allow":
            notes.append("glob and grep are off where links lead out of the workspace")
    if capability == "shell":
        if policy.shell_rules:
            notes.append("its rules see no line without a command (`> file`)")
        if free_shell:
            notes.append("it sees the keys in OpenCode's own environment")
        if not policy.is_unlimited:
            notes.append("sub-agents are off")
    return notes
