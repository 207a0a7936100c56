"""Grants in the Gemini CLI's own controls: the rules of its policy engine.

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

Headless, the CLI cannot ask, and the rules alone decide. As a persistent agent (ACP), one process
serves sessions in several folders, so its rules name no paths: every write and, with shell rules,
every command sends a permission request, which is answered by the policy with the resolved path or
the exact command.

Where the headless CLI may write is a pattern over the arguments of a call. The CLI itself keeps its
tools inside the workspace and the included folders, after links are resolved. Everything narrower
is a rule of corral, and a rule sees the path as the model wrote it:

- The tool decodes ``%xx``, removes NULs and a leading ``@``. Such paths are denied.
- ``replace`` searches all folders for a relative path that does not exist, by the name of the file.
  A relative path is denied if a file of that name is where the agent may not write.
- A link is followed after the rules have seen the path. A path with the name of a link that leads
  to where the agent may not write (``LaunchContext.links``) is denied, wherever the name is:
  the link may be reached through another link.
- Protected names (``corral._core.protected_paths``) are denied at any depth, in any case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from string import ascii_letters

from msgspec.structs import replace

from corral._agents.grants import GrantException, Grants
from corral._agents.shared.controls import (
    UNASKED_BY_DEFAULT,
    check_names,
    other_hooks,
    prefixed,
    tools_by_capability,
)
from corral._agents.spec import AgentControls, Enforced, LaunchContext
from corral._core.protected_paths import globs
from corral._core.quoting import json_pattern, toml_string
from corral._core.shell_patterns import allow_regex
from corral.errors import PolicyError, PolicyNotEnforceable
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import Capability, Enforcer
from corral.values import Json

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
_TOOLS_OF = tools_by_capability(KINDS, others=True)


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


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    """For the CLI that runs once per prompt. Its rules name paths, so they need the folders.

    Raises ``PolicyError`` for a tool name that is nearly one of the CLI's, and for a deny rule
    that it would not take. An allow rule that its rules cannot express is left out.
    """
    if grants.is_native:
        return _native("reads and web searches, no writes, no shell")
    rules, last = _denied(grants, run), _Rules()
    left_out = _add_shell_rules(grants, rules)
    tools, mcp = _granted(grants, asks=False)
    if tools.pop("run_shell_command", None) is not None:
        rules.add("run_shell_command", "allow", _GRANT, pattern=_COMMAND, redirect=True)
    writing = tuple(name for name in tools if name in WRITE)
    by_path = bool(writing) and (bool(run.include_directories) or not grants.is_unlimited)
    if by_path:
        tools = {name: asks for name, asks in tools.items() if name not in WRITE}
    if tools:
        last.add(tuple(tools), "allow", _GRANT)
    _add_servers(grants, mcp, last, asks=False)
    last.add("*", "deny", _BASE)

    def policy_file(place: LaunchContext) -> dict[str, Json]:
        paths = _path_rules(grants, place, writing) if by_path else _Rules()
        return {POLICY_FILE: "\n\n".join((*rules.blocks, *paths.blocks, *last.blocks)) + "\n"}

    missing = ", ".join(f"allow {each.subject}" for each in left_out)
    note = f"denied, as the CLI's rules or the list of tools have no place for it: {missing}"
    return AgentControls(
        enforced={
            "write": Enforced(note=f"the CLI itself refuses {BUILD_FILES}"),
            "shell": Enforced("native", _shell_note(grants), left_out=left_out),
        },
        flags=_mode_flags(grants),
        tools=_offered(grants, asks=False),
        for_folders=policy_file,
        notes=(note,) if missing else (),
        unhooked=("a hook in the CLI's own sandbox cannot reach this process",)
        if run.sandbox == "agent"
        else other_hooks(run),
    )


def controls_acp(grants: Grants, run: RunOptions) -> AgentControls:
    """For the persistent CLI, which sends its permission requests to us."""
    if grants.is_native:
        native = _native("it runs what it believes harmless, and asks")
        return replace(native, unhooked=(UNASKED_BY_DEFAULT,))
    rules = _denied(grants, run)
    asked = _add_questions(grants, run, rules)
    enforced: dict[Capability, Enforced] = {
        name: Enforced("brokered" if asked & {*tools} else "native", "", {"tool": "native"})
        for name, tools in _TOOLS_OF.items()
    }
    shell = replace(enforced["shell"], note=_shell_note(grants))
    if grants.shell.verdict == "ask":
        shell = replace(shell, note="sub-agents and skills are not offered")
    own: Enforcer = "native" if grants.own_mcp.verdict == "deny" else "brokered"
    asks = grants.mcp.verdict == "ask" or _offers_own_server_only(grants, run)
    by: Enforcer = "brokered" if asks else "native"
    return AgentControls(
        enforced={**enforced, "shell": shell, "mcp": Enforced(by, exceptions={"own": own})},
        flags=_mode_flags(grants),
        tools=_offered(grants, asks=True),
        files={POLICY_FILE: "\n\n".join(rules.blocks) + "\n"},
    )


def _shell_note(grants: Grants) -> str:
    return "it can read the CLI's own environment through /proc" if grants.free_shell else ""


def _native(own_default: str) -> AgentControls:
    return AgentControls(own_default=own_default, flags=("--approval-mode", "default"))


def _mode_flags(grants: Grants) -> tuple[str, ...]:
    return ("--approval-mode", "plan" if grants.is_plan else "default")


class _Rules:
    """Rules of a policy file. What no rule grants is denied by the last one."""

    def __init__(self) -> None:
        self.blocks: list[str] = []

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
        self.blocks.append("\n".join(lines))


def _denied(grants: Grants, run: RunOptions) -> _Rules:
    """The deny rules of every policy, headless or not."""
    check_names(grants.tool_lists, KINDS, "the Gemini CLI", prefixed("mcp_"), strict=run.strict)
    rules = _Rules()
    denied = tuple(name for name in grants.denied if is_agent_tool(name))
    if denied:
        rules.add(denied, "deny", _DENY)
    for pattern in (OWN_SETTINGS, *REWRITTEN):
        rules.add(WRITE, "deny", _FENCE, pattern=pattern)
    if not grants.is_unlimited:
        for pattern in _GLOBS_OUTSIDE:
            rules.add("glob", "deny", _FENCE, pattern=pattern, message=_GLOB_ADVICE)
    return rules


def _add_shell_rules(grants: Grants, rules: _Rules) -> tuple[GrantException, ...]:
    """Returns the allow rules that have no effect: those that the headless CLI's rules cannot
    express, and all if the list of tools does not have the shell. What they allow is denied."""
    if len(grants.rules) > _MOST_RULES:
        raise PolicyError(f"more than {_MOST_RULES} shell rules for one policy")
    left_out: list[GrantException] = []
    if not _lists_shell(grants):
        # The list has another tool of the shell, such as list_background_processes.
        rules_left = (r for r in grants.rules if r.verdict == "allow")
        return tuple(GrantException("rule", r.pattern, "allow") for r in rules_left)
    for number, rule in enumerate(grants.rules):
        denies = rule.verdict == "deny"
        regexes = _denying(rule.pattern) if denies else _allowing(rule.pattern)
        if denies and not all(map(_is_taken, regexes)):
            raise PolicyError(
                f"the Gemini CLI would not take the shell rule {str(rule)!r}",
                hint="It takes short rules, and few with parentheses.",
            )
        if not regexes:
            left_out.append(GrantException("rule", rule.pattern, rule.verdict))
        for regex in regexes:
            rules.add("run_shell_command", rule.verdict, _RULES - number, pattern=regex)
    return tuple(left_out)


def _lists_shell(grants: Grants) -> bool:
    return grants.listed is None or "run_shell_command" in grants.listed


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


def _granted(grants: Grants, *, asks: bool) -> tuple[dict[str, bool], bool | None]:
    """Tool → whether each call sends a permission request; and the same for all MCP tools, None if
    they are not offered. ``asks``: the CLI can ask."""
    if grants.listed is not None:
        return {name: False for name in grants.listed if is_agent_tool(name)}, None
    tools: dict[str, bool] = dict.fromkeys(HARMLESS, False)
    for capability, names in _TOOLS_OF.items():
        verdict = grants.of(capability).verdict
        if verdict == "allow":
            tools |= dict.fromkeys(names, False)
        elif verdict == "ask" and asks:
            # Sub-agents and skills start without a permission request.
            tools |= dict.fromkeys((name for name in names if name not in OTHER), True)
    if grants.is_plan:
        tools["exit_plan_mode"] = False
    mcp = {"allow": False, "ask": True if asks else None, "deny": None}[grants.mcp.verdict]
    return tools, mcp


_UNLISTED = frozenset((*HARMLESS, "read_many_files", "enter_plan_mode"))
"""Tools that take notes, or that are offered only to some models or not at all."""


def _offered(grants: Grants, *, asks: bool) -> tuple[str, ...]:
    tools, _ = _granted(grants, asks=asks)
    has_shell = _lists_shell(grants) and any(rule.verdict == "allow" for rule in grants.rules)
    names = (*tools, *(("run_shell_command",) if has_shell else ()))
    hidden = _UNLISTED | {*grants.denied, *(() if grants.is_plan else ("exit_plan_mode",))}
    return tuple(sorted({*names} - hidden))


def _add_servers(grants: Grants, mcp: bool | None, rules: _Rules, *, asks: bool) -> None:
    if grants.listed is not None:
        return
    if mcp is not None:
        rules.add("mcp_*", "ask_user" if mcp else "allow", _GRANT - 1)
    own = grants.own_mcp.verdict
    if own != grants.mcp.verdict:
        question = "ask_user" if asks else "deny"
        rules.add(f"mcp_{OWN_SERVER}_*", question if own == "ask" else own, _GRANT)


def _add_questions(grants: Grants, run: RunOptions, rules: _Rules) -> set[str]:
    """The rules of the persistent CLI: a tool that is limited by more than its name asks. Returns
    the tools that do."""
    tools, mcp = _granted(grants, asks=True)
    if run.hooked:
        # on_tool_call decides about each call, so those that start without a permission request
        # are not offered: sub-agents, skills and plan mode.
        tools, mcp = (
            {name: True for name in tools if name not in OTHER},
            mcp if mcp is None else True,
        )
    elif not grants.is_unlimited:
        tools |= {name: True for name in WRITE if name in tools}
    shell = "run_shell_command"
    if grants.rules and _lists_shell(grants):
        tools[shell] = True
    asked = {name for name, asks in tools.items() if asks}
    if shell in tools:
        decision = "ask_user" if tools.pop(shell) else "allow"
        rules.add(shell, decision, _GRANT, pattern=_COMMAND, redirect=decision == "allow")
    for decision, asks in (("allow", False), ("ask_user", True)):
        names = tuple(name for name, question in tools.items() if question is asks)
        if names:
            rules.add(names, decision, _GRANT)
    if mcp is None and _offers_own_server_only(grants, run):
        mcp = True
    _add_servers(grants, mcp, rules, asks=True)
    rules.add("*", "deny", _BASE)
    return asked


def _offers_own_server_only(grants: Grants, run: RunOptions) -> bool:
    """The persistent CLI does not apply the rule for one server when it offers tools. Our answers
    allow our own server and deny the others."""
    has_own = any(server.name == OWN_SERVER for server in run.mcp_servers)
    is_only = grants.own_mcp.verdict == "allow" and grants.mcp.verdict == "deny"
    return has_own and is_only and grants.listed is None


def _path_rules(grants: Grants, place: LaunchContext, writing: tuple[str, ...]) -> _Rules:
    rules = _Rules()
    advice = f"Use an absolute path below {place.cwd}."
    for pattern in UNUSUAL:
        rules.add(WRITE, "deny", _FENCE, pattern=pattern, message=advice)
    if not grants.is_unlimited:
        why = "This file is protected: a program obeys it."
        for pattern in protected(grants.writable, place):
            rules.add(WRITE, "deny", _FENCE, pattern=pattern, message=why)
    why = "A link of this name leads to where you may not write."
    for pattern in through_links(place):
        rules.add(WRITE, "deny", _FENCE, pattern=pattern, message=why)
    # Relative paths for which ``replace`` may find a file that the agent may not write; all
    # relative paths, if there are too many such files.
    names = place.links.unwritable
    elsewhere: Iterable[str] = [RELATIVE]
    if names is not None:
        escaped = (json_pattern(name) for name in sorted(names) if name.isprintable())
        elsewhere = _chunked(RELATIVE + r"(|[^\x00]*/)", escaped, end='/*"')
    for pattern in elsewhere:
        rules.add("replace", "deny", _FENCE, pattern=pattern, message=advice)
    for pattern in allowed(grants.writable, place):
        rules.add(writing, "allow", _GRANT, pattern=pattern)
    return rules


PATH = r'\x00"file_path":"'
LONGEST_PATTERN = 2048
"""The CLI drops a rule with a longer one."""
OWN_SETTINGS = PATH + r'(|[^\x00]*/)\.gemini[/"]'
REWRITTEN = (PATH + r"[^\x00]*%[0-9A-Fa-f][0-9A-Fa-f]", PATH + r"[^\x00]*\\u0000")
"""Paths that the tool changes after the rules have seen them."""
UNUSUAL = (PATH + r"[^\x00]*\\", PATH + "@", PATH + r'(|[^\x00]*/)\.\.[/"]')
"""A character that JSON escapes, a leading ``@``, and a parent folder."""
RELATIVE = PATH + r"(?!/)"


def allowed(writable: Sequence[str], place: LaunchContext) -> Iterator[str]:
    """Patterns of the paths in the workspace and the writable folders."""
    yield rf'{PATH}{_roots(writable, place)}/[^\x00\\]*"\x00'
    yield rf'{PATH}[^/\x00\\][^\x00\\]*"\x00'


def protected(writable: Sequence[str], place: LaunchContext) -> Iterator[str]:
    """Patterns of the paths with a protected name below a folder that may be written. The
    workspace itself may have such a name above it."""
    names = [
        glob.removeprefix("**/").replace(".", r"\.").replace("*", r"[^/\x00]*")
        for glob in globs(below=False, any_case=True)
    ]
    yield from _chunked(RELATIVE + r"(|[^\x00]*/)", names)
    yield from _chunked(rf"{PATH}{_roots(writable, place)}/(|[^\x00]*/)", names)


def _roots(writable: Sequence[str], place: LaunchContext) -> str:
    folders = (place.cwd, *(os.path.join(place.cwd, name) for name in writable))
    roots = dict.fromkeys(name for f in folders for name in (f, os.path.realpath(f)))
    return "(" + "|".join(json_pattern(os.path.normpath(root).rstrip("/")) for root in roots) + ")"


def through_links(place: LaunchContext) -> Iterator[str]:
    """Patterns of the paths that have the name of a link that leads out.

    Raises ``PolicyNotEnforceable`` where not all links could be found."""
    if not place.links.complete:
        raise PolicyNotEnforceable(
            "the workspace and the policy's folders have too many files to find the links that"
            " lead out of them, or too many links, and the Gemini CLI writes through them",
            hint="Name smaller folders in the policy's writable and in include_directories, use"
            " gemini-acp, which asks before it writes, or deny writing.",
            phase="config",
        )
    names = {os.path.basename(link.path) for link in place.links.found}
    # A path with a character that JSON escapes is denied in any case.
    in_any_case = (
        "".join(
            f"[{c.lower()}{c.upper()}]" if c in ascii_letters else json_pattern(c) for c in name
        )
        for name in names
    )
    yield from _chunked(rf"{PATH}(|[^\x00]*/)", sorted(in_any_case))


def _chunked(prefix: str, names: Iterable[str], end: str = '[/"]') -> Iterator[str]:
    """``prefix(name|name)end``, in as many patterns as their length demands."""
    chunk: list[str] = []
    size = room = LONGEST_PATTERN - len(f"{prefix}(){end}")
    for name in names:
        if chunk and len(name) + 1 > size:
            yield f"{prefix}({'|'.join(chunk)}){end}"
            chunk, size = [], room
        chunk.append(name)
        size -= len(name) + 1
    if chunk:
        yield f"{prefix}({'|'.join(chunk)}){end}"
