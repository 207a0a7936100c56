"""The options of a run are defined once, in ``RunOptions``; every other list of them equals it."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

import click
import pytest
from support.command_page import with_commands
from support.goldens import check_golden
from support.option_docs import with_docstrings, with_tables

import corral
from corral._cli import batch, chat, compare, main
from corral._cli import run as run_command
from corral._cli.command_types import ALL_OPTIONS, SECTIONS
from corral._cli.options import EVERYWHERE, PolicyFlags, help_text, read_options
from corral._cli.pipeline import run as pipeline_run
from corral._core import durations
from corral._option_definitions import BY_NAME, DEFINITIONS, Definition, with_trait
from corral._pipelines.execution import node_options
from corral._pipelines.execution.handlers import NodeContext, NodeResources
from corral._pipelines.graph import Graph, Node, Value
from corral._pipelines.scheduler.commands import RunNode
from corral._sessions.prepare import COMMON
from corral._system import config
from corral.options import COMPUTED, DURATIONS, KNOWN, SPELLINGS, RunOptions
from corral.policy import Policy
from corral.run_kwargs import PromptKwargs, RunKwargs

ROOT = Path(__file__).parents[1]
FIELDS = set(RunOptions.__struct_fields__) - set(COMPUTED)
DEFAULTS = dict(
    zip(
        RunOptions.__struct_fields__[-len(RunOptions.__struct_defaults__) :],
        RunOptions.__struct_defaults__,
        strict=True,
    )
)

NODE_VALUES: dict[Any, str] = {
    float: "7",
    int: "7",
    ("list", str): "PATH",
    frozenset({float, str}): "7m",
}
"""Type of an option → a value of the node attribute that sets it."""


def test_every_list_of_option_names_equals_the_record() -> None:
    assert set(KNOWN) == FIELDS | set(SPELLINGS)
    assert set(RunKwargs.__annotations__) == set(KNOWN)


def normalized(hint: Any) -> Any:
    """A type without what callers may write instead: None, paths, any sequence or mapping."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return frozenset(arguments)
    if origin in (Union, types.UnionType):
        kinds = {normalized(each) for each in arguments if each is not type(None)}
        kinds -= {"path"}
        if len(kinds) > 1:  # a struct, or the table that becomes one
            kinds -= {"table"}
        return kinds.pop() if len(kinds) == 1 else frozenset(kinds)
    kind: Any = origin or hint
    if inspect.isclass(kind):
        if issubclass(kind, tuple | list) or kind.__name__ == "Sequence":
            return "list", normalized(arguments[0])
        if issubclass(kind, dict) or kind.__name__ == "Mapping":
            return "table"
        if kind.__name__ == "PathLike":
            return "path"
    return hint


FROM_TEXT = {"policy", "mcp_servers", "verify"}
"""Options whose values are records, and which may be given as text."""


@pytest.mark.parametrize("name", sorted(FIELDS - FROM_TEXT))
def test_a_keyword_has_the_type_of_its_field(name: str) -> None:
    field = typing.get_type_hints(RunOptions)[name]
    keyword = typing.get_type_hints(RunKwargs)[name]
    as_text = frozenset({float, str}) if name in DURATIONS else None  # such as "5m"
    assert normalized(keyword) == (as_text or normalized(field))


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_number_is_defined_as_one(name: str) -> None:
    hint = normalized(typing.get_type_hints(RunOptions)[name])
    assert (hint in (int, float)) == (BY_NAME[name].kind in ("duration", "count", "amount"))


def test_every_option_is_defined() -> None:
    assert sorted(each.name for each in DEFINITIONS) == sorted(KNOWN)
    assert {each.section for each in DEFINITIONS} <= set(SECTIONS)


def parameters(command: click.Command) -> dict[str, click.Parameter]:
    return {each.name: each for each in command.params}


@pytest.mark.parametrize("defined", DEFINITIONS, ids=lambda each: each.name)
def test_a_definition_has_the_choices_and_the_default_of_the_field(defined: Definition) -> None:
    if defined.name in SPELLINGS or defined.name in FROM_TEXT:
        return
    hint = normalized(typing.get_type_hints(RunOptions)[defined.name])
    if defined.choices:
        assert frozenset(defined.choices) == hint
    kinds = {"duration": float, "count": int, "amount": float, "on": bool, "switch": bool}
    if defined.flags and not defined.choices:
        many = ("list", str) if defined.kind in ("texts", "paths") else str
        assert kinds.get(defined.kind, many) == hint
    default = DEFAULTS[defined.name]
    if isinstance(default, bool):
        assert defined.default == ("on" if default else "off" if defined.default else "")
    elif isinstance(default, float):
        assert durations.seconds(defined.default) == default
    elif isinstance(default, int | str):
        assert defined.default == str(default)


@pytest.mark.parametrize(
    "defined", [each for each in DEFINITIONS if each.flags], ids=lambda e: e.name
)
def test_a_flag_sets_the_option_of_its_definition(defined: Definition) -> None:
    words: list[tuple[list[str], object]] = []
    flag = defined.flags[-1].partition("/")
    if defined.kind in ("on", "switch"):
        words.append(([flag[0]], True))
        words += [([flag[2]], False)] if flag[2] else []
    else:
        values: dict[str, tuple[str, object]] = {
            "duration": ("1h30m", 5400.0),
            "count": ("7", 7),
            "amount": ("0.5", 0.5),
            "texts": ("x", ["x"]),
            "paths": ("x", ["x"]),
        }
        text, value = values.get(defined.kind, (defined.choices or ("x",))[:1] * 2)
        words += [([name, text], value) for name in (*defined.flags[:-1], flag[0])]
    for given, expected in words:
        context = run_command.command.make_context("run", list(given))
        assert read_options(cast("PolicyFlags", context.params)) == {defined.name: expected}
    nothing = run_command.command.make_context("run", [])
    assert read_options(cast("PolicyFlags", nothing.params)) == {}


COMMANDS = {
    "run": run_command.command,
    "chat": chat.command,
    "batch": batch.command,
    "compare": compare.command,
    "pipeline run": pipeline_run.run,
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_flag_means_the_same_in_every_command(name: str) -> None:
    """Also the flags that are no options of a run, such as --json and --quiet."""
    of_run, here = parameters(COMMANDS["run"]), parameters(COMMANDS[name])
    policy = {"approve", "policy_file", "allow_tool", "deny_tool", "allow_host"}
    without = {"program"} if name == "compare" else set[str]()  # it has several agents
    assert {*EVERYWHERE, *policy, "agent"} - without <= set(here)
    for each in (each for each in here.values() if each.name in of_run):
        other = of_run[each.name]
        if not (isinstance(each, click.Option) and isinstance(other, click.Option)):
            continue
        assert (each.opts, each.secondary_opts) == (other.opts, other.secondary_opts), each.name
        assert type(each.type) is type(other.type), each.name
        if isinstance(each.type, click.Choice) and isinstance(other.type, click.Choice):
            assert each.type.choices == other.type.choices, each.name
    shorts = {flag: each.name for each in of_run.values() for flag in each.opts if len(flag) == 2}
    for each in here.values():
        for flag in each.opts:
            assert shorts.get(flag, each.name) == each.name, f"{flag} has another meaning in run"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_the_text_of_each_option_below_its_section(name: str) -> None:
    command = COMMANDS[name]
    wide = click.Context(command, info_name=name, max_content_width=9_999, terminal_width=9_999)
    wide.meta[ALL_OPTIONS] = True
    shown = wide.get_help()
    sections: dict[str, str] = {}
    for part in re.split(r"\n(?=[A-Z][a-z]+:\n)", shown)[1:]:
        title, _, body = part.partition(":\n")
        sections[title] = body
    assert list(sections) == [each for each in SECTIONS if each in sections]
    for option in (BY_NAME[each] for each in EVERYWHERE if each in parameters(command)):
        expected = help_text(
            option.name, TEXTS.get((name, option.name)), DEFAULTS_OF.get((name, option.name))
        )
        assert expected in sections[option.section], option.name


def test_the_tables_of_options_have_the_text_of_each_option() -> None:
    page = ROOT / "docs/configuration.md"
    check_golden(page, with_tables(page.read_text("utf-8")))


def test_the_page_about_the_command_line_has_the_help_of_each_command() -> None:
    page = ROOT / "docs/command-line.md"
    check_golden(page, with_commands(page.read_text("utf-8"), main.command))


def test_the_docstring_of_each_keyword_is_the_text_of_its_option() -> None:
    source = ROOT / "src/corral/run_kwargs.py"
    check_golden(source, with_docstrings(source.read_text("utf-8")))


TEXTS = {
    ("batch", "max_cost"): "For the complete batch: the most that the model calls may cost.",
    ("batch", "max_total_tokens"): "For the complete batch: the most tokens that the model calls"
    " may use.",
    ("batch", "max_calls"): "For the complete batch: the most model calls.",
    ("pipeline run", "max_cost"): "For the complete run: the most that the model calls may cost.",
    ("pipeline run", "max_total_tokens"): "For the complete run: the most tokens that the model"
    " calls may use.",
    ("pipeline run", "max_calls"): "For the complete run: the most model calls.",
    ("compare", "max_cost"): "A limit on the cost of the complete comparison; when it is"
    " spent, no further attempt is started.",
    ("compare", "timeout"): "Time for each attempt; after that it is verified as it is.",
}
DEFAULTS_OF = {
    ("batch", "timeout"): "1h",
    ("pipeline run", "timeout"): "1h",
    ("compare", "timeout"): "1h",
}
"""What differs from the definition in one command."""


def keywords(function: Callable[..., Any]) -> set[str]:
    every = inspect.signature(function).parameters.values()
    return {each.name for each in every if each.kind is each.KEYWORD_ONLY}


def test_options_of_a_prompt_are_options_of_a_run() -> None:
    assert keywords(corral.Session.prompt) == {*with_trait("prompt"), "output"}
    assert PromptKwargs.__annotations__.keys() == with_trait("prompt")
    assert with_trait("pool_prompt") <= FIELDS


def test_no_option_has_the_name_of_a_parameter_of_run() -> None:
    """One word, one meaning: ``run(...)`` has its own parameters beside the options."""
    own = keywords(corral.run) | {"agent", "prompt"}
    assert "budget" in own
    assert not own & set(KNOWN)


def test_an_untrusted_file_sets_only_options_that_exist() -> None:
    assert config.UNTRUSTED_OPTIONS <= FIELDS


def test_every_option_is_supported_by_some_agent() -> None:
    supported = set(COMMON)
    for agent in config.all_agents():
        supported |= agent.supports
        assert agent.supports <= FIELDS, agent.name
    assert supported == FIELDS


def options_of_node(
    folder: Path,
    attributes: dict[str, Value],
    resources: NodeResources | None = None,
    agent: str = node_options.BUILT_IN,
) -> dict[str, object]:
    node = Node("n", attributes)
    context = NodeContext(
        run_id="",
        graph=Graph("g", {}, {"n": node}),
        node=node,
        visit=RunNode(id="", node="n", number=0, context={}),
        attempt=0,
        folder=folder,
        run_folder=folder,
        workspace=folder,
        resources=resources or NodeResources(),
    )
    options, _notes = node_options.options_of(context, agent)
    return {**options}


def test_attributes_of_a_node_win_over_the_options_of_the_run(tmp_path: Path) -> None:
    given: RunKwargs = {"timeout": 90.0, "max_turns": 3, "program": "/bin/x", "idle_timeout": 7.0}
    resources = NodeResources(agent="gemini", options=given)
    here = options_of_node(tmp_path, {"max_turns": "5"}, resources, "gemini-acp")
    assert (here["timeout"], here["max_turns"], here["idle_timeout"]) == (90.0, 5, 7.0)
    assert here["program"] == "/bin/x"
    other = options_of_node(tmp_path, {"timeout": "2m"}, resources, "gemini-cli")
    assert (other["timeout"], other["max_turns"]) == (120.0, 3)
    assert "program" not in other, "the program is that of the default agent"
    assert options_of_node(tmp_path, {})["timeout"] == node_options.TIMEOUT


def node_value(option: str) -> str:
    """A valid value for a node attribute, from the type of the option with that name."""
    if option == "on_limit":
        return "wait"
    hint = normalized(typing.get_type_hints(RunKwargs)[option])
    if isinstance(hint, frozenset) and hint not in NODE_VALUES:
        return "reads" if Policy in hint else "auto" if "auto" in hint else "high"
    return NODE_VALUES.get(hint, "x")


def test_node_attributes_set_the_options_with_their_names(tmp_path: Path) -> None:
    unset = options_of_node(tmp_path, {})
    set_by_attributes: set[str] = set()
    for option in KNOWN:
        found = options_of_node(tmp_path, {option: node_value(option)})
        changed = {name for name in found if found[name] != unset.get(name)}
        assert changed <= {option, "policy"}, option
        set_by_attributes |= {option} if changed else set()
    assert set_by_attributes == with_trait("node")


def test_a_policy_is_given_as_a_record_or_a_preset() -> None:
    hint = typing.get_type_hints(RunKwargs)["policy"]
    assert Policy in get_args(hint)
