"""Checks of the values of attributes: counts, durations, booleans, numbers and fixed choices."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import lru_cache

from corral.core.durations import seconds
from corral.pipelines import templates
from corral.pipelines.graph import Value
from corral.pipelines.linter.finding import Problem

COUNTS = {
    "max_retries": 0,
    "default_max_retries": 0,
    "default_max_retry": 0,
    "max_visits": 1,
    "max_node_visits": 1,
    "default_max_visits": 1,
    "max_parallel": 1,
    "manager.max_cycles": 1,
}
"""Whole numbers, and the smallest value of each."""
DURATIONS = frozenset(("timeout", "human.timeout", "manager.poll_interval", "duration"))
BOOLEANS = frozenset(
    ("goal_gate", "auto_status", "allow_partial", "loop_restart", "stack.child_autostart")
)
CHOICES: dict[str, tuple[str, ...]] = {
    "join_policy": ("wait_all", "first_success"),
    "error_policy": ("fail", "continue"),
    "verdict": ("on", "off"),
    "on_crash": ("rerun", "fail", "resume"),
}
NUMBERS = frozenset(("weight",))
CHECKED = frozenset((*COUNTS, *DURATIONS, *BOOLEANS, *CHOICES, *NUMBERS))


@lru_cache(4096)
def check_value(key: str, _type: str, value: Value) -> Problem | None:
    """What is wrong with the value of an attribute in ``CHECKED``, and what to do about it.
    ``_type`` keeps ``1`` and ``True`` apart in the cache."""
    if isinstance(value, str) and (name := next(templates.placeholders(value), None)):
        return f"{name} has no value", f"Set {name} when you run the pipeline."
    shown = repr(value) if isinstance(value, str) else str(value).lower()
    check = next(check for keys, check in _CHECKS if key in keys)
    problem = check(key, value)
    return None if problem is None else (f"{shown} {problem[0]}", problem[1])


def _check_count(key: str, value: Value) -> Problem | None:
    number = _number(value, integer=True)
    if number is None:
        return "is not a whole number", f"Write {key}={max(1, COUNTS[key])}."
    return None if number >= COUNTS[key] else ("is too small", f"It is {COUNTS[key]} or more.")


def _check_duration(key: str, value: Value) -> Problem | None:
    try:
        is_valid = value == "" or seconds(value) > 0 or key == "manager.poll_interval"
    except ValueError:
        is_valid = False
    return None if is_valid else ("is not a duration", "Write 500ms, 30s, 15m, 2h or 1d.")


def _check_boolean(key: str, value: Value) -> Problem | None:
    if value not in (True, False, "true", "false", "") or type(value) in (int, float):
        return "is neither true nor false", f"Write {key}=true."
    return None


def _check_choice(key: str, value: Value) -> Problem | None:
    choices = CHOICES[key]
    return None if value in choices else ("is invalid", f"One of {', '.join(choices)}.")


def _check_number(key: str, value: Value) -> Problem | None:
    if _number(value, integer=False) is None:
        return "is not a number", f"Write {key}=1."
    return None


_CHECKS: tuple[tuple[Container[str], Callable[[str, Value], Problem | None]], ...] = (
    (COUNTS, _check_count),
    (DURATIONS, _check_duration),
    (BOOLEANS, _check_boolean),
    (CHOICES, _check_choice),
    (NUMBERS, _check_number),
)


def _number(value: Value, *, integer: bool) -> float | None:
    """The number that ``Node.number`` or ``Edge.weight`` will read."""
    if isinstance(value, bool) or (integer and isinstance(value, float)):
        return None
    try:
        number = int(value) if integer else float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 else None
