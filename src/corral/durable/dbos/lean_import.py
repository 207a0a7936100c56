"""Import the DBOS library without what corral does not use of its dependencies.

The library imports the driver of Postgres, SQLAlchemy's dialect of it and its object-relational
mapper, and parsers of YAML, schedules and dates, whatever it is used for: half of the time of its
import. corral needs the parts for Postgres only for a database on a server, and the others never.
For the time of the import a placeholder stands for each of these modules. Its names load the real
module when they are used: a module when one of its attributes is read, a class when it is called or
when one of its attributes is read. Afterwards the placeholders are removed, so that any other
``import`` gets the real module.

SQLAlchemy itself compiles a function for each use of its decorators and creates a subclass of each
class of expressions, of which a program needs few. Here each is made when it is first used.

Only for a program that does nothing else at that time (the command line): another thread that
imports one of these modules meanwhile would get the placeholder.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect
    from sqlalchemy.types import TypeEngine

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
    "croniter": ("croniter",),
    "dateutil.parser": ("isoparse",),
}
"""Modules of which the library imports classes by name: for annotations and type checks."""
_SUBMODULES = ("psycopg.errors",)
VERSIONS = {"dbos": "3.3", "sqlalchemy": "2.1"}
"""What this module changes is internal to these versions."""
_METADATA = "importlib.metadata"
"""Reads the versions of packages, with the parser of e-mail."""
_ANNOTATED = ("ColumnElement", "FromClause", "ClauseList")
"""SQLAlchemy's classes whose subclasses get a further subclass each, for annotations."""
_POSTGRES = "sqlalchemy.dialects.postgresql"
_SQLITE = "sqlalchemy.dialects.sqlite"


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

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found: object = getattr(cls._real(), name)
        return found

    def __getitem__(cls, _parameters: object) -> _DeferredClass:
        return cls  # in annotations


class _DeferredDialect:
    """The Postgres dialect of which the library keeps only the quoting of names."""

    def __init__(self, **options: object) -> None:
        self._options = options

    @property
    def identifier_preparer(self) -> _DeferredDialect:
        return self

    def quote_identifier(self, name: str) -> str:
        dialect = importlib.import_module(f"{_POSTGRES}.base").PGDialect(**self._options)
        quoted: str = dialect.identifier_preparer.quote_identifier(name)
        return quoted


def _deferred_jsonb() -> type[TypeEngine[Any]]:
    """The type of a column that a database on a server has as JSONB."""
    from sqlalchemy.types import JSON

    class DeferredJsonb(JSON):
        __visit_name__ = "JSONB"

        def _gen_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
            from sqlalchemy.dialects.postgresql import JSONB

            return JSONB().dialect_impl(dialect)

    return DeferredJsonb


def _placeholders() -> dict[str, ModuleType]:
    """Name -> what stands for the module, for those that are not imported."""
    made: dict[str, ModuleType] = {name: _DeferredModule(name) for name in _MODULES}
    names: dict[str, dict[str, type]] = {
        module: {name: _DeferredClass(name, (), {"__module__": module}) for name in classes}
        for module, classes in _CLASSES.items()
    }
    names[_POSTGRES] = {"JSONB": _deferred_jsonb()}
    names[f"{_POSTGRES}.base"] = {"PGDialect": _DeferredDialect}
    for name, classes in names.items():
        made[name] = module = ModuleType(name)
        module.__dict__.update(classes)
    return {name: module for name, module in made.items() if name not in sys.modules}


def _unknown_version(_package: str) -> str:
    return "unknown"


def _defer_metadata() -> None:
    """Both libraries import it, and read a version for messages that corral does not print. An
    import of the real module replaces the attribute of the package."""
    placeholder = _DeferredModule(_METADATA)
    placeholder.__dict__["version"] = _unknown_version
    sys.modules[_METADATA] = placeholder
    setattr(importlib, "metadata", placeholder)  # noqa: B010 (a checker would complain)


def _end_metadata() -> None:
    placeholder = sys.modules.get(_METADATA)
    if isinstance(placeholder, _DeferredModule):
        del placeholder.__dict__["version"], sys.modules[_METADATA]


def _import_sqlalchemy() -> None:
    """Import the package, without what it generates for functions and classes that are not used.
    Its ``util`` is imported first, to replace what generates them until the import is complete."""
    name = "sqlalchemy"
    spec = importlib.util.find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    given: list[tuple[ModuleType, str, object]] = []
    try:
        util = importlib.import_module(f"{name}.util")
        deprecations = importlib.import_module(f"{name}.util.deprecations")
        for module, attribute, replacement in (
            (util, "decorator", _deferred_decorator),
            (deprecations, "decorator", _deferred_decorator),
            (util, "walk_subclasses", _without_annotated),
        ):
            found = getattr(module, attribute)
            given.append((module, attribute, found))
            setattr(module, attribute, replacement(found))
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        for module, attribute, found in given:
            setattr(module, attribute, found)


_Function = Callable[..., Any]


def _deferred_decorator(
    decorator: Callable[[_Function], Callable[[_Function], _Function]],
) -> Callable[[_Function], Callable[[_Function], _Function]]:
    """SQLAlchemy's decorator, which compiles each function when that is called first."""

    def deferred(target: _Function) -> Callable[[_Function], _Function]:
        def decorate(function: _Function) -> _Function:
            if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
                return decorator(target)(function)
            made: _Function | None = None

            @functools.wraps(function)
            def call(*args: object, **kwargs: object) -> object:
                nonlocal made
                if made is None:
                    made = decorator(target)(function)
                return made(*args, **kwargs)

            return call

        return decorate

    return deferred


def _without_annotated(
    walk_subclasses: Callable[[type], Iterable[type]],
) -> Callable[[type], Iterable[type]]:
    """SQLAlchemy's walk over all subclasses of a class, which ends at once where it is used to
    prepare annotations. It makes what is missing when it annotates an expression."""

    def walk(cls: type) -> Iterable[type]:
        return [cls] if cls.__name__ in _ANNOTATED else walk_subclasses(cls)

    return walk


def _import_one_dialect() -> None:
    """The constructor of the library's class for any database imports two dialects and uses one. A
    database file gets a constructor that imports its own dialect twice."""
    from dbos._sys_db import SystemDatabase
    from dbos._sys_db_sqlite import SQLiteSystemDatabase

    given = SystemDatabase.__init__
    renamed = {_POSTGRES: _SQLITE, "postgresql": "sqlite"}
    names = tuple(renamed.get(name, name) for name in given.__code__.co_names)
    code = given.__code__.replace(co_names=names)
    made = FunctionType(code, given.__globals__, given.__name__, given.__defaults__)
    made.__kwdefaults__ = given.__kwdefaults__
    setattr(SQLiteSystemDatabase, "__init__", made)  # noqa: B010 (a checker would complain)


def _is_installed(package: str, version: str) -> bool:
    """Read from the names in the folder of the package: ``importlib.metadata`` is slow to load."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return False
    beside = os.listdir(os.path.dirname(os.path.dirname(spec.origin)))
    return any(name.lower().startswith(f"{package}-{version}.") for name in beside)


def load() -> None:
    """Import the library; does nothing if it is imported. Other versions than those that this was
    made for are imported as usual."""
    if "dbos" in sys.modules:
        return
    if not all(_is_installed(*each) for each in VERSIONS.items()):
        importlib.import_module("dbos")
        return
    placeholders: dict[str, ModuleType] = {}
    collects = gc.isenabled()
    gc.disable()  # an import creates many objects and no garbage
    try:
        if _METADATA not in sys.modules:
            _defer_metadata()
        _import_sqlalchemy()
        placeholders = _placeholders()
        sys.modules.update(placeholders)
        importlib.import_module("dbos")
        _import_one_dialect()
    finally:
        if collects:
            gc.enable()
        _end_metadata()
        for name, module in placeholders.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
