"""The page about pipelines agrees with the help and the code."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from corral._cli import pipeline as pipeline_group
from corral._cli import worker
from corral._cli.command_types import LazyGroup
from corral._option_definitions import DEFINITIONS
from corral._pipelines import node_kinds
from corral._pipelines.attribute_definitions import SETTINGS
from corral._pipelines.linter.engine import lint
from corral._pipelines.loader import load

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pipelines.md").read_text("utf-8")


def group() -> LazyGroup:
    assert isinstance(pipeline_group.command, LazyGroup)
    return pipeline_group.command


def commands() -> dict[str, click.Command]:
    context = click.Context(group())
    found = {name: group().get_command(context, name) for name in pipeline_group.COMMANDS}
    return {name: command for name, command in found.items() if command is not None}


def test_the_pipelines_in_the_docs_have_no_findings() -> None:
    blocks = re.findall(r"```dot\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for text in blocks:
        own = {
            f"no node type is called {kind!r}" for kind in re.findall(r'@handler\("(.+?)"\)', PAGE)
        }
        found = [str(finding) for finding in lint(load(text))]
        assert [each for each in found if not any(name in each for name in own)] == []


def test_every_shape_and_type_is_on_the_page() -> None:
    for shape, kind in node_kinds.SHAPES.items():
        assert f"| `{shape}` | `{kind}` |" in PAGE
    for kind in node_kinds.PUBLIC:
        assert f"`{kind}`" in PAGE, kind


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_command_is_on_the_page_and_loads() -> None:
    assert list(commands()) == list(pipeline_group.COMMANDS)
    for name in commands():
        assert f"corral pipeline {name}" in PAGE, name


@pytest.mark.parametrize("name", ["run", "resume", "fork"])
def test_every_option_that_matters_is_on_the_page(name: str) -> None:
    documented = {"--agent", "--quiet", "--help", "--reason", *re.findall(r"--[a-z-]+", PAGE)}
    assert "see [the command line](command-line.md)" in PAGE
    documented |= {"--policy", "--allow-tool", "--deny-tool", "--allow-host"}
    flags = [flag for option in DEFINITIONS for flag in option.flags]
    documented |= {name for flag in flags for name in flag.split("/")}
    for option in commands()[name].params:
        if isinstance(option, click.Option):
            assert documented & {*option.opts}, option.name


def test_every_option_says_what_it_does() -> None:
    for command in (*commands().values(), worker.command):
        assert command.help, command.name
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, (command.name, option.name)


def test_every_link_has_a_target() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
