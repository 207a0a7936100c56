"""The public names of a package, each loaded when it is first used.

A package lists its names twice: in imports that type checkers read, and in a table for
``load_public_name``. A test compares them. ``__all__`` is made of the table.
"""

from __future__ import annotations

from collections.abc import Mapping


def load_public_name(package: str, homes: Mapping[str, str], name: str) -> object:
    """The object of a public name; of ``__all__``, the sorted names. ``homes``: module -> its
    names, separated by spaces; of a package with a dot at its end, its modules. Raises
    ``AttributeError`` for another name, and ``ProcessFailed`` if no more files can be opened."""
    if name == "__all__":
        return public_names(homes)
    home = next((module for module, names in homes.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        if home.endswith("."):
            return import_module(f"{home}{name}")
        return getattr(import_module(home), name)
    except (OSError, ImportError) as error:
        from corral.errors import lacks_descriptors, no_descriptor_error

        if not lacks_descriptors(error):
            raise
        raise no_descriptor_error(error) from error


def public_names(homes: Mapping[str, str]) -> list[str]:
    return sorted(name for names in homes.values() for name in names.split())
