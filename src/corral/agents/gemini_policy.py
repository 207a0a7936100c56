"""A policy in the Gemini CLI's own controls: its policy engine, which it obeys.

What shaped this, each seen in runs of the real program:

- Policy files fail open: a syntax error, an invalid rule or a missing file is a
  warning and the run goes on without. So the approval mode stays ``default``,
  which without rules offers no way to write or run anything, and every right is
  an allow rule over a ``*`` deny: a lost file takes rights away. ``yolo`` is
  never used, not even for ``full``.
- Settings make allow rules of their own (up to 4.3); the base deny stands above
  them, and the file is passed as admin policy too, where nothing else reaches.
- ``commandPrefix`` and ``commandRegex`` match anywhere in the arguments and are
  fooled by an extra one; ``argsPattern`` anchored on the NUL that the CLI puts
  around each argument is not.
- A rule with ``argsPattern`` is exempt from the CLI's list of dangerous
  commands, so that *allow* means allow.
"""

from __future__ import annotations

import json
import os
import re

from corral.agents.profile import Compiled, Place, Row
from corral.errors import PolicyError
from corral.events import ToolKind
from corral.options import Run
from corral.policy import CAPABILITIES, Capability, Enforcement, Policy, Verdict, parse_rule

READ = ("read_file", "list_directory", "grep_search", "glob", "read_many_files")
WRITE = ("write_file", "replace")
SHELL = ("run_shell_command", "list_background_processes", "read_background_output")
NETWORK = ("web_fetch", "google_web_search")
HARMLESS = ("update_topic", "write_todos", "complete_task")
"""``complete_task`` is how a sub-agent ends."""
OTHER = ("invoke_agent", "activate_skill", "enter_plan_mode", "exit_plan_mode")
"""Count as ``shell``: a sub-agent's own calls make no events, and it picks a model of its own."""

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


def can_be_hidden(name: str) -> bool:
    """Whether a tool that is *not registered* was hidden by policy or mode, and not made up.
    An MCP server that did not come up looks the same."""
    return name in KINDS or name.startswith("mcp_")


POLICY_FILE = "policy.toml"
OWN_SERVER = "corral"
"""The tool server of the caller's own functions."""

_BASE, _GRANT, _RULES, _FENCE, _DENY = 500, 700, 899, 950, 990
_MOST_RULES = 150
_LONGEST_PATTERN = 2048
_REFUSED_PATTERN = r"\([^)]*[*+?{].*\)[*+?{]"
"""The CLI's own test for nested repetition, which also hits some that are none."""
_COMMAND = r'\x00"command":"'
_ANY = r"[^\x00]*"
_PLAIN = r'([^\x00\\;&|<>()\x60]|\\["\\t])*'
"""What ``*`` may be in an allow rule: nothing that starts another command."""
_PATH = r'\x00"file_path":"'
_FENCES = (
    # The repository's settings for the CLI: what the agent wrote there would rule the next run.
    _PATH + r'(|[^\x00]*/)\.gemini[/"]',
    # The tool drops NULs and decodes %xx, but only after the rules have seen the path.
    _PATH + r"[^\x00]*%[0-9A-Fa-f][0-9A-Fa-f]",
    _PATH + r"[^\x00]*\\u0000",
)
_UPWARD = _PATH + r'(|[^\x00]*/)\.\.[/"]'
_RELATIVE = _PATH + r"([^/A-Za-z]|[A-Za-z][^:])"

BUILD_FILES = "package.json, pyproject.toml, Makefile, Dockerfile and other build files"


def compile_policy(
    policy: Policy, run: Run, place: Place | None = None, *, asks: bool = False
) -> Compiled:
    """Raises ``PolicyError`` for a tool name that is nearly one of the CLI's.

    ``place`` is needed for the rules to be run, not for the report. ``asks``: somebody
    answers the CLI's questions, so that *ask* need not become a denial.
    """
    if policy.mode == "native":
        rows = tuple(
            Row(capability, "ask", "native", "the agent's own default: reads, no writes, no shell")
            for capability in CAPABILITIES
        )
        return Compiled(rows, ("--approval-mode", "default"))
    rules = _Rules()
    _deny_rules(policy, rules, strict=run.strict)
    _path_rules(run, place, rules)
    _grants(policy, run, place, rules)
    if asks and policy.allow_tools is None:
        _questions(policy, rules)
    rules.add("*", "deny", _BASE)
    flags = ("--approval-mode", "plan" if policy.mode == "plan" else "default")
    report = tuple(_row(policy, capability, asks=asks) for capability in CAPABILITIES)
    return Compiled(report, flags, {POLICY_FILE: rules.text()})


def compile_asking(policy: Policy, run: Run) -> Compiled:
    """For the CLI as a peer: its questions come to us."""
    return compile_policy(policy, run, asks=True)


def _questions(policy: Policy, rules: _Rules) -> None:
    """As a peer the CLI says nothing of a tool that was hidden from the model, so what is
    not allowed is asked about, and refused by us: then it is told."""
    for capability, tools in _TOOLS_OF.items():
        if policy.verdict(capability) != "allow":
            rules.add(tools, "ask_user", _GRANT)
    if policy.verdict("mcp") != "allow":
        rules.add("mcp_*", "ask_user", _GRANT - 1)


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
        name = _toml(tools) if isinstance(tools, str) else f"[{', '.join(map(_toml, tools))}]"
        lines += [f"toolName = {name}", f'decision = "{decision}"', f"priority = {priority}"]
        if pattern is not None:
            lines.append(f"argsPattern = {_toml(pattern)}")
        if redirect:
            lines.append("allowRedirection = true")
        if message is not None:
            lines.append(f"denyMessage = {_toml(message)}")
        self._blocks.append("\n".join(lines))

    def text(self) -> str:
        return "\n\n".join(self._blocks) + "\n"


def _deny_rules(policy: Policy, rules: _Rules, *, strict: bool) -> None:
    denied = tuple(name for name in policy.deny_tools if _known(name, "deny_tools", strict=strict))
    if denied:
        rules.add(denied, "deny", _DENY)
    for number, fence in enumerate(_FENCES):
        rules.add(WRITE, "deny", _FENCE + number, pattern=fence)
    if len(policy.shell_rules) > _MOST_RULES:
        raise PolicyError(f"more than {_MOST_RULES} shell rules for one policy")
    priority = _RULES
    for rule in policy.shell_rules:
        verb, pattern = parse_rule(rule)
        for regex in _patterns(pattern, verb):
            if len(regex) > _LONGEST_PATTERN or re.search(_REFUSED_PATTERN, regex):
                raise PolicyError(
                    f"the Gemini CLI would not take the shell rule {rule!r}",
                    hint="It takes short ones, and few with parentheses.",
                )
            rules.add("run_shell_command", verb, priority, pattern=regex)
        priority -= 1


def _path_rules(run: Run, place: Place | None, rules: _Rules) -> None:
    """What lies in reach of the tools and is not to be written."""
    if run.include_directories or (place and place.project_files):
        # A relative path that is not there is "corrected" to a file of that name elsewhere in
        # reach, after the rules have seen it.
        said = "Use an absolute path."
        rules.add("replace", "deny", _FENCE + 10, pattern=_RELATIVE, message=said)
    if run.include_directories:
        rules.add(WRITE, "deny", _FENCE + 11, pattern=_UPWARD)


def _grant_writing(names: tuple[str, ...], run: Run, place: Place, rules: _Rules) -> None:
    """The tools write wherever they read; so with further folders to read, only paths in the
    workspace and the writable ones are granted."""
    folders = [place.cwd, *(os.path.join(place.cwd, name) for name in run.policy.writable)]
    roots = dict.fromkeys(name for f in folders for name in (f, os.path.realpath(f)))
    spelt = "|".join(_escaped(os.path.normpath(root), "allow") for root in roots)
    rules.add(names, "allow", _GRANT, pattern=rf'{_PATH}({spelt})/[^\x00\\%]*"\x00')
    rules.add(names, "allow", _GRANT - 1, pattern=rf'{_PATH}[^/\x00\\%][^\x00\\%]*"\x00')


def _grants(policy: Policy, run: Run, place: Place | None, rules: _Rules) -> None:
    listed = policy.allow_tools
    if listed is not None:
        granted = tuple(name for name in listed if _known(name, "allow_tools"))
    else:
        granted = HARMLESS
        for capability, tools in _TOOLS_OF.items():
            if policy.verdict(capability) == "allow":
                granted += tools
        if policy.mode == "plan":
            granted += ("exit_plan_mode",)
    if "run_shell_command" in granted:
        rules.add("run_shell_command", "allow", _GRANT, pattern=_COMMAND, redirect=True)
    rest = tuple(name for name in granted if name != "run_shell_command")
    writing = tuple(name for name in rest if name in WRITE)
    if run.include_directories and writing and place is not None:
        _grant_writing(writing, run, place, rules)
        rest = tuple(name for name in rest if name not in WRITE)
    if rest:
        rules.add(rest, "allow", _GRANT)
    if listed is not None:
        return
    if policy.verdict("mcp") == "allow":
        rules.add("mcp_*", "allow", _GRANT)
    elif policy.verdict("mcp", own=True) == "allow":
        rules.add(f"mcp_{OWN_SERVER}_*", "allow", _GRANT)


_TOOLS_OF: dict[Capability, tuple[str, ...]] = {
    "read": READ,
    "write": WRITE,
    "shell": SHELL + OTHER,
    "network": NETWORK,
}


def _row(policy: Policy, capability: Capability, *, asks: bool) -> Row:
    verdict: Verdict = policy.verdict(capability)
    enforcement: Enforcement = "native"
    notes: list[str] = []
    if policy.allow_tools is not None:
        tools = _TOOLS_OF.get(capability, ())
        chosen = [name for name in policy.allow_tools if name in tools]
        if capability == "mcp":
            chosen = [name for name in policy.allow_tools if name.startswith("mcp_")]
        verdict = "allow" if chosen else "deny"
        notes.append(f"allow_tools: {', '.join(chosen)}" if chosen else "allow_tools: not listed")
    elif asks and verdict != "allow":
        enforcement = "brokered"
        if verdict == "ask":
            notes.append("put to whoever answers; with nobody there it is denied")
    elif verdict == "ask":
        notes.append("ask→deny: headless, there is nobody to ask")
    if capability == "network" and policy.network == "deny" and _shell_is_free(policy):
        enforcement = "impossible"
        notes.append("a permitted shell reaches the network: this agent has no wall for it")
    elif capability == "network" and _shell_is_free(policy):
        notes.append("its own fetch and search tools; a permitted shell reaches further")
    if capability == "write" and verdict == "allow":
        notes.append(f"the CLI itself refuses {BUILD_FILES}")
    if capability == "shell":
        if policy.shell_rules:
            notes.append(f"{len(policy.shell_rules)} shell rules")
        if verdict == "allow" and any(rule.startswith("deny") for rule in policy.shell_rules):
            notes.append("deny rules over a free shell can be got around (env, sh -c, aliases)")
        if verdict == "allow":
            notes.append("it can read the CLI's own environment through /proc")
    return Row(capability, verdict, enforcement, "; ".join(notes))


def _shell_is_free(policy: Policy) -> bool:
    if policy.allow_tools is not None:
        return "run_shell_command" in policy.allow_tools
    return policy.verdict("shell") == "allow"


def _patterns(pattern: str, verb: str) -> list[str]:
    """The regular expressions for one glob; the CLI takes no nested repetition, so the bare
    command of ``git *`` has one of its own."""
    star = _ANY if verb == "deny" else _PLAIN
    globs = [pattern, pattern[:-2]] if pattern.endswith(" *") and len(pattern) > 2 else [pattern]
    return [
        f'{_COMMAND}{star.join(_escaped(p, verb) for p in glob.split("*"))}"\\x00' for glob in globs
    ]


def _escaped(text: str, verb: str) -> str:
    inside = json.dumps(text, ensure_ascii=False)[1:-1]
    escaped = re.sub(r"[\\^$.*+?()\[\]{}|/\-]", lambda found: "\\" + found[0], inside)
    # A second blank, or a tab, must not slip past a denial.
    return escaped.replace(" ", r"( |\\t)+") if verb == "deny" else escaped


def _known(name: str, where: str, *, strict: bool = False) -> bool:
    """Whether the CLI has such a tool. A name that is nearly one is an error; another agent's
    name is left out where that takes a right away, and refused where it would leave one."""
    if "*" in name:
        raise PolicyError(f"{where}: names, not patterns: {name!r}")
    if name in KINDS or name.startswith("mcp_"):
        return True
    from difflib import get_close_matches

    near = get_close_matches(name, KINDS, 1, 0.75)
    if near:
        raise PolicyError(
            f"{where}: the Gemini CLI has no tool {name!r}; did you mean {near[0]!r}?"
        )
    if strict:
        raise PolicyError(
            f"{where}: the Gemini CLI has no tool {name!r}, so denying it would do nothing",
            hint=f"It has: {', '.join(sorted(KINDS))}. strict=False leaves the name out.",
        )
    return False


def _toml(text: str) -> str:
    """A TOML basic string; JSON's escapes are TOML's but for DEL, which JSON leaves raw."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
