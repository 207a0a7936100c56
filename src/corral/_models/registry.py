"""Finds the vendors of models by name, and the family of a model: the tools that it uses best, and
the project documents that it reads.

``gemini`` is looked up in ``gemini/spec.py`` first. Other packages add vendors with the entry
point group ``corral.models``; each entry names a tuple of ``Provider`` records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from corral._core.lookup import SpecLookup
from corral._models.spec import Provider
from corral.errors import ConfigError, UnknownProvider


class Family(msgspec.Struct, frozen=True):
    tools: tuple[str, ...]
    documents: tuple[str, ...]
    """Names of project documents, beside ``AGENTS.md``."""


_READING = ("read_file", "read_many_files", "list_dir", "glob", "grep")
_ACTING = ("shell", "web_fetch")
EDITORS = (*_READING, "write_file", "edit_file", *_ACTING)
PATCHERS = (*_READING, "apply_patch", *_ACTING)
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


LOOKUP = SpecLookup("corral._models", "PROVIDERS", Provider, group="corral.models")
EXAMPLE = "gemini:gemini-2.5-flash"
"""For error messages that show how to name a model."""


def find_provider(name: str) -> Provider:
    """The vendor with this name or alias. Raises ``UnknownProvider`` with the nearest name."""
    wanted = name.strip().lower()
    found = LOOKUP.find(wanted, wanted.replace("-", "_"))
    if found is None:
        hint = LOOKUP.suggestion(wanted)
        raise UnknownProvider(f"unknown model vendor {name!r}", hint=hint)
    return found


def canonical(model: str) -> str:
    """``vendor:name`` for a model that is written as ``vendor/name``, with a known vendor. Any
    other name is returned as it is."""
    if not isinstance(model, str) or "/" not in model:  # pyright: ignore[reportUnnecessaryIsInstance]
        return model
    prefix, _, name = model.partition("/")
    if ":" in prefix or not name.strip():
        return model
    wanted = prefix.strip().lower()
    known = LOOKUP.find(wanted, wanted.replace("-", "_")) is not None
    return f"{wanted}:{name.strip()}" if known else model


def split_model(model: str) -> tuple[Provider, str]:
    """Split ``gemini:gemini-2.5-flash``, or ``gemini/gemini-2.5-flash``, into vendor and name. A
    vendor is never guessed from the name, only suggested. Raises ``UnknownProvider`` and
    ``ConfigError``."""
    if not isinstance(model, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"a model must be a string, got: {model!r}")
    prefix, colon, name = canonical(model.strip()).partition(":")
    if not colon:
        name = model.strip().rpartition("/")[2]
        vendor = vendor_of(name)
        from corral._models.catalogue import all_entries

        offers = [f"{vendor}:{name}"] if vendor else []
        offers = offers or sorted(
            entry.id for entry in all_entries() if entry.id.partition(":")[2] == name
        )
        hint = f"Write vendor:model, as in {EXAMPLE} or chat:{model or 'name'}."
        raise ConfigError(
            f"the model {model!r} has no vendor prefix",
            hint=f"Did you mean {' or '.join(offers)}?" if offers else hint,
        )
    provider = find_provider(prefix)
    if not name.strip():
        raise ConfigError(f"{model!r} has no model name after {provider.title}'s prefix")
    return provider, name.strip()


def is_model_name(text: str) -> bool:
    """Whether the text is ``vendor:model`` with a known vendor."""
    prefix, colon, name = text.partition(":")
    if not colon or not name or " " in prefix or "/" in prefix:
        return False
    try:
        find_provider(prefix)
    except UnknownProvider:
        return False
    return True


def all_providers() -> Iterator[Provider]:
    """All vendors: ours by module name, then those of other packages."""
    return LOOKUP.all()
