"""The options of a run as flags: the same names, short forms and help in every command.

A command names the options that it has (``run_options``); what is known of each stands in
``corral.option_definitions``. The name of the click parameter is the name of the option, so the
values of a command are the options of its run (``read_options``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.cli.options import (
    DURATION,
    PolicyFlags,
    choose_policy,
    completing,
    given_options,
)
from corral.cli.sections import Decorator, option
from corral.option_definitions import BY_NAME, DEFINITIONS, Definition, Kind
from corral.values import is_sequence

if TYPE_CHECKING:
    from corral.run_kwargs import RunKwargs

    class RunFlags(PolicyFlags, RunKwargs):
        """The options of ``corral run``."""

        session: str | None
        session_idle: float | None
        schema: str | None
        fail_on: tuple[str, ...]
        full_result: bool
        as_json: bool
        quiet: bool
        dry_run: bool


C = TypeVar("C", bound=Callable[..., object])

ALL = tuple(each.name for each in DEFINITIONS if each.flags)
"""The options that have a flag."""
EVERYWHERE = tuple(each.name for each in DEFINITIONS if "every_command" in each.traits)
"""The options of every command that runs agents."""
_COMPLETED = {"model": "models", "resume": "sessions"}
"""Option → the function of ``corral.cli.completion`` that completes its value."""
_ARGUMENTS: Mapping[Kind, dict[str, Any]] = {
    "text": {},
    "texts": {"multiple": True},
    "path": {"type": click.Path()},
    "paths": {"type": click.Path(), "multiple": True},
    "duration": {"type": DURATION},
    "count": {"type": int},
    "amount": {"type": float},
    "on": {"is_flag": True},
    "switch": {"default": None},
}
_EMPTY = ("on", "texts", "paths")
"""Kinds of which click passes False or an empty tuple if the flag is not given, not None."""


def run_options(
    names: Iterable[str],
    *,
    texts: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
) -> Decorator:
    """Add the flags of these options. ``texts`` and ``defaults``: what differs in this command."""
    other_texts, other_defaults = texts or {}, defaults or {}
    found = [
        _flag(BY_NAME[name], help_text(name, other_texts.get(name), other_defaults.get(name)))
        for name in names
    ]

    def decorate(function: C) -> C:
        for each in reversed(found):
            function = each(function)
        return function

    return decorate


def _flag(defined: Definition, text: str) -> Decorator:
    arguments = dict(_ARGUMENTS[defined.kind])
    if defined.choices:
        arguments["type"] = click.Choice(defined.choices)
    if defined.name in _COMPLETED:
        arguments["shell_complete"] = completing(_COMPLETED[defined.name])
    if defined.value:
        arguments["metavar"] = defined.value
    return option(defined.section, *defined.flags, defined.name, help=text, **arguments)


def help_text(name: str, text: str | None = None, default: str | None = None) -> str:
    """The help of an option's flag."""
    defined = BY_NAME[name]
    text = text or defined.text
    if _ARGUMENTS[defined.kind].get("multiple"):
        text = f"{text.removesuffix('.')} (repeatable)."
    default = default or defined.default
    return f"{text}  [default: {default}]" if default else text


def read_options(flags: PolicyFlags) -> RunKwargs:
    """The options that were given, of all values of a command; configuration applies to the
    others. Their types are checked when the run is prepared. Raises ``ConfigError``."""
    values: Mapping[str, object] = flags
    given: dict[str, object] = {}
    for name in ALL:
        value = values.get(name)
        if is_sequence(value):
            value = list(value)
        given[name] = value if value or BY_NAME[name].kind not in _EMPTY else None
    given["policy"] = choose_policy(flags)
    return given_options(given)
