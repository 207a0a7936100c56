"""Finds the vendors of models by name.

``gemini`` is looked up in ``gemini/spec.py`` first. Other packages add vendors with the entry
point group ``corral.models``; each entry names a tuple of ``Provider`` records.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.core.lookup import SpecLookup
from corral.errors import ConfigError, UnknownProvider
from corral.models.families import vendor_of
from corral.models.spec import Provider

LOOKUP = SpecLookup("corral.models", "PROVIDERS", Provider)
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
        raise ConfigError(f"the model {model!r} has no vendor prefix", hint=_suggestion(model))
    provider = find_provider(prefix)
    if not name.strip():
        raise ConfigError(f"{model!r} has no model name after {provider.title}'s prefix")
    return provider, name.strip()


def _suggestion(model: str) -> str:
    name = model.strip().rpartition("/")[2]
    vendor = vendor_of(name)
    if vendor:
        return f"Did you mean {vendor}:{name}?"
    from corral.models.catalogue import all_entries

    offers = sorted(each.id for each in all_entries() if each.id.partition(":")[2] == name)
    if offers:
        return f"Did you mean {' or '.join(offers)}?"
    return f"Write vendor:model, as in {EXAMPLE} or chat:{model or 'name'}."


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
