"""The names of tools in a policy, held against those that an agent has."""

from __future__ import annotations

from collections.abc import Collection

from corral.errors import PolicyError
from corral.policy import Policy


def check_names(
    policy: Policy, tools: Collection[str], title: str, mcp_prefix: str, *, strict: bool
) -> None:
    """Raises ``PolicyError`` for a name that is nearly one. Another agent's is left out where
    that takes a right away; where it would leave one, ``strict`` refuses it."""
    for where in ("allow_tools", "deny_tools"):
        names: tuple[str, ...] = getattr(policy, where) or ()
        for name in names:
            if name in tools or name.startswith(mcp_prefix):
                continue
            from difflib import get_close_matches

            if near := get_close_matches(name, tools, 1, 0.75):
                raise PolicyError(
                    f"{where}: {title} has no tool {name!r}; did you mean {near[0]!r}?"
                )
            if strict and where == "deny_tools":
                raise PolicyError(
                    f"{where}: {title} has no tool {name!r} here, so denying it would do nothing",
                    hint=f"It has: {', '.join(sorted(tools))}. strict=False leaves the name out.",
                )
