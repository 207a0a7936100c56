"""Families of models: their vendor, the tools they use best, and the project documents that
they read."""

from __future__ import annotations

import re

import msgspec

READING = ("read_file", "read_many_files", "list_dir", "glob", "grep")
EDITING = ("write_file", "edit_file")
PATCHING = ("apply_patch",)
ACTING = ("shell", "web_fetch")


class Family(msgspec.Struct, frozen=True):
    tools: tuple[str, ...]
    documents: tuple[str, ...]
    """Names of project documents, beside ``AGENTS.md``."""


EDITORS = (*READING, *EDITING, *ACTING)
PATCHERS = (*READING, *PATCHING, *ACTING)


VENDORS = (
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"gpt-|o\d|codex-"), "openai"),
    (re.compile(r"gemini-"), "gemini"),
)
"""Vendors by the beginning of the model's name."""


def vendor_of(model: str) -> str:
    """The vendor of a model name without prefix; empty if the name does not show it."""
    if ":" in model or "/" in model:
        return ""
    return next((vendor for name, vendor in VENDORS if name.match(model)), "")


def family_of(provider: str, model: str) -> Family:
    """The family by vendor, or by the model's name where a vendor serves many."""
    name = model.lower()
    if provider in ("gemini", "vertex") or "gemini" in name:
        return Family(EDITORS, ("GEMINI.md",))
    if provider == "anthropic" or "claude" in name:
        return Family(EDITORS, ("CLAUDE.md",))
    if provider.startswith("openai") or "gpt" in name or "codex" in name:
        return Family(PATCHERS, ())
    return Family(EDITORS, ())
