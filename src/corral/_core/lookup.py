"""Finds specs of agents and of model vendors by name, and stored sessions, runs and batches by id.

The specs of a package are in its modules: ``NAME.py`` or ``NAME/spec.py`` exports a tuple of them.
A module is imported only if its name fits the wanted one, or if no other spec was found. Other
packages add specs with an entry point group, in which each entry names such a tuple.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from corral.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LAST = "last"
"""The name of the newest run (``corral._runs.lookup.find``)."""
MAX_LISTED = 10
"""Ids that an error lists."""
LONGEST_NAME = 200
"""Characters of a name that is compared with the known ones: the time grows with the length."""


class NamedSpec(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> tuple[str, ...]: ...


S = TypeVar("S", bound=NamedSpec)


class SpecLookup(Generic[S]):
    """The specs of type ``spec`` in the tuples called ``exported``: those of the modules of
    ``package``, and those that the entry points of ``group`` name."""

    def __init__(self, package: str, exported: str, spec: type[S], *, group: str) -> None:
        self._package = package
        self._group = group
        self._exported = exported
        self._spec = spec

    def find(self, name: str, module: str) -> S | None:
        """The spec with this name or alias. ``module`` is searched first."""
        for spec in self.in_module(module):
            if name == spec.name or name in spec.aliases:
                return spec
        return next(
            (spec for spec in self.all() if name == spec.name or name in spec.aliases), None
        )

    def all(self) -> Iterator[S]:
        """All specs: ours by module name, then those of other packages."""
        from pkgutil import iter_modules

        package = import_module(self._package)
        for module in sorted(info.name for info in iter_modules(package.__path__)):
            yield from self.in_module(module)
        for entry in entry_points(self._group):
            yield from self._specs(entry.load())

    def in_module(self, module: str) -> tuple[S, ...]:
        """The specs of one module; empty if there is no such module."""
        if not module.isidentifier():
            return ()
        package = f"{self._package}.{module}"
        for name in (f"{package}.spec", package):
            try:
                found = import_module(name)
            except ModuleNotFoundError as error:
                if error.name not in (name, package):
                    raise
                continue
            return self._specs(getattr(found, self._exported, ()))
        return ()

    def suggestion(self, name: str, otherwise: str = "") -> str:
        """A hint for a name that was not found: the nearest name, ``otherwise``, or all names."""
        from difflib import get_close_matches

        specs = [*self.all()]
        known = [n for s in specs for n in (s.name, *s.aliases)]
        if near := get_close_matches(name[:LONGEST_NAME], known, 1, 0.75):
            return f"Did you mean {near[0]!r}?"
        return otherwise or f"Known: {', '.join(sorted({spec.name for spec in specs}))}."

    def _specs(self, exported: Iterable[object]) -> tuple[S, ...]:
        return tuple(each for each in exported if isinstance(each, self._spec))


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of other packages in this group, read once for each ``sys.path``: reading
    opens a file of every installed package."""
    return _entry_points(group, tuple(sys.path))


@cache
def _entry_points(group: str, paths: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    from importlib import metadata

    return tuple(metadata.entry_points(group=group))


def find_id(name: str, ids: Sequence[str], kind: str) -> str | None:
    """The id that ``name`` stands for: this id itself, or the only one that begins with it or whose
    last part does. None if there is none. Raises ``ConfigError`` if several begin with it. ``kind``
    is their plural, for the message."""
    if name in ids:
        return name
    # The last part of an id is random: people copy it, because the rest is often the same.
    fitting = [
        full
        for full in ids
        if name and (full.startswith(name) or full.rpartition("-")[2].startswith(name))
    ]
    if len(fitting) > 1:
        more = f" and {len(fitting) - MAX_LISTED:,} more" if len(fitting) > MAX_LISTED else ""
        raise ConfigError(
            f"{len(fitting):,} {kind} begin with {name!r}: {', '.join(fitting[:MAX_LISTED])}{more}",
            hint="Write more of the id.",
        )
    return fitting[0] if fitting else None


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean 'model'?``, if a known name is similar; else ``otherwise``."""
    from difflib import get_close_matches  # only errors need it

    near = get_close_matches(name[:LONGEST_NAME], [*known], 1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def check_keys(where: str, table: Iterable[str], known: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a key that is not known, with the closest known one."""
    for name in table:
        if name not in known:
            advice = nearest(name, known)
            meant = f", {advice}" if advice else f"; known keys: {', '.join(known)}"
            raise ConfigError(f"{where} unknown key {name!r}{meant}")


def try_id(run: str, number: int) -> str:
    """The id of the workflow that is a try of a run, or a round of a batch."""
    return run if number == 1 else f"{run}#{number}"


def run_of(workflow: str) -> str:
    """The run of a workflow, which may be a later try of it, or of the run that it is nested in."""
    top, slash, nested = workflow.partition("/")
    return top.partition("#")[0] + slash + nested
