"""Where two-way stream-json agents differ from one another, as data."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from corral.events import ToolKind


class StreamQuirks(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one agent."""

    tools: Mapping[str, ToolKind]
    mcp_prefix: str = "mcp__"
    own_prefix: str = "mcp__corral__"
    """Name prefix of the tools of the caller's own server."""
    media: frozenset[str] = frozenset(
        {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"}
    )
    """Media types that a prompt may carry, apart from text."""
    denied_texts: tuple[str, ...] = ()
    """Texts in the error of a tool that is hidden or denied by a rule."""
    error_text: str = ""
    """Prefix of the text that replaces the answer when the model's API failed."""
    id_per_block: bool = False
    """Complete blocks have an id each, which is not the id of the streamed message."""
    edits_calls: bool = False
    """The answer to a permission request may change the input of the call."""
    reports_session_total: bool = False
    """Reports one total for the session, cached tokens included, and no usage by model."""
    question_tool: str = ""
    """The tool with which the model asks a person. Its permission request has the questions, and
    the answer to that request has the answers."""
