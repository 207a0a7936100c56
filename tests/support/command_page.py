"""The reference of the commands in docs/command-line.md, made of the commands themselves."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator

import click

from corral._cli.chat import COMMANDS as IN_CHAT
from corral._cli.command_types import SECTIONS, SectionedGroup, SectionOption
from corral._cli.options import EVERYWHERE

BEGIN, END = "<!-- made of the commands -->", "<!-- end -->"
SHARED = {
    *EVERYWHERE,
    *("agent", "approve", "policy_file", "allow_tool", "deny_tool", "allow_host"),
}
"""Parameters of the options of agents."""


def with_commands(page: str, root: click.Group) -> str:
    """The page with a section for each command, between the two marks."""
    before, _, rest = page.partition(BEGIN)
    made = "\n\n".join(_sections(root))
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def commands(group: click.Group, path: str = "corral") -> Iterator[tuple[str, click.Command]]:
    """Every command with its path, after the groups that it is in."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if found.hidden:
            continue
        yield f"{path} {name}", found
        if isinstance(found, click.Group):
            yield from commands(found, f"{path} {name}")


def _sections(root: click.Group) -> Iterator[str]:
    found = dict(commands(root))
    run = found["corral run"]
    for path, each in found.items():
        yield f"{'#' * len(path.split())} {path}"
        words = " ".join(each.collect_usage_pieces(click.Context(each)))
        is_list = isinstance(each, click.Group) and not isinstance(each, SectionedGroup)
        if not is_list:
            yield f"`{path} {words}`"
        yield help_as_markdown(each.help or "")
        if path == "corral chat":
            rows = (
                f"| `/{c.name} {c.argument}`".replace(" `", "`") + f" | {c.help} |" for c in IN_CHAT
            )
            yield "\n".join(["| in the chat | |", "|---|---|", *rows])
        if not is_list:
            yield from _options(each, run)
        if path == "corral run":
            yield _options_of_agents(found)
        if lines := examples_of(each):
            yield "\n".join(["```sh", *lines, "```"])


def examples_of(command: click.Command) -> list[str]:
    """The examples at the end of its ``--help``."""
    head, *lines = (command.epilog or "").removeprefix("\b\n").splitlines() or [""]
    return [line.strip() for line in lines] if head == "Examples:" else []


def _options_of_agents(found: dict[str, click.Command]) -> str:
    having = [path.removeprefix("corral ") for path, each in found.items() if has_shared(each)]
    flags = [f"`{each.opts[-1]}`" for each in found["corral run"].params if each.name in SHARED]
    return (
        "### Options of agents\n\n"
        f"{', '.join(f'`{each}`' for each in having[:-1])} and `{having[-1]}` have these options of"
        f" `run`, with the same meaning: {', '.join(flags)}."
    )


def has_shared(command: click.Command) -> bool:
    """Whether it has most options of agents: the others are named."""
    return len(SHARED & {each.name for each in command.params}) > len(SHARED) / 2


def _options(command: click.Command, run: click.Command) -> Iterator[str]:
    options = [each for each in command.params if isinstance(each, click.Option)]
    is_short = command is not run and has_shared(command)
    of_run = {each.name: each for each in run.params if isinstance(each, click.Option)}

    def is_as_in_run(option: click.Option) -> bool:
        other = of_run.get(option.name)
        return other is not None and option.name in SHARED and option.help == other.help

    shown = [each for each in options if not each.hidden and not (is_short and is_as_in_run(each))]
    if shown:
        yield "\n".join(["| option | |", "|---|---|", *_rows(command, shown)])
    if is_short:
        left_out = sorted(
            f"`{of_run[name].opts[-1]}`" for name in SHARED - {each.name for each in options}
        )
        rest = f", except {', '.join(left_out)}" if left_out else ""
        yield f"Also the [options of agents](#options-of-agents){rest}."


def _rows(command: click.Command, options: list[click.Option]) -> Iterator[str]:
    context = click.Context(command)
    sections: dict[str, list[click.Option]] = {name: [] for name in SECTIONS}
    for each in options:
        name = each.section if isinstance(each, SectionOption) else SECTIONS[-1]
        sections[name].append(each)
    has_titles = len(options) > 20
    for name, listed in sections.items():
        if listed and has_titles:
            yield f"| **{name}** | |"
        for each in listed:
            flags, text = each.get_help_record(context) or ("", "")
            yield f"| `{_escaped(flags)}` | {_with_links(_escaped(_text(text)))} |"


def _text(text: str) -> str:
    """The help of an option, with its default as a sentence."""
    text, _, rest = text.partition("  [")
    notes = [note for note in rest.removesuffix("]").split("; ") if not re.search(r"[<>]=?", note)]
    return " ".join([text, *(f"{note[0].upper()}{note[1:]}." for note in notes if note)]).strip()


def _with_links(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", text)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def help_as_markdown(text: str) -> str:
    """The help of a command: its paragraphs, and those after ``\\b`` as they are, except lists of
    exit codes."""
    shown: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if not paragraph.startswith("\b"):
            shown.append(_with_links(" ".join(paragraph.split())))
        elif "xit codes:" in paragraph:
            shown.append(" ".join(paragraph.removeprefix("\b").split()))
        else:
            lines = textwrap.dedent(paragraph.removeprefix("\b\n"))
            language = "sh" if re.search(r"^corral ", lines, re.M) else "text"
            shown.append(f"```{language}\n{lines}\n```")
    return "\n\n".join(filter(None, shown))
