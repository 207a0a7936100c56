"""Runs in the formats of other programs.

::

    from corral.export import atif

    document = atif.trajectory(run_events, session_id="my-run")

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral._core.lazy_names import load_public_name, public_names

if TYPE_CHECKING:
    # ``Name as Name`` makes a name public for type checkers.
    from corral._export import atif as atif

_HOMES = {"corral._export.": "atif"}


def __getattr__(name: str) -> object:
    value = globals()[name] = load_public_name(__name__, _HOMES, name)
    return value


def __dir__() -> list[str]:
    return public_names(_HOMES)
