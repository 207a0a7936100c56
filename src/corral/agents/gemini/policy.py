"""A policy in the Gemini CLI's own controls: the rules of its policy engine.

Facts that this depends on, each seen in runs of the real program or read in its source:

- Policy files fail open: after a syntax error, an invalid rule or a missing file the CLI prints a
  warning and continues without the file. So the approval mode stays ``default``, which without
  rules can neither write nor run anything, and every permission is an allow rule over a ``*``
  deny: a lost file removes permissions. ``yolo`` is never used, not even for ``full``.
- Settings create allow rules of their own (with priorities up to 4.3). The base deny has a higher
  priority, and the file is also passed as the admin policy, which no other rule overrides.
- What no rule allows is not offered to the model.
- ``commandPrefix`` and ``commandRegex`` match anywhere in the arguments, so that an extra argument
  can match. ``argsPattern``, anchored on the NUL that the CLI puts around each argument, cannot
  be misled in this way.
- ``ask_user`` without ``argsPattern`` does not always ask: the CLI runs commands that it believes
  to be harmless (``id``, ``cat``, ``uniq``), and its check of their paths does not know braces.
  A rule with ``argsPattern`` is exempt from that list, and from the list of dangerous commands:
  then *allow* always allows and *ask* always asks.
- In ``autoEdit`` mode the file tools and ``web_fetch`` do not consult the rules at all. The answer
  *always* to a permission request for an edit turns that mode on.
- A sub-agent and a built-in skill start without a permission request.

Headless, the CLI cannot ask, and the rules alone decide (``write_paths``, ``shell_regex``). As a
persistent agent (ACP), one process serves sessions in several folders, so its rules name no
paths: every write and, with shell rules, every command sends a permission request, which is
answered by the policy with the resolved path or the exact command.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from corral.agents.gemini import write_paths
from corral.agents.gemini.write_paths import LONGEST_PATTERN
from corral.agents.shared import report_notes
from corral.agents.shared.tool_names import check_names, prefixed
from corral.agents.spec import CompiledPolicy, LaunchContext, PolicyRow
from corral.errors import PolicyError
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, ShellRule, Verdict
from corral.quoting import json_pattern, toml_string
from corral.shell_regex import allow_regex

READ = ("read_file", "list_directory", "grep_search", "glob", "read_many_files")
WRITE = ("write_file", "replace")
SHELL = ("run_shell_command", "list_background_processes", "read_background_output")
NETWORK = ("web_fetch", "google_web_search")
HARMLESS = ("update_topic", "write_todos", "complete_task")
"""A sub-agent ends with ``complete_task``."""
OTHER = ("invoke_agent", "activate_skill", "enter_plan_mode", "exit_plan_mode")
"""These count as ``shell``: a sub-agent's calls make no events, and it chooses its own model."""

KINDS: dict[str, ToolKind] = {
    **dict.fromkeys(READ, "read"),
    "grep_search": "search",
    "glob": "search",
    **dict.fromkeys(WRITE, "edit"),
    **dict.fromkeys(SHELL, "execute"),
    **dict.fromkeys(NETWORK, "fetch"),
    **dict.fromkeys(HARMLESS, "think"),
    **dict.fromkeys(OTHER, "other"),
}


def is_agent_tool(name: str) -> bool:
    """Whether a tool that is *not registered* exists and was hidden by the policy or the mode. The
    tool of an MCP server that did not start looks the same."""
    return name in KINDS or name.startswith("mcp_")


POLICY_FILE = "policy.toml"

_BASE, _GRANT, _RULES, _FENCE, _DENY = 500, 700, 899, 960, 990
"""Priorities of rules. Never 950: the CLI takes a rule with that priority for one that the user
added with the answer *always*, and ignores it if ``disableAlwaysAllow`` is set."""
_MOST_RULES = 150
_REFUSED_PATTERN = r"\([^)]*[*+?{].*\)[*+?{]"
"""The CLI's own test for nested repetition. It also matches some patterns without one."""
_COMMAND = r'\x00"command":"'
_ANY = r"[^\x00]*"
_GLOBS_OUTSIDE = tuple(
    r'\x00"pattern":"' + pattern
    for pattern in (
        "/",
        r"[^\x00]*\.\.",
        r"[^\x00]*[{,]/",
        r"[^\x00]*\\",
        r"[^\x00]*\[\.",
        r"(|[^\x00]*[/{,}])\.[^/\x00]*[{},]",
    )
)
"""The CLI checks the folder of ``glob`` but not its pattern, which can name another folder: by an
absolute path or a parent folder, also written with braces, escapes or a class of one character."""
_GLOB_ADVICE = "Use a pattern relative to the workspace, without parent folders."
_BLANKS = r"( |\\t)+"

BUILD_FILES = "package.json, pyproject.toml, Makefile, Dockerfile and other build files"


def compile_headless(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """For the CLI that runs once per prompt. Its rules name paths, so they need the folders.

    Raises ``PolicyError`` for a tool name that is nearly one of the CLI's, and for a deny rule
    that it would not take. An allow rule that its rules cannot express is left out.
    """
    if policy.mode == "native":
        return _native("the agent's own default: reads and web searches, no writes, no shell")

    def policy_file(place: LaunchContext | None) -> str:
        rules = _Rules()
        _denied(policy, rules, strict=run.strict)
        _shell_rules(policy, rules)
        _grants(policy, run, place, rules)
        return rules.text()

    policy_file(None)  # raises now the errors that the launch would raise
    missing = inexpressible_rules(policy)
    note = f"the CLI's rules cannot express, and so deny: {', '.join(map(str, missing))}"
    return CompiledPolicy(
        tuple(_row(policy, each) for each in CAPABILITIES),
        _mode_flags(policy),
        for_folders=lambda place: {POLICY_FILE: policy_file(place)},
        notes=(note,) if missing else (),
        unhooked=_unhooked(run),
    )


def _unhooked(run: RunOptions) -> tuple[str, ...]:
    """What the hook of the headless CLI does not decide."""
    if run.sandbox == "agent":
        return ("a hook in the CLI's own sandbox cannot reach this process",)
    return report_notes.other_hooks(run)


def compile_acp(policy: Policy, run: RunOptions) -> CompiledPolicy:
    """For the persistent CLI, which sends its permission requests to us."""
    if policy.mode == "native":
        native = _native("the agent's own default: it runs what it believes harmless, and asks")
        return replace(native, unhooked=(report_notes.UNASKED_BY_DEFAULT,))
    rules = _Rules()
    _denied(policy, rules, strict=run.strict)
    _questions(policy, run, rules)
    rows = (_asking_row(policy, each, interactive=run.interactive) for each in CAPABILITIES)
    return CompiledPolicy(tuple(rows), _mode_flags(policy), {POLICY_FILE: rules.text()})


def _native(note: str) -> CompiledPolicy:
    rows = tuple(PolicyRow(capability, "ask", "native", note) for capability in CAPABILITIES)
    return CompiledPolicy(rows, ("--approval-mode", "default"))


def _mode_flags(policy: Policy) -> tuple[str, ...]:
    return ("--approval-mode", "plan" if policy.mode == "plan" else "default")


class _Rules:
    def __init__(self) -> None:
        self._blocks: list[str] = []

    def add(
        self,
        tools: str | tuple[str, ...],
        decision: str,
        priority: int,
        *,
        pattern: str | None = None,
        redirect: bool = False,
        message: str | None = None,
    ) -> None:
        lines = ["[[rule]]"]
        name = (
            toml_string(tools)
            if isinstance(tools, str)
            else f"[{', '.join(map(toml_string, tools))}]"
        )
        lines += [f"toolName = {name}", f'decision = "{decision}"', f"priority = {priority}"]
        if pattern is not None:
            lines.append(f"argsPattern = {toml_string(pattern)}")
        if redirect:
            lines.append("allowRedirection = true")
        if message is not None:
            lines.append(f"denyMessage = {toml_string(message)}")
        self._blocks.append("\n".join(lines))

    def text(self) -> str:
        """The policy file: what no rule grants is denied."""
        self.add("*", "deny", _BASE)
        return "\n\n".join(self._blocks) + "\n"


def _denied(policy: Policy, rules: _Rules, *, strict: bool) -> None:
    """The deny rules of every policy, headless or not."""
    check_names(policy, KINDS, "the Gemini CLI", prefixed("mcp_"), strict=strict)
    denied = tuple(name for name in policy.deny_tools if _is_known(name))
    if denied:
        rules.add(denied, "deny", _DENY)
    for pattern in (write_paths.OWN_SETTINGS, *write_paths.REWRITTEN):
        rules.add(WRITE, "deny", _FENCE, pattern=pattern)
    if not policy.is_unlimited:
        for pattern in _GLOBS_OUTSIDE:
            rules.add("glob", "deny", _FENCE, pattern=pattern, message=_GLOB_ADVICE)


def _shell_rules(policy: Policy, rules: _Rules) -> None:
    if not _rules_count(policy):
        return
    if len(policy.shell_rules) > _MOST_RULES:
        raise PolicyError(f"more than {_MOST_RULES} shell rules for one policy")
    for number, rule in enumerate(policy.rules):
        denies = rule.verdict == "deny"
        found = _denying(rule.pattern) if denies else _allowing(rule.pattern)
        if denies and not all(map(_is_taken, found)):
            raise PolicyError(
                f"the Gemini CLI would not take the shell rule {str(rule)!r}",
                hint="It takes short rules, and few with parentheses.",
            )
        for regex in found:
            rules.add("run_shell_command", rule.verdict, _RULES - number, pattern=regex)


def inexpressible_rules(policy: Policy) -> tuple[ShellRule, ...]:
    """The allow rules that the headless CLI's rules cannot express: what they allow is denied."""
    found = (rule for rule in policy.rules if rule.verdict == "allow")
    return tuple(rule for rule in found if not _allowing(rule.pattern))


def _is_taken(regex: str) -> bool:
    return len(regex) <= LONGEST_PATTERN and not re.search(_REFUSED_PATTERN, regex)


def _allowing(pattern: str) -> list[str]:
    regex = allow_regex(pattern)
    if regex is None:
        return []
    program = pattern.partition(" ")[0]
    # In another folder a relative path names another program.
    here = r'(?![\s\S]*\x00"dir_path":)' if "/" in program and program[0] != "/" else ""
    return [each for each in [f'{_COMMAND}{regex}"\\x00{here}'] if _is_taken(each)]


def _denying(pattern: str) -> list[str]:
    """The CLI takes no nested repetition, so the bare command of ``git *`` has its own pattern.
    The patterns also match several blanks and tabs."""
    globs = [pattern, pattern[:-2]] if pattern.endswith(" *") and len(pattern) > 2 else [pattern]
    texts = [_ANY.join(map(json_pattern, glob.split("*"))) for glob in globs]
    return [f'{_COMMAND}{text.replace(" ", _BLANKS)}"\\x00' for text in texts]


def _granted(policy: Policy, *, ask: bool) -> tuple[dict[str, bool], bool | None]:
    """Tool → whether each call sends a permission request; and the same for all MCP tools, None if
    they are not offered. ``ask``: somebody can answer permission requests."""
    if policy.allow_tools is not None:
        listed = [name for name in policy.allow_tools if _is_known(name)]
        return dict.fromkeys(listed, False), None
    tools: dict[str, bool] = dict.fromkeys(HARMLESS, False)
    for capability, names in _TOOLS_OF.items():
        verdict = policy.verdict(capability)
        if verdict == "allow":
            tools |= dict.fromkeys(names, False)
        elif verdict == "ask" and ask:
            # Sub-agents and skills start without a permission request.
            tools |= dict.fromkeys((name for name in names if name not in OTHER), True)
    if policy.mode == "plan":
        tools["exit_plan_mode"] = False
    mcp = {"allow": False, "ask": True if ask else None, "deny": None}[policy.verdict("mcp")]
    return tools, mcp


def _mcp_rules(policy: Policy, mcp: bool | None, rules: _Rules, *, ask: bool) -> None:
    if policy.allow_tools is not None:
        return
    if mcp is not None:
        rules.add("mcp_*", "ask_user" if mcp else "allow", _GRANT - 1)
    own = policy.verdict("mcp", own=True)
    if policy.own_mcp is not None:
        question = "ask_user" if ask else "deny"
        rules.add(f"mcp_{OWN_SERVER}_*", question if own == "ask" else own, _GRANT)


def _rules_count(policy: Policy) -> bool:
    """Whether shell rules have an effect: a list of tools without the shell denies all commands."""
    listed = policy.allow_tools is None or "run_shell_command" in policy.allow_tools
    return listed and bool(policy.shell_rules)


def _questions(policy: Policy, run: RunOptions, rules: _Rules) -> None:
    """The rules of the persistent CLI: a tool that is limited by more than its name asks."""
    tools, mcp = _asking(policy, run)
    shell = "run_shell_command"
    if _rules_count(policy) and (shell in tools or policy.allows_commands):
        tools[shell] = True
    if shell in tools:
        decision = "ask_user" if tools.pop(shell) else "allow"
        rules.add(shell, decision, _GRANT, pattern=_COMMAND, redirect=decision == "allow")
    for decision, asks in (("allow", False), ("ask_user", True)):
        names = tuple(name for name, question in tools.items() if question is asks)
        if names:
            rules.add(names, decision, _GRANT)
    if mcp is None and _offers_own_server_only(policy, run):
        # The persistent CLI does not apply the rule for one server when it offers tools. Our
        # answers allow our own server and deny the others.
        mcp = True
    _mcp_rules(policy, mcp, rules, ask=run.interactive)


def _asking(policy: Policy, run: RunOptions) -> tuple[dict[str, bool], bool | None]:
    """As ``_granted``, with the calls about which the persistent CLI asks us. If ``on_tool_call``
    decides about each call, every tool asks, and those that start without a permission request
    are not offered: sub-agents, skills and plan mode."""
    tools, mcp = _granted(policy, ask=run.interactive)
    if run.hooked:
        return {name: True for name in tools if name not in OTHER}, None if mcp is None else True
    if not policy.is_unlimited:
        tools |= {name: True for name in WRITE if name in tools}
    return tools, mcp


def _offers_own_server_only(policy: Policy, run: RunOptions) -> bool:
    has_own = any(server.name == OWN_SERVER for server in run.mcp_servers)
    return has_own and policy.own_mcp == "allow" and policy.allow_tools is None


def _grants(policy: Policy, run: RunOptions, place: LaunchContext | None, rules: _Rules) -> None:
    """The allow rules of the headless CLI."""
    tools, mcp = _granted(policy, ask=False)
    if tools.pop("run_shell_command", None) is not None:
        rules.add("run_shell_command", "allow", _GRANT, pattern=_COMMAND, redirect=True)
    writing = tuple(name for name in tools if name in WRITE)
    is_limited = run.include_directories or not policy.is_unlimited
    if is_limited and writing and place is not None:
        _path_rules(policy, place, writing, rules)
        tools = {name: asks for name, asks in tools.items() if name not in WRITE}
    if tools:
        rules.add(tuple(tools), "allow", _GRANT)
    _mcp_rules(policy, mcp, rules, ask=False)


def _path_rules(
    policy: Policy, place: LaunchContext, writing: tuple[str, ...], rules: _Rules
) -> None:
    advice = f"Use an absolute path below {place.cwd}."
    rules.add("replace", "deny", _FENCE, pattern=write_paths.RELATIVE, message=advice)
    for pattern in write_paths.UNUSUAL:
        rules.add(WRITE, "deny", _FENCE, pattern=pattern, message=advice)
    if not policy.is_unlimited:
        why = "This file is protected: a program obeys it."
        for pattern in write_paths.protected(policy.writable, place):
            rules.add(WRITE, "deny", _FENCE, pattern=pattern, message=why)
    why = "A link of this name leads to where you may not write."
    for pattern in write_paths.through_links(place):
        rules.add(WRITE, "deny", _FENCE, pattern=pattern, message=why)
    for pattern in write_paths.allowed(policy.writable, place):
        rules.add(writing, "allow", _GRANT, pattern=pattern)


_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": READ,
    "write": WRITE,
    "shell": SHELL + OTHER,
    "network": NETWORK,
}


def _row(policy: Policy, capability: Capability) -> PolicyRow:
    verdict, notes = _verdict(policy, capability)
    if verdict == "ask":
        notes.append(report_notes.HEADLESS_DENIED)
    if capability == "shell" and (missing := inexpressible_rules(policy)):
        notes.append(f"its rules cannot express, and so deny: {', '.join(map(str, missing))}")
    if capability == "write" and verdict == "allow":
        notes.append(f"the CLI itself refuses {BUILD_FILES}")
    return _noted(policy, capability, verdict, "native", notes)


def _asking_row(policy: Policy, capability: Capability, *, interactive: bool) -> PolicyRow:
    verdict, notes = _verdict(policy, capability)
    enforcement: Enforcement = "native"
    if verdict == "ask" and interactive:
        enforcement = "brokered"
        notes.append(report_notes.ASKED)
        if capability == "shell":
            notes.append("sub-agents and skills are not offered")
    elif verdict == "ask":
        notes.append(report_notes.ASK_DENIED)
    if capability == "write" and verdict == "allow" and not policy.is_unlimited:
        enforcement = "brokered"
        notes.append("each write is judged by its path")
    if capability == "shell" and policy.shell_rules:
        enforcement = "brokered"
    return _noted(policy, capability, verdict, enforcement, notes)


def _verdict(policy: Policy, capability: Capability) -> tuple[Verdict, list[str]]:
    if policy.allow_tools is None:
        return policy.verdict(capability), []
    tools = _TOOLS_OF.get(capability, ())
    chosen = [name for name in policy.allow_tools if name in tools]
    if capability == "mcp":
        chosen = [name for name in policy.allow_tools if name.startswith("mcp_")]
    return ("allow" if chosen else "deny"), [report_notes.listed(chosen)]


def _noted(
    policy: Policy,
    capability: Capability,
    verdict: Verdict,
    enforcement: Enforcement,
    notes: list[str],
) -> PolicyRow:
    denied = policy.network == "deny" and verdict != "allow"
    if capability == "network" and denied and _shell_is_free(policy):
        enforcement = "impossible"
        notes.append(report_notes.SHELL_REACHES_NETWORK)
    elif capability == "network" and _shell_is_free(policy):
        notes.append("its own fetch and search tools; a permitted shell reaches further")
    if capability == "shell":
        if policy.shell_rules:
            notes.append(f"{len(policy.shell_rules)} shell rules")
        if verdict == "allow" and any(rule.verdict == "deny" for rule in policy.rules):
            notes.append(report_notes.BYPASSABLE)
        if verdict == "allow":
            notes.append("it can read the CLI's own environment through /proc")
    return PolicyRow(capability, verdict, enforcement, "; ".join(notes))


def _shell_is_free(policy: Policy) -> bool:
    if policy.allow_tools is not None:
        return "run_shell_command" in policy.allow_tools
    return policy.verdict("shell") == "allow"


def _is_known(name: str) -> bool:
    return name in KINDS or name.startswith("mcp_")
