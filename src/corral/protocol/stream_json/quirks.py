"""What the agents whose stream goes both ways do each in their own way, as data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from corral.events import ToolKind


class StreamQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one agent that speaks so. The defaults change nobody."""

    tools: Mapping[str, ToolKind]
    mcp_prefix: str = "mcp__"
    own_prefix: str = "mcp__corral__"
    """Tools of the caller's own server."""
    media: frozenset[str] = frozenset(
        {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}
    )
    """What may go along with a prompt, beside texts."""
    refusal_signs: tuple[str, ...] = ()
    """What the failure of a tool holds that is hidden, or fenced off by a rule."""
    error_text: str = ""
    """What stands in the answer's place begins so where the model's service failed."""
    id_a_block: bool = False
    """Whole blocks come with an id each, and not with that of the message in pieces."""
    sums_up: bool = False
    """Tells the tokens of a session in one sum, cached ones among them, and of no model's own."""
