"""The pages about pipelines agree with the help and the code."""

from __future__ import annotations

import re
from pathlib import Path

import click
from support.goldens import check_golden
from support.pipeline_page import with_reference

from corral._cli import pipeline as pipeline_group
from corral._cli import worker
from corral._cli.command_types import LazyGroup
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


def test_the_reference_has_every_node_type_attribute_and_rule() -> None:
    page = ROOT / "docs" / "pipeline-reference.md"
    check_golden(page, with_reference(page.read_text("utf-8")))


def test_every_option_says_what_it_does() -> None:
    for command in (*commands().values(), worker.command):
        assert command.help, command.name
        for option in command.params:
            assert not isinstance(option, click.Option) or option.help, (command.name, option.name)


def test_every_link_has_a_target() -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
