"""What the agents whose stream goes both ways do each in their own way, as data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from corral.events import ToolKind


class Manners(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one agent that speaks so. The defaults change nobody."""

    tools: Mapping[str, ToolKind]
    mcp_prefix: str = "mcp__"
    own_prefix: str = "mcp__corral__"
    """Tools of the caller's own server."""
    refusal_signs: tuple[str, ...] = ()
    """What the failure of a tool holds that is hidden, or fenced off by a rule."""
