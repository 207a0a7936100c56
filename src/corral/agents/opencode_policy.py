"""A policy in OpenCode's own rules, of which the last that matches decides.

Two ways to be started, two ways to keep it. A peer is asked (``permissions``): a
tool that a rule denies is hidden from the model with no word of a refusal, so what
is not allowed is asked for, and refused by us. One that runs alone (``rules_alone``)
would end its run at the first question, so there what is not allowed is denied.

Its rules for commands see the *commands* in a line. A line without any
(``> file``, ``cd . > file``) is run unseen, whatever they say, and empties or makes
a file. So a shell that is not allowed is not offered at all, not even for asking, and
rules for single commands are advice.
"""

from __future__ import annotations

import os

from corral.agents.profile import Act, Compiled, Form, Row
from corral.errors import PolicyError
from corral.events import Json, ToolKind
from corral.options import Run
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, Verdict, parse_rule

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

_FENCES = ("*.opencode/*", "*opencode.json", "*opencode.jsonc")
"""What the agent wrote there would rule the next run."""

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
    "skill": (("skill", {"name": "{name}"}),),
}
"""How the model calls the tools."""


def permissions(policy: Policy, run: Run, cwd: str) -> dict[str, Json]:
    """For a peer, whose questions come to us. Raises ``PolicyError`` for a tool name that is
    nearly one of its own."""
    _check_names(policy)
    if policy.mode == "native":
        return {}
    delegate = "allow" if policy.is_unlimited else "deny"
    rules: dict[str, Json] = {"*": "ask"}
    if policy.allow_tools is not None:  # every question comes to us, and we know the names
        shut = "bash" not in policy.allow_tools or "bash" in policy.deny_tools
        rules |= {"bash": "deny"} if shut else {}
        return {**rules, "external_directory": "deny", DELEGATE: "deny"}
    rules |= dict.fromkeys(HARMLESS, "allow")
    for capability, tools in _TOOLS_OF.items():
        rules |= dict.fromkeys(tools, "allow" if policy.verdict(capability) == "allow" else "ask")
    if policy.shell_rules:
        rules["bash"] = "ask"
    elif policy.verdict("shell") != "allow":
        rules["bash"] = "deny"
    for server in run.mcp_servers:
        rules[f"{server.name}_*"] = _mcp_rule(policy, own=server.name == OWN_SERVER)
    for name in policy.deny_tools:
        rules[_key(name)] = "deny" if name == "bash" else "ask"
    rules["edit"] = {"*": rules["edit"], **dict.fromkeys(_FENCES, "deny")}
    outside = _outside(policy, cwd, "ask")
    return {**rules, "external_directory": outside, DELEGATE: delegate}


def rules_alone(policy: Policy, run: Run, cwd: str) -> dict[str, Json]:
    """For one that runs alone: allowed, or denied. Raises as ``permissions`` does."""
    _check_names(policy)
    if policy.mode == "native":
        return {}
    rules: dict[str, Json] = {"*": "allow" if policy.is_unlimited else "deny"}
    if policy.allow_tools is not None:
        rules |= {_key(name): "allow" for name in policy.allow_tools}
    else:
        rules |= dict.fromkeys(HARMLESS, "allow")
        for capability, tools in _TOOLS_OF.items():
            rules |= dict.fromkeys(tools, _flat(policy.verdict(capability)))
        for server in run.mcp_servers:
            verdict = policy.verdict("mcp", own=server.name == OWN_SERVER)
            rules[f"{server.name}_*"] = _flat(verdict)
    if policy.shell_rules and "bash" not in policy.deny_tools:
        parsed = [parse_rule(rule) for rule in reversed(policy.shell_rules)]
        rules["bash"] = {"*": rules.get("bash", "deny"), **{glob: verb for verb, glob in parsed}}
    rules |= {_key(name): "deny" for name in policy.deny_tools}
    if rules.get("edit") == "allow":
        rules["edit"] = {"*": "allow", **dict.fromkeys(_FENCES, "deny")}
    delegate = "allow" if policy.is_unlimited else "deny"
    outside = _outside(policy, cwd, "deny")
    # The same call again and again: it would ask, and a question ends the run.
    return {**rules, "external_directory": outside, DELEGATE: delegate, "doom_loop": "deny"}


def _outside(policy: Policy, cwd: str, otherwise: str) -> dict[str, Json]:
    rules: dict[str, Json] = {"*": "allow" if policy.is_unlimited else otherwise}
    for folder in policy.writable:
        whole = os.path.normpath(os.path.join(cwd, folder))
        rules |= {whole: "allow", f"{whole}/*": "allow"}
    return rules


def _flat(verdict: Verdict) -> str:
    return "allow" if verdict == "allow" else "deny"


def _key(tool: str) -> str:
    """What OpenCode's rules call it: to them all that writes is one."""
    return "edit" if tool in WRITE else tool


def _mcp_rule(policy: Policy, *, own: bool) -> str:
    """A question about such a tool looks like one about any other, which counts as shell: it
    can be put to us only where the two verdicts are the same."""
    verdict = policy.verdict("mcp", own=own)
    if verdict == "allow":
        return "allow"
    return "ask" if verdict == policy.verdict("shell") else "deny"


def _check_names(policy: Policy) -> None:
    for where in ("allow_tools", "deny_tools"):
        for name in getattr(policy, where) or ():
            _check_name(name, where)


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
        unseen = "a line without a command (`> file`) is run without a question"
        if policy.shell_rules:
            enforcement = "advisory"
            notes.append(f"{len(policy.shell_rules)} shell rules; {unseen}")
        elif verdict == "ask" and policy.allow_tools is None:
            verdict, enforcement = "deny", "native"
            notes = [f"ask→deny: {unseen}, so the shell is not offered to the model"]
        elif verdict == "deny":
            enforcement = "native"
            notes.append("not offered to the model")
        if free_shell:
            notes.append("it sees the keys in OpenCode's own environment")
        if not policy.is_unlimited:
            notes.append("sub-agents are off")
    return Row(capability, verdict, enforcement, "; ".join(notes))


def compile_alone(policy: Policy, run: Run) -> Compiled:
    """The report for one that runs alone."""
    rules_alone(policy, run, os.path.sep)
    return Compiled(tuple(_row_alone(policy, capability) for capability in CAPABILITIES))


def _row_alone(policy: Policy, capability: Capability) -> Row:
    if policy.mode == "native":
        return Row(capability, "allow", "native", "the agent's own default: it asks for nothing")
    verdict = policy.verdict(capability)
    enforcement: Enforcement = "native"
    notes: list[str] = []
    listed = policy.allow_tools
    if listed is not None:
        tools = _TOOLS_OF.get(capability, ())
        chosen = [name for name in listed if name in tools]
        if capability == "mcp":
            chosen = [name for name in listed if name not in TOOLS]
        verdict = "allow" if chosen else "deny"
        notes.append(f"allow_tools: {', '.join(chosen)}" if chosen else "allow_tools: not listed")
        if capability == "write" and chosen and not {"edit", "write"} <= {*listed}:
            enforcement = "advisory"
            notes.append("to its rules edit, write and apply_patch are one: list edit and write")
    elif verdict == "ask":
        verdict = "deny"
        notes.append("ask→deny: started for one prompt it has nobody to ask")
    free_shell = policy.verdict("shell") == "allow" if listed is None else "bash" in listed
    if verdict == "deny":
        notes.append("not offered to the model")
    if capability == "network" and free_shell:
        if policy.network == "deny":
            enforcement = "impossible"
        notes.append("a permitted shell reaches the network: this agent has no wall for it")
    if capability == "read":
        notes.append("outside the workspace nothing may be read but what is writable")
    if capability == "shell":
        if policy.shell_rules:
            enforcement = "advisory"
            notes.append("its rules see no line without a command (`> file`): use opencode-acp")
        if free_shell:
            notes.append("it sees the keys in OpenCode's own environment")
        if not policy.is_unlimited:
            notes.append("sub-agents are off")
    return Row(capability, verdict, enforcement, "; ".join(notes))
