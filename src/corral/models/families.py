"""Which tools a family of models knows best, and what it calls the project's documents."""

from __future__ import annotations

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


def family_of(provider: str, model: str) -> Family:
    """By the vendor, or by the model's own name where a vendor serves many."""
    name = model.lower()
    if provider in ("gemini", "vertex") or "gemini" in name:
        return Family(EDITORS, ("GEMINI.md",))
    if provider == "anthropic" or "claude" in name:
        return Family(EDITORS, ("CLAUDE.md",))
    if provider.startswith("openai") or "gpt" in name or "codex" in name:
        return Family(PATCHERS, ())
    return Family(EDITORS, ())
