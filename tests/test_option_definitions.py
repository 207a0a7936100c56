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

import corral
from corral import durations
from corral.cli import batch, chat
from corral.cli import run as run_command
from corral.cli.options import Duration
from corral.options import COMPUTED, KNOWN, SPELLINGS, RunKwargs, RunOptions
from corral.pipelines.execution import agent_call
from corral.pipelines.execution.handlers import NodeContext, NodeResources
from corral.pipelines.graph import Graph, Node, Value
from corral.pipelines.scheduler.commands import RunNode
from corral.policy import Policy
from corral.sessions.pool import PROMPT_OPTIONS, SWITCHED
from corral.sessions.prepare import COMMON, PER_PROMPT
from corral.system import config

FIELDS = set(RunOptions.__struct_fields__) - set(COMPUTED)
DEFAULTS = dict(
    zip(
        RunOptions.__struct_fields__[-len(RunOptions.__struct_defaults__) :],
        RunOptions.__struct_defaults__,
        strict=True,
    )
)

NOT_OF_AN_OPTION = {
    *("prompt", "file", "agent", "as_json", "quiet", "dry_run"),
    *("session", "session_idle", "schema", "full_result"),
    *("approve", "yolo", "policy_file", "allow_tool", "deny_tool"),
}
"""Parameters of ``corral run`` that are not options of a run, or only together (the policy)."""
NOT_ON_THE_COMMAND_LINE = {
    *("prompt_file", "config", "approval_mode", "allowed_tools", "replace_system_prompt"),
    *("grace", "max_tool_rounds", "mcp_servers", "fork", "max_budget_usd", "output_schema"),
    *("env", "track_files", "allow_file_reads", "allow_file_writes", "auth_method", "thinking"),
    *("permission_mode", "quiet_period", "session_mode", "audio"),
}
"""Options that only Python and corral.toml have. A new option must be listed here, or get a
flag."""
NODE_VALUES: dict[Any, str] = {float: "7", int: "7", ("list", str): "PATH"}
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


@pytest.mark.parametrize("name", sorted(FIELDS - {"policy"}))
def test_a_keyword_has_the_type_of_its_field(name: str) -> None:
    field = typing.get_type_hints(RunOptions)[name]
    keyword = typing.get_type_hints(RunKwargs)[name]
    assert normalized(keyword) == normalized(field)


def parameters(command: click.Command) -> dict[str, click.Parameter]:
    return {each.name: each for each in command.params}


def given(**values: Any) -> dict[str, Any]:
    empty = {
        name: () if getattr(each, "multiple", False) else False if _is_flag(each) else None
        for name, each in parameters(run_command.command).items()
    }
    return {**empty, **values}


def _is_flag(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.is_flag


def options_set_by(name: str, parameter: click.Parameter) -> set[str]:
    """The options that ``corral run`` sets when this parameter is given, and only then."""
    read_options = cast("Callable[[dict[str, Any]], dict[str, Any]]", vars(run_command)["_options"])
    value: Any = "x"
    if getattr(parameter, "multiple", False):
        value = ("x",)
    elif _is_flag(parameter):
        value = True
    before, after = read_options(given()), read_options(given(**{name: value}))
    return {option for option in after if option not in before or after[option] != before[option]}


def flags() -> dict[str, str]:
    """Option -> the parameter of ``corral run`` that sets it."""
    found: dict[str, str] = {}
    for name, parameter in parameters(run_command.command).items():
        if name not in NOT_OF_AN_OPTION:
            options = options_set_by(name, parameter)
            assert options, f"{name} sets nothing: list it in NOT_OF_AN_OPTION"
            found |= dict.fromkeys(options, name)
    return found


def test_every_option_has_a_flag_or_is_listed_as_without_one() -> None:
    assert set(flags()) <= set(KNOWN)
    assert set(flags()) | {"policy"} | NOT_ON_THE_COMMAND_LINE == set(KNOWN)
    assert not set(flags()) & NOT_ON_THE_COMMAND_LINE


@pytest.mark.parametrize(("option", "name"), sorted(flags().items()))
def test_a_flag_has_the_type_choices_and_default_of_its_option(option: str, name: str) -> None:
    parameter = parameters(run_command.command)[name]
    hint = normalized(typing.get_type_hints(RunOptions)[option])
    match parameter.type:
        case click.Choice(choices=choices):
            assert frozenset(choices) == hint
        case Duration():
            assert hint is float
        case click.types.IntParamType():
            assert hint is int
        case _ if _is_flag(parameter):
            assert hint is bool
        case _:
            assert hint in (str, ("list", str))
    stated = re.search(r"\[default: ([^\]]*)\]", getattr(parameter, "help", None) or "")
    if stated and DEFAULTS[option] is not None:
        default = DEFAULTS[option]
        shown = durations.text(default) if isinstance(default, float) else str(default)
        assert stated[1] == shown


@pytest.mark.parametrize("command", [chat.command, batch.command])
def test_the_same_flag_means_the_same_in_every_command(command: click.Command) -> None:
    of_run = parameters(run_command.command)
    shared = {name: each for name, each in parameters(command).items() if name in of_run}
    assert {"agent", "model", "cwd", "approve", "timeout", "system_prompt"} <= set(shared)
    for name, each in shared.items():
        other = of_run[name]
        if name == "prompt":  # an argument here, a template there
            continue
        assert each.opts == other.opts, name
        assert type(each.type) is type(other.type), name
        if isinstance(each.type, click.Choice) and isinstance(other.type, click.Choice):
            assert each.type.choices == other.type.choices, name


def keywords(function: Callable[..., Any]) -> set[str]:
    every = inspect.signature(function).parameters.values()
    return {each.name for each in every if each.kind is each.KEYWORD_ONLY}


def test_options_of_a_prompt_are_options_of_a_run() -> None:
    assert keywords(corral.Session.prompt) == keywords(corral.Session.run) == set(PER_PROMPT)
    assert set(PER_PROMPT) <= FIELDS
    assert PROMPT_OPTIONS <= FIELDS
    assert set(PER_PROMPT) >= SWITCHED
    assert set(PER_PROMPT) <= PROMPT_OPTIONS | SWITCHED


def test_no_option_has_the_name_of_a_parameter_of_run() -> None:
    """One word, one meaning: ``run(...)`` has its own parameters beside the options."""
    own = keywords(corral.run) | {"agent", "prompt"}
    assert "max_total_tokens" in own
    assert not own & set(KNOWN)


def test_an_untrusted_file_sets_only_options_that_exist() -> None:
    assert config.UNTRUSTED_OPTIONS <= FIELDS


def test_every_option_is_supported_by_some_agent() -> None:
    supported = set(COMMON)
    for agent in config.all_agents():
        supported |= agent.supports
        assert agent.supports <= FIELDS, agent.name
    assert supported == FIELDS


def options_of_node(folder: Path, attributes: dict[str, Value]) -> dict[str, object]:
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
        resources=NodeResources(),
    )
    options, _notes = agent_call.options_of(context, agent_call.BUILT_IN)
    return {**options}


def node_value(option: str) -> str:
    """A valid value for a node attribute, from the type of the option with that name."""
    hint = normalized(typing.get_type_hints(RunKwargs)[option])
    if isinstance(hint, frozenset):
        return "reads" if Policy in hint else "high"
    return NODE_VALUES.get(hint, "x")


def test_node_attributes_set_the_options_with_their_names(tmp_path: Path) -> None:
    unset = options_of_node(tmp_path, {})
    set_by_attributes: set[str] = set()
    for option in KNOWN:
        found = options_of_node(tmp_path, {option: node_value(option)})
        changed = {name for name in found if found[name] != unset.get(name)}
        assert changed <= {option, "policy"}, option
        set_by_attributes |= {option} if changed else set()
    assert set_by_attributes == agent_call.NODE_OPTIONS


def test_a_policy_is_given_as_a_record_or_a_preset() -> None:
    hint = typing.get_type_hints(RunKwargs)["policy"]
    assert Policy in get_args(hint)
