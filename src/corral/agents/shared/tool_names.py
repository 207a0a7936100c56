"""Checks the names of tools in a policy against the tools of an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from corral.agents.grants import Grants
from corral.errors import PolicyError
from corral.events import ToolKind
from corral.options import OWN_SERVER, RunOptions

_WORDS: tuple[tuple[ToolKind, tuple[str, ...]], ...] = (
    ("fetch", ("fetch", "web", "url", "http")),
    ("execute", ("bash", "shell", "exec", "command", "terminal", "run")),
    ("edit", ("write", "edit", "patch", "replace", "create")),
    ("search", ("grep", "glob", "search", "find", "list", "ls")),
    ("read", ("read", "view", "open", "cat")),
)
"""Kind of a tool → parts of the names that such tools have in other agents."""


def check_names(
    grants: Grants,
    tools: Mapping[str, ToolKind],
    title: str,
    from_server: Callable[[str], bool],
    *,
    strict: bool,
) -> None:
    """Raises ``PolicyError`` for a name that the agent does not have, with the nearest name.
    ``strict=False`` leaves names out that are not similar to one of the agent's.
    ``from_server`` returns whether a name can be that of an MCP tool."""
    for where, names in (("allow_tools", grants.listed or ()), ("deny_tools", grants.denied)):
        for name in names:
            if name not in tools and not from_server(name):
                _refuse(name, where, tools, title, strict=strict)


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
    if found := get_close_matches(name.lower(), lower, 3, 0.75):
        return [lower[each] for each in found]
    for kind, words in _WORDS:
        if any(word in name.lower() for word in words):
            same = sorted(tool for tool, does in tools.items() if does == kind)
            alike = [tool for tool in same if any(word in tool.lower() for word in words)]
            return (alike or same)[:3]
    return []


def _refuse(
    name: str, where: str, tools: Mapping[str, ToolKind], title: str, *, strict: bool
) -> None:
    from difflib import get_close_matches

    is_slip = bool(get_close_matches(name, tools, 1, 0.75))
    if not is_slip and not strict:
        return
    similar = " or ".join(map(repr, similar_tools(name, tools)))
    is_vain = where == "deny_tools" and not is_slip
    effect = ", so denying it would do nothing" if is_vain else ""
    advice = f"; did you mean {similar}?" if similar else ""
    hint = f"It has: {', '.join(sorted(tools))}."
    if not is_slip:
        hint += " strict=False leaves the name out."
    raise PolicyError(f"{where}: {title} has no tool {name!r}{effect}{advice}", hint=hint)
