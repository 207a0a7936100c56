"""The options of a run: a wrong value is rejected before anything starts."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral.errors import CallerError, ConfigError
from corral.options import KNOWN, RunOptions
from corral.policy import Policy
from corral.run_kwargs import RunKwargs
from corral.values import McpServer


def build(**options: Any) -> RunOptions:
    return RunOptions.build("an-agent", options)


def test_without_options_all_defaults_apply() -> None:
    assert build() == RunOptions(agent="an-agent")
    assert build(model=None, cwd=None, policy=None) == RunOptions(agent="an-agent")


def test_every_option_is_a_field_of_the_record() -> None:
    spellings = {"approval_mode", "allowed_tools", "config"}
    assert set(KNOWN) - spellings == set(RunOptions.__struct_fields__) - {
        "agent",
        "interactive",
        "has_person",
        "own_tools",
        "hooked",
    }
    assert set(KNOWN) == set(RunKwargs.__annotations__)


@pytest.mark.parametrize(
    ("name", "near"),
    [("modle", "model"), ("time_out", "timeout"), ("mcp_server", "mcp_servers"), ("Cwd", "cwd")],
)
def test_the_error_for_an_unknown_option_suggests_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(**{name: 1})
    assert raised.value.message == f"unknown option {name!r}: did you mean {near!r}?"


def test_the_error_for_an_unknown_option_says_where_all_are_if_no_name_is_similar() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'zzzz': .corral docs configuration"):
        build(zzzz=1)


def test_an_unknown_key_of_a_file_is_a_warning_and_is_ignored() -> None:
    with pytest.warns(UserWarning, match="corral.toml: unknown key 'modle', ignored: did you mean"):
        run = RunOptions.build("a", {}, {"modle": "x", "model": "m"}, "corral.toml")
    assert run.model == "m"


def test_options_win_over_inline_config_and_that_over_the_file() -> None:
    file = {"timeout": 1, "grace": 1, "retries": 1}
    run = RunOptions.build("a", {"timeout": 3, "config": {"timeout": 2, "grace": 2}}, file)
    assert (run.timeout, run.grace, run.retries) == (3, 2, 1)


def test_an_option_set_to_null_keeps_its_default() -> None:
    assert RunOptions.build("a", {"model": None}).model is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"timeout": 0}, "timeout must be more than 0, got: 0"),
    ({"timeout": -1.5}, "timeout must be more than 0, got: -1.5"),
    ({"timeout": float("nan")}, "timeout must be more than 0, got: nan"),
    ({"timeout": "soon"}, "timeout: 'soon' is not a duration: write 500ms, 30s, 15m, 1h30m or 2d"),
    ({"timeout": True}, "timeout must be a number, got: bool"),
    ({"idle_timeout": 0}, "idle_timeout must be more than 0, got: 0"),
    ({"startup_timeout": -1}, "startup_timeout must be more than 0, got: -1"),
    ({"grace": -1}, "grace must be between 0 and 60 seconds, got: -1"),
    ({"grace": 61}, "grace must be between 0 and 60 seconds, got: 61"),
    ({"grace": float("nan")}, "grace must be between 0 and 60 seconds, got: nan"),
    ({"max_turns": 0}, "max_turns must be at least 1, got: 0"),
    ({"max_turns": 1.5}, "max_turns must be a whole number, got: float"),
    ({"max_turns": True}, "max_turns must be a number, got: bool"),
    ({"retries": -1}, "retries must be between 0 and 9, got: -1"),
    ({"retries": 10}, "retries must be between 0 and 9, got: 10"),
    ({"model": ""}, "model is empty"),
    ({"model": 5}, "model must be a text, got: int"),
    ({"program": " "}, "program is empty"),
    ({"resume": ""}, "resume is empty"),
    ({"images": "a.png"}, "images must be a list, got: str"),
    ({"images": [1]}, "images[0] must be a text, got: int"),
    ({"env": {"A": 1}}, "env must be a text, got: int"),
    ({"config": "model=x"}, "config must be a table of options, got: str"),
    ({"env": {"": "x"}}, "not a valid name of an environment variable: ''"),
    ({"env": {"A=B": "x"}}, "not a valid name of an environment variable: 'A=B'"),
    ({"pass_env": ["A\0"]}, "not a valid name of an environment variable: 'A\\x00'"),
    ({"strict": "no"}, "strict must be True or False, got: str"),
    ({"inherit": "everything"}, "inherit must be one of nothing, project, user, got: 'everything'"),
    ({"policy": "reckless"}, "policy must be a Policy, or reads, edits or all, got: 'reckless'"),
    ({"policy": {"read": "allow"}}, "policy must be a Policy, got: dict"),
    ({"approval_mode": "yes"}, "approval_mode must be one of default, auto_edit, yolo, plan"),
    ({"approval_mode": ["yolo"]}, "approval_mode must be one of default, auto_edit, yolo, plan"),
    ({"allowed_tools": "read_file"}, "allowed_tools must be a list, got: str"),
    ({"policy": "all", "approval_mode": "plan"}, "policy and approval_mode both given"),
    ({"policy": "all", "allowed_tools": []}, "policy and allowed_tools both given"),
    (
        {"system_prompt": "a", "replace_system_prompt": "b"},
        "system_prompt and replace_system_prompt both given",
    ),
    ({"mcp_servers": [{"name": "s"}]}, "MCP server 's' must have either a command or a url"),
    (
        {"mcp_servers": [{"name": "s", "command": ["x"], "url": "http://y"}]},
        "MCP server 's' must have either a command or a url",
    ),
    (
        {"mcp_servers": [{"name": "a_b", "url": "http://y"}]},
        "wrong option: MCP server name 'a_b': letters, digits and - only, such as a-b",
    ),
    (
        {"mcp_servers": ["a_b=http://y"]},
        "wrong option: MCP server name 'a_b': letters, digits and - only, such as a-b",
    ),
    (
        {"mcp_servers": [McpServer("s", url="http://x"), McpServer("s", url="http://y")]},
        "two MCP servers have the name 's'",
    ),
    (
        {"mcp_servers": [McpServer("corral", url="http://x")]},
        "MCP server name 'corral' is reserved for the functions in tools=",
    ),
    (
        {"mcp_servers": [{"name": "Corral", "command": ["x"]}]},
        "MCP server name 'Corral' is reserved for the functions in tools=",
    ),
    (
        {"mcp_servers": [{"name": "corral", "command": ["x"], "own": True}]},
        "an MCP server's `own` is set by corral: leave it out",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_the_error_for_a_wrong_value_has_the_name_of_the_option(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        build(**options)
    assert raised.value.message.startswith(message)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"policy": "reads"}, Policy.reads()),
        ({"policy": "edits"}, Policy.edits()),
        ({"policy": "all"}, Policy.all()),
        ({"policy": Policy(write="allow")}, Policy(write="allow")),
        ({"approval_mode": "default"}, Policy.reads()),
        ({"approval_mode": "auto_edit"}, Policy.edits()),
        ({"approval_mode": "yolo"}, Policy.all()),
        ({"approval_mode": "plan"}, Policy.plan()),
        ({"allowed_tools": []}, Policy(allow_tools=())),
        ({"allowed_tools": ("a",)}, Policy(allow_tools=("a",))),
        (
            {"approval_mode": "auto_edit", "allowed_tools": ["a"]},
            msgspec.structs.replace(Policy.edits(), allow_tools=("a",), network=None),
        ),
        ({}, Policy()),
    ],
)
def test_each_spelling_of_the_policy_is_the_policy(options: dict[str, Any], policy: Policy) -> None:
    assert build(**options).policy == policy


def test_only_the_full_policy_has_all_permissions() -> None:
    assert not build().policy.is_unlimited
    assert not build(strict=False, inherit="user").policy.is_unlimited


@pytest.mark.parametrize(
    ("file", "given"),
    [
        ({"policy": "reads"}, {"approval_mode": "auto_edit"}),
        ({"approval_mode": "yolo"}, {"policy": "edits"}),
        ({"approval_mode": "yolo", "allowed_tools": ["x"]}, {"policy": "edits"}),
    ],
)
def test_a_policy_given_in_any_spelling_wins_over_the_files(
    file: dict[str, Any], given: dict[str, Any]
) -> None:
    assert RunOptions.build("a", given, file).policy == Policy.edits()


def test_paths_may_be_path_objects(tmp_path: Path) -> None:
    run = build(cwd=tmp_path, images=[tmp_path / "a.png"], include_directories=(tmp_path, "b"))
    assert run.cwd == str(tmp_path)
    assert run.images == (str(tmp_path / "a.png"),)
    assert run.include_directories == (str(tmp_path), "b")


def test_the_summary_shows_names_and_no_secrets() -> None:
    run = build(
        env={"A_TOKEN": "canary-env"},
        mcp_servers=[
            {"name": "s", "url": "http://x", "headers": {"Authorization": "canary-header"}},
            McpServer("t", command=("x",), env={"K": "canary-mcp"}),
        ],
        model="m",
    )
    shown = run.summary()
    assert "canary" not in repr(shown)
    assert shown["env"] == ["A_TOKEN"]
    assert shown["mcp_servers"] == (
        {"name": "s", "url": "http://x"},
        {"name": "t", "command": ("x",)},
    )
    assert shown["model"] == "m"


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("a=python 'my server.py' -v", McpServer("a", ("python", "my server.py", "-v"))),
        ("a=T=${T} D= npx x=y", McpServer("a", ("npx", "x=y"), env={"T": "${T}", "D": ""})),
        (
            "a=https://x.org/mcp?k=v X-Key='b c'",
            McpServer("a", url="https://x.org/mcp?k=v", headers={"X-Key": "b c"}),
        ),
    ],
)
def test_an_mcp_server_may_be_a_text(text: str, server: McpServer) -> None:
    assert build(mcp_servers=[text]).mcp_servers == (server,)


@pytest.mark.parametrize("text", ["a", "a=", "a=X=1", "a='x", "a=https://x.org y", "=x", "a b=x"])
def test_a_text_that_is_no_mcp_server_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="MCP server"):
        build(mcp_servers=[text])


@no_deadline
@given(
    name=st.sampled_from(sorted(KNOWN)),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.lists(st.none() | st.text() | st.lists(st.integers())),
        st.dictionaries(st.text(), st.text() | st.integers()),
    ),
)
def test_any_value_is_accepted_or_raises_a_caller_error(name: str, value: Any) -> None:
    with warnings.catch_warnings(), suppress(CallerError):
        warnings.simplefilter("ignore")
        build(**{name: value})


def test_a_duration_may_be_a_text() -> None:
    given = {"timeout": "1h30m", "idle_timeout": "90", "grace": "500ms", "quiet_period": "2s"}
    built = RunOptions.build("x", given, {"startup_timeout": "2m", "timeout": "1s"})
    assert (built.timeout, built.idle_timeout, built.startup_timeout) == (5400, 90, 120)
    assert (built.grace, built.quiet_period) == (0.5, 2)


@pytest.mark.parametrize(
    ("name", "advice"), [("my_server", ", such as my-server"), ("a b!", ", such as a-b"), ("_", "")]
)
def test_an_mcp_server_with_an_invalid_name_is_refused_when_it_is_made(
    name: str, advice: str
) -> None:
    with pytest.raises(ValueError, match=f"letters, digits and - only{advice}$"):
        McpServer(name, url="http://x")
