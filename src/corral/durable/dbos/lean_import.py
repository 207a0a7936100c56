"""Import the DBOS library without what corral does not use of its dependencies.

The library imports the driver of Postgres, the object-relational mapper of SQLAlchemy and a YAML
parser, whatever it is used for: 40 % of the time of its import. corral needs the driver only for a
database on a server, and the others never. For the time of the import a placeholder stands for each
of these modules. Its names load the real module when they are used: a module when one of its
attributes is read, a class when it is called or when one of its attributes is read. Afterwards the
placeholders are removed, so that any other ``import`` gets the real module.

Only for a program that does nothing else at that time (the command line): another thread that
imports one of these modules meanwhile would get the placeholder.
"""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType

_MODULES = ("psycopg", "yaml")
"""Modules of which the library reads attributes when it needs them."""
_CLASSES = {
    "sqlalchemy.orm": ("Session", "sessionmaker"),
    "sqlalchemy.ext.asyncio": (
        "AsyncConnection",
        "AsyncEngine",
        "AsyncSession",
        "async_sessionmaker",
    ),
}
"""Modules of which the library imports classes by name: for annotations and type checks."""
_SUBMODULES = ("psycopg.errors",)


class _DeferredModule(ModuleType):
    """Reads its attributes from the real module, which is imported then."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in _SUBMODULES:
            return _DeferredModule(full)
        found: object = getattr(importlib.import_module(self.__name__), name)
        return found


class _DeferredClass(type):
    """The type of a class that stands for one of another module."""

    def _real(cls) -> type:
        found: type = getattr(importlib.import_module(cls.__module__), cls.__name__)
        return found

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return cls._real()(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        # Before the first import of the module there is no instance.
        return cls.__module__ in sys.modules and isinstance(instance, cls._real())

    def __getitem__(cls, _parameters: object) -> _DeferredClass:
        return cls  # in annotations


def load() -> None:
    """Import the library; does nothing if it is imported."""
    if "dbos" in sys.modules:
        return
    placeholders: dict[str, ModuleType] = {name: _DeferredModule(name) for name in _MODULES}
    for name, classes in _CLASSES.items():
        placeholders[name] = module = ModuleType(name)
        for each in classes:
            setattr(module, each, _DeferredClass(each, (), {"__module__": name}))
    for name in [name for name in placeholders if name in sys.modules]:
        del placeholders[name]
    collects = gc.isenabled()
    gc.disable()  # an import creates many objects and no garbage
    try:
        importlib.import_module("sqlalchemy")
        sys.modules.update(placeholders)
        importlib.import_module("dbos")
    finally:
        if collects:
            gc.enable()
        for name, module in placeholders.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
