"""Finds the vendors of models by name.

A vendor's module is imported only when it is needed: ``gemini`` is looked up in ``gemini/`` first.
Other packages add vendors with the entry point group ``corral.models``; each entry names a tuple
of ``Provider`` records.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import cast

from corral.errors import ConfigError, UnknownProvider
from corral.models.spec import Provider

ENTRY_POINTS = "corral.models"
EXAMPLE = "gemini:gemini-2.5-flash"
"""For error messages that show how to name a model."""


def find_provider(name: str) -> Provider:
    """The vendor with this name or alias. Raises ``UnknownProvider`` with the nearest name."""
    wanted = name.strip().lower()
    for provider in _providers_in(wanted.replace("-", "_")):
        if wanted == provider.name or wanted in provider.aliases:
            return provider
    known: dict[str, Provider] = {}
    for provider in all_providers():
        known.update(dict.fromkeys((provider.name, *provider.aliases), provider))
    if wanted in known:
        return known[wanted]
    from difflib import get_close_matches

    near = get_close_matches(wanted, known, 1, 0.5)
    names = ", ".join(sorted({provider.name for provider in known.values()}))
    raise UnknownProvider(
        f"unknown model vendor {name!r}",
        hint=f"Did you mean {near[0]!r}? Known: {names}." if near else f"Known: {names}.",
    )


def split_model(model: str) -> tuple[Provider, str]:
    """Split ``gemini:gemini-2.5-flash`` into vendor and name. A vendor is never guessed from the
    name. Raises ``UnknownProvider`` and ``ConfigError``."""
    if not isinstance(model, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"a model must be a string, got: {model!r}")
    prefix, colon, name = model.strip().partition(":")
    if not colon:
        raise ConfigError(
            f"the model {model!r} has no vendor prefix",
            hint=f"Write vendor:model, as in {EXAMPLE} or chat:{model or 'name'}.",
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
    from importlib.metadata import entry_points
    from pkgutil import iter_modules

    package = import_module("corral.models")
    for module in sorted(info.name for info in iter_modules(package.__path__)):
        yield from _providers_in(module)
    for entry in entry_points(group=ENTRY_POINTS):
        yield from cast("tuple[Provider, ...]", entry.load())


def _providers_in(stem: str) -> tuple[Provider, ...]:
    if not stem.isidentifier():
        return ()
    package = f"corral.models.{stem}"
    for name in (f"{package}.spec", package):
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, package):
                raise
            continue
        return cast("tuple[Provider, ...]", getattr(module, "PROVIDERS", ()))
    return ()
