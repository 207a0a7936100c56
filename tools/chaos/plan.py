"""Which cases a run of ``make chaos`` has: every cell of the table, and then more of each."""

from __future__ import annotations

import fnmatch
import itertools
import random
from collections.abc import Iterator

from chaos.case import Case
from chaos.faults import DURABLE, FAULTS
from chaos.surfaces import SURFACES

SHARE_OF_GEMINI = 25
"""One of so many cases runs the real Gemini CLI: a start takes seconds of processor time."""
GEMINI_FAULTS = ("kill agent", "kill corral", "stop agent", "closed streams", "clock jump")
GEMINI_SURFACES = ("run", "session", "pool")
NONE = "none"
CHEAP = 3
"""So many cases of runs, sessions and pools for each one of the durable surfaces, which start more
processes."""


def cases(count: int, seed: str, *, only: str = "*", can_box: bool, has_gemini: bool) -> list[Case]:
    """``count`` cases in a random order; each cell occurs before any occurs again."""
    share = count // SHARE_OF_GEMINI if has_gemini else 0
    gemini = itertools.islice(_rounds(seed, only, can_box, True), share)
    scripted = _rounds(seed, only, can_box, False)
    found = [*gemini]
    found += itertools.islice(scripted, count - len(found))
    random.Random(seed).shuffle(found)
    return found


def unfaulted(seed: str, *, can_box: bool, has_gemini: bool) -> list[Case]:
    """One case of each surface without a fault: it must succeed, or the others prove nothing."""
    boxed = (False, True) if can_box else (False,)
    found = [Case(surface, NONE, each, 0, seed) for surface in SURFACES for each in boxed]
    if has_gemini:
        found += [Case("session", NONE, each, 0, seed, uses_gemini=True) for each in boxed]
    return found


def _rounds(seed: str, only: str, can_box: bool, uses_gemini: bool) -> Iterator[Case]:
    for number in itertools.count():
        cells = [
            Case(surface, fault, is_boxed, number, seed, uses_gemini)
            for surface in SURFACES
            for fault, facts in FAULTS.items()
            for is_boxed in ((False, True) if can_box else (False,))
            if surface in facts.surfaces and facts.is_possible()
            if not (surface in DURABLE and number % CHEAP)
            if not uses_gemini or (fault in GEMINI_FAULTS and surface in GEMINI_SURFACES)
        ]
        chosen = [case for case in cells if fnmatch.fnmatch(case.name, only)]
        if number % CHEAP == 0 and not chosen:
            return
        random.Random(f"{seed}/{number}").shuffle(chosen)
        yield from chosen
