"""Every ``corral …`` in an error, a hint, the help or the docs is a command that exists, with
options that it has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._cli.main import command
from corral._system import config, programs

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "corral").rglob("*.py"))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
QUOTED = r"`(?:\$ )?corral ([^`\n]+)`"
"""In backticks it is a command, whatever its first word."""
_CONTEXT = click.Context(command)
GROUPS = "|".join(
    name
    for name in command.list_commands(_CONTEXT)
    if isinstance(command.get_command(_CONTEXT, name), click.Group) and name != "runs"
)
_RUNS = command.get_command(_CONTEXT, "runs")
assert isinstance(_RUNS, click.Group)
# ``corral runs`` is also what a sentence says.
GROUPS += f"|runs (?:{'|'.join(_RUNS.list_commands(_CONTEXT))})"
NAMED = rf"(?:\bRun: corral |\bWrite corral |`corral |\bcorral (?=(?:{GROUPS}) ))([^`\n]+)"
WORD = r"[a-z][a-z-]*"


def texts(source: str) -> Iterator[str]:
    """The texts of a module, with X for what is computed. Keys of tables are left out: they may be
    mistakes of users."""
    nodes = [*ast.walk(ast.parse(source))]
    keys = {id(key) for node in nodes if isinstance(node, ast.Dict) for key in node.keys}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in keys:
            yield str(node.value)


def problem(text: str) -> str | None:
    """What is wrong with the words after ``corral``."""
    target: click.Command = command
    words = text.split()
    while (
        isinstance(target, click.Group) and words and re.fullmatch(WORD, words[0].rstrip(".,:;)"))
    ):
        name = words.pop(0).rstrip(".,:;)")
        context = click.Context(target)
        chosen = target.get_command(context, name)
        if chosen is None or name not in target.list_commands(context):
            return f"{target.name} has no command {name!r}"
        target = chosen
    known = {flag for option in target.params for flag in (*option.opts, *option.secondary_opts)}
    unquoted = re.sub(r"'[^']*'", "''", " ".join(words))  # such as the command of an agent
    given = re.findall(r"(?<![\w-])--[a-z][a-z-]*", unquoted)
    unknown = [flag for flag in given if flag not in known | {"--help", "--version"}]
    return f"{target.name} has no {', '.join(unknown)}" if unknown else None


def wrong_commands(text: str, pattern: str) -> list[str]:
    named = set(re.findall(pattern, text))
    return [f"corral {each}: {why}" for each in sorted(named) if (why := problem(each))]


def test_a_wrong_command_is_noticed() -> None:
    assert wrong_commands("Run: corral agents repair NAME", NAMED)
    assert wrong_commands("`corral frobnicate`", QUOTED)
    assert wrong_commands("`corral agents list --frobnicate`", QUOTED)
    assert not wrong_commands("`corral agents check 'CMD' --env NAME=VALUE`", QUOTED)


@pytest.mark.deep
def test_errors_hints_and_help_name_commands_that_exist() -> None:
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in SOURCES
        if (
            found := [
                each for text in texts(path.read_text()) for each in wrong_commands(text, NAMED)
            ]
        )
    }
    assert wrong == {}


@pytest.mark.parametrize("agent", [*registry.all_agents()], ids=lambda agent: agent.name)
def test_the_command_that_installs_an_agent_finds_it(agent: AgentSpec) -> None:
    if agent.package.name:
        words = programs.install_command(agent).split()
        assert words[:3] == ["corral", "agents", "install"]
        assert config.find_agent(words[3]).package == agent.package


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_commands_that_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    assert wrong_commands(re.sub(r"\s*\n\s*", " ", prose), QUOTED) == []
