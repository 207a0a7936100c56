"""Commands whose ``--help`` groups the options in sections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

C = TypeVar("C", bound=Callable[..., object])

SECTIONS = (
    *("Prompt", "Agent", "Permissions", "Limits", "Session", "Execution", "Output"),
    *("Tests", "Other"),
)
"""In the order of ``--help``."""
WIDEST = 28
"""Characters of the widest flag beside which its description stands."""


class SectionOption(click.Option):
    """An option that knows its section."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Decorator(Protocol):
    """Adds an option to a command."""

    def __call__(self, function: C, /) -> C: ...


def option(section: str, *flags: str, **kwargs: Any) -> Decorator:
    """``click.option`` in a section."""
    return click.option(*flags, cls=SectionOption, section=section, **kwargs)


def _set_verbosity(_: click.Context, __: click.Parameter, count: int) -> None:
    if count:
        from corral.system import logs

        logs.log_to_stderr(logs.LEVELS["debug" if count > 1 else "info"])


VERBOSE = option(
    "Output",
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_set_verbosity,
    help="Log what happens to stderr; -vv logs everything.",
)


class SectionedCommand(click.Command):
    """A command whose options have sections. It has ``--verbose``, as ``corral`` itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        VERBOSE(self)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for each in self.get_params(ctx):
            shown = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if shown is not None:
                section = each.section if isinstance(each, SectionOption) else SECTIONS[-1]
                rows[section].append(shown)
        lengths = [len(flag) for shown in rows.values() for flag, _ in shown]
        width = min(WIDEST, max(lengths))
        for name, shown_rows in rows.items():
            if shown_rows:
                with formatter.section(name):
                    aligned = [(flag.ljust(width), text) for flag, text in shown_rows]
                    formatter.write_dl(aligned, col_max=WIDEST)
