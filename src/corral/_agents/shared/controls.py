"""What the controls of several agents have in common: their tools by capability, who enforces what,
and a check of the names of tools in a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral._agents.grants import Grants, ToolLists
from corral._agents.spec import Enforced
from corral.errors import PolicyError
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions
from corral.policy import CAPABILITY_OF, Capability

UNASKED_BY_DEFAULT = "with mode='native' it does not ask about what it allows by itself"
READS_OUTSIDE = "outside the workspace, reading follows the rule for the shell"
FILES_AND_COMMANDS: tuple[Capability, ...] = ("read", "write", "shell", "network")
NO_SERVERS = Enforced("not offered", "it takes no MCP servers")


def tools_by_capability(
    tools: Mapping[str, ToolKind], *, others: bool = False
) -> dict[Capability, tuple[str, ...]]:
    """Capability → an agent's tools for it. With ``others``, those of another kind count as
    ``shell``, as a policy counts them."""
    groups: dict[Capability, tuple[str, ...]] = dict.fromkeys(FILES_AND_COMMANDS, ())
    for name, kind in tools.items():
        capability = CAPABILITY_OF[kind]
        if capability is not None and (others or kind != "other"):
            groups[capability] += (name,)
    return groups


def without_rules(grants: Grants, *, offered: bool, note: str = "") -> Enforced:
    """For the shell of an agent that has no rules for single commands: it is offered, or not."""
    if offered:
        return Enforced("native", note, {"rule": "impossible"})
    allowed = (e for e in grants.shell.exceptions if (e.kind, e.verdict) == ("rule", "allow"))
    return Enforced("not offered", note, left_out=tuple(allowed))


def other_hooks(run: RunOptions) -> tuple[str, ...]:
    """Why ``on_tool_call`` may not have the last word."""
    inherits = run.inherit == "project"
    return ("the repository's own hooks may change a call again",) if inherits else ()


_WORDS: tuple[tuple[ToolKind, tuple[str, ...]], ...] = (
    ("fetch", ("fetch", "web", "url", "http")),
    ("execute", ("bash", "shell", "exec", "command", "terminal", "run")),
    ("edit", ("write", "edit", "patch", "replace", "create")),
    ("search", ("grep", "glob", "search", "find", "list", "ls")),
    ("read", ("read", "view", "open", "cat")),
)
"""Kind of a tool → parts of the names that such tools have in other agents."""


def check_names(
    lists: ToolLists,
    tools: Mapping[str, ToolKind],
    title: str,
    from_server: Callable[[str], bool],
    *,
    strict: bool,
) -> None:
    """Raises ``PolicyError`` for a name that the agent does not have, with the nearest name.
    ``strict=False`` leaves names out that are not similar to one of the agent's.
    ``from_server`` returns whether a name can be that of an MCP tool."""
    from difflib import get_close_matches

    for where, names in zip(("allow_tools", "deny_tools"), lists, strict=True):
        for name in names or ():
            if name in tools or from_server(name):
                continue
            is_slip = bool(get_close_matches(name, tools, 1, 0.75))
            if not is_slip and not strict:
                continue
            similar = " or ".join(map(repr, similar_tools(name, tools)))
            is_vain = where == "deny_tools" and not is_slip
            effect = ", so denying it would do nothing" if is_vain else ""
            advice = f"; did you mean {similar}?" if similar else ""
            hint = f"It has: {', '.join(sorted(tools))}."
            if not is_slip:
                hint += " strict=False leaves the name out."
            raise PolicyError(f"{where}: {title} has no tool {name!r}{effect}{advice}", hint=hint)


def prefixed(prefix: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(prefix)


def server_prefixed(run: RunOptions, separator: str) -> Callable[[str], bool]:
    """For an agent that puts the name of an MCP server before the names of its tools."""
    starts = tuple(
        f"{name}{separator}" for name in (OWN_SERVER, *(s.name for s in run.mcp_servers))
    )
    if run.inherit != "nothing":  # servers of the user's own, whose names are not known here
        return lambda name: separator in name
    return lambda name: name.startswith(starts)


def similar_tools(name: str, tools: Mapping[str, ToolKind]) -> list[str]:
    """The agent's tools that may be meant: those with a similar name, else those of the same
    kind."""
    from difflib import get_close_matches

    lower = {tool.lower(): tool for tool in tools}
    if near := get_close_matches(name.lower(), lower, 3, 0.75):
        return [lower[match] for match in near]
    for kind, words in _WORDS:
        if any(word in name.lower() for word in words):
            same = sorted(tool for tool, does in tools.items() if does == kind)
            alike = [tool for tool in same if any(word in tool.lower() for word in words)]
            return (alike or same)[:3]
    return []
