"""The vendors of models we know, found by name.

A vendor's module is imported only when a name asks for it: ``gemini`` is looked
for in ``gemini.py`` first. Other packages add theirs through the entry point
group ``corral.models``, each entry naming a tuple of records.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import cast

from corral.errors import ConfigError, UnknownProvider
from corral.models.spec import Provider

ENTRY_POINTS = "corral.models"
EXAMPLE = "gemini:gemini-2.5-flash"
"""For messages that say how a model is named."""


def find(name: str) -> Provider:
    """The vendor of that name or alias. Raises ``UnknownProvider`` with the nearest names."""
    wanted = name.strip().lower()
    for provider in _of_module(wanted.replace("-", "_")):
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
        f"no vendor of models is called {name!r}",
        hint=f"Did you mean {near[0]!r}? Known: {names}." if near else f"Known: {names}.",
    )


def split(model: str) -> tuple[Provider, str]:
    """``gemini:gemini-2.5-flash`` taken apart. A vendor is never guessed from a bare name.
    Raises ``UnknownProvider`` and ``ConfigError``."""
    if not isinstance(model, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"a model is named by text, got: {model!r}")
    prefix, colon, name = model.strip().partition(":")
    if not colon:
        raise ConfigError(
            f"whose model is {model!r}?",
            hint=f"Name its vendor too, as in {EXAMPLE} or chat:{model or 'name'}.",
        )
    provider = find(prefix)
    if not name.strip():
        raise ConfigError(f"{model!r} names no model of {provider.title}")
    return provider, name.strip()


def names_a_model(text: str) -> bool:
    """Whether this reads ``vendor:model`` with a vendor that is known."""
    prefix, colon, name = text.partition(":")
    if not colon or not name or " " in prefix or "/" in prefix:
        return False
    try:
        find(prefix)
    except UnknownProvider:
        return False
    return True


def all_providers() -> Iterator[Provider]:
    """All of them: ours by module name, then those of other packages."""
    from importlib.metadata import entry_points
    from pkgutil import iter_modules

    package = import_module("corral.models")
    for module in sorted(info.name for info in iter_modules(package.__path__)):
        yield from _of_module(module)
    for entry in entry_points(group=ENTRY_POINTS):
        yield from cast("tuple[Provider, ...]", entry.load())


def _of_module(stem: str) -> tuple[Provider, ...]:
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
