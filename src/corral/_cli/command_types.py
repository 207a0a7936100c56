"""What commands are made of: options in sections of ``--help``, groups whose commands are imported
when they are called, and garbage collection, which is off while a command loads and on while it
works."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    NumberType = click.ParamType[float]
else:
    NumberType = click.ParamType  # generic since click 8.4


C = TypeVar("C", bound=Callable[..., object])

SECTIONS = (
    *("Prompt", "Agent", "Permissions", "Limits", "Session", "Execution"),
    *("Verification", "Callers", "Server", "Output", "Tests", "Other"),
)
"""In the order of ``--help``."""
WIDEST = 28
"""Characters of the widest flag beside which its description stands."""


class SectionOption(click.Option):
    """An option that knows its section."""

    def __init__(
        self, *args: Any, section: str, bare: str = "", is_rare: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.is_rare = is_rare
        """Only ``--help-all`` shows it."""
        self.bare = bare
        """The value if the flag is given without ``=VALUE``; empty: it needs a value."""


class Decorator(Protocol):
    """Adds an option to a command."""

    def __call__(self, function: C, /) -> C: ...


class Duration(NumberType):
    """A duration in seconds, written as ``90``, ``30s``, ``5m`` or ``1h30m``."""

    name = "duration"

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from corral._core.durations import seconds

        try:
            return seconds(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()

_TYPES: Mapping[str, click.ParamType[Any]] = {
    **dict.fromkeys(("FILE", "DIR", "PATH"), click.Path()),
    **dict.fromkeys(("TIME", "DURATION"), DURATION),
    "USD": click.FLOAT,
}
"""The types of values, by the words that stand for them."""


def option(section: str, spec: str, help: str, **settings: Any) -> Decorator:
    """``plain_option`` in a section of ``--help``."""
    return plain_option(spec, help, cls=SectionOption, section=section, **settings)


def plain_option(spec: str, help: str, **settings: Any) -> Decorator:
    """``click.option``. ``spec`` has the flags, the name of the parameter if it is another one, and
    the word that stands for the value in ``--help``, with ``...`` if the option is repeatable.
    Without a value, a type and a default it is a switch. A default that ``help`` does not name is
    shown."""
    *names, value = spec.split()
    if value[0] == "-" or value[0].islower():
        names, value = [*names, value], ""
    if value.endswith("..."):
        value, settings["multiple"] = value.removesuffix("..."), True
    if settings.get("multiple") and "repeatable" not in help:
        text, gap, default = help.partition("  [default")
        help = f"{text.removesuffix('.')} (repeatable).{gap}{default}"
    if value:
        settings = {"metavar": value, "type": _TYPES.get(value), **settings}
    elif not settings.keys() & {"type", "default", "count"}:
        settings["is_flag"] = True
    if settings.get("default") and "[default" not in help:
        settings.setdefault("show_default", True)
    return click.option(*names, help=help, **settings)


def all_of(options: Iterable[Decorator]) -> Decorator:
    """Adds several options, in this order."""
    listed = [*options]

    def decorate(function: C) -> C:
        for add in reversed(listed):
            function = add(function)
        return function

    return decorate


def _set_verbosity(_: click.Context, __: click.Parameter, count: int) -> None:
    if count:
        from corral._system import logs

        logs.log_to_stderr(logs.LEVELS["debug" if count > 1 else "info"])


VERBOSE = option(
    "Output",
    "-v --verbose",
    "Log what happens to stderr; -vv logs everything.",
    count=True,
    expose_value=False,
    callback=_set_verbosity,
)


def examples(*lines: str) -> str:
    """The end of a command's ``--help``."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


ALL_OPTIONS = "corral.all_options"
"""The key of the context that says that ``--help`` leaves nothing out."""


def _show_all_options(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        from corral._cli.ui.terminal import echo

        context.meta[ALL_OPTIONS] = True
        echo(context.get_help())
        context.exit()


HELP_ALL = option(
    "Other",
    "--help-all",
    "Show all options.",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_options,
)


class SectionedCommand(click.Command):
    """A command whose options have sections. It has ``--verbose``, as ``corral`` itself, and
    ``--help-all`` if ``--help`` leaves out some of its options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        VERBOSE(self)
        if any(map(_is_rare, self.params)):
            HELP_ALL(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # click would take the next argument as the value of a flag whose value is optional.
        options = [each for each in self.params if isinstance(each, SectionOption) and each.bare]
        bare = {flag: f"{flag}={each.bare}" for each in options for flag in each.opts}
        return super().parse_args(ctx, [bare.get(arg, arg) for arg in args])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        left_out = 0
        for each in self.get_params(ctx):
            if _is_rare(each) and ALL_OPTIONS not in ctx.meta:
                left_out += 1
                continue
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
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {ctx.command_path} --help-all")


def _is_rare(parameter: click.Parameter) -> bool:
    return isinstance(parameter, SectionOption) and parameter.is_rare


class SectionedGroup(SectionedCommand, click.Group):
    """The first argument selects a subcommand if it is the name of one; otherwise the command
    itself runs. After ``--`` it is never a subcommand."""

    allow_extra_args = False
    allow_interspersed_args = True

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        found = self.commands.get(args[0]) if args else None
        if found is None:
            return super().make_context(info_name, args, parent, **extra)
        return found.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Command.parse_args(self, ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        return click.Command.invoke(self, ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return click.Command.collect_usage_pieces(self, ctx)


class LazyGroup(click.Group):
    table: Mapping[str, tuple[str, str]] = {}
    """Name → (module, help text). The command is the module's ``command``; with ``module:name``,
    the attribute ``name``."""
    sections: Mapping[str, tuple[str, ...]] = {}
    """The names of commands under their headings in ``--help``; empty: all under *Commands*."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, name = self.table[cmd_name][0].partition(":")
        found: click.Command = getattr(import_module(module), name or "command")
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands that begin with what was typed, without importing them."""
        from click.shell_completion import CompletionItem

        options = click.Command.shell_complete(self, ctx, incomplete)
        found = (each for each in self.table.items() if each[0].startswith(incomplete))
        return [*(CompletionItem(name, help=text) for name, (_, text) in found), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.table))
        for heading, names in (self.sections or {"Commands": tuple(self.table)}).items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), self.table[name][1]) for name in names])


def enable_gc() -> None:
    """Loading is done, and the run may be long. What is loaded stays: it is not examined again."""
    gc.freeze()
    gc.enable()
