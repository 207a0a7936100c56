"""What a caller may do: it can narrow what the starter set, and never widen it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from corral.agents import registry
from corral.core.spending import BudgetLimits
from corral.errors import ConfigError, CorralError, NotPermitted, PromptError
from corral.policy import Policy
from corral.serving.allowance import (
    Allowance,
    Narrowing,
    PipelineRequest,
    RunRequest,
    read_request,
)

STARTER = "the one who started corral mcp"


def allowance(workspace: Path, **fields: Any) -> Allowance:
    fields.setdefault("sources", {"policy": "--approve reads", "agents": "--agent"})
    fields.setdefault("folders", (str(workspace),))
    return Allowance(set_by=STARTER, **fields)


def request(**fields: Any) -> RunRequest:
    return read_request({"prompt": "review this", **fields}, RunRequest, set_by=STARTER)


def refused(given: Allowance, **fields: Any) -> str:
    with pytest.raises(NotPermitted) as caught:
        given.check(request(**fields))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_request_without_wishes_gets_what_the_starter_set(workspace: Path) -> None:
    given = allowance(workspace, agents=("claude", "gemini"), timeout=90.0, label="corral mcp")
    checked = given.check(request())
    assert checked.agent == "claude"
    assert checked.options == {
        "cwd": os.path.realpath(workspace),
        "policy": Policy.read_only(),
        "timeout": 90.0,
        "env": {"CORRAL_DEPTH": "1"},
        "label": "corral mcp",
    }


@pytest.mark.parametrize(
    "name", ["env", "program", "mcp_servers", "inherit", "record_to", "sandbox", "notify", "config"]
)
def test_an_option_that_only_the_starter_sets_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        NotPermitted, match=rf"{name} is not an option of callers.*set by {STARTER}"
    ):
        request(**{name: {"PATH": "/tmp"}})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"promt": "x"}, "no field 'promt': did you mean 'prompt'?"),
        ({"timeout": []}, "timeout"),
        ({"max_calls": "many"}, "max_calls"),
        ({"policy": 7}, "policy"),
        ({"output_schema": "text"}, "output_schema"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        request(**fields)
    assert message in str(caught.value)


def test_a_request_that_is_no_object_is_refused() -> None:
    wrong: tuple[object, ...] = (None, [], "run", 7)
    for given in wrong:
        with pytest.raises(ConfigError, match="the request is wrong"):
            read_request(given, RunRequest, set_by=STARTER)


def test_an_agent_must_be_one_of_the_starter(workspace: Path) -> None:
    given = allowance(workspace, agents=("gemini-cli",))
    assert given.check(request(agent="gemini-cli")).agent == "gemini-cli"
    assert refused(given, agent="codex") == (
        "agent 'codex' is not permitted: only gemini-cli"
        " (set by the one who started corral mcp: --agent)"
    )
    assert refused(given, agent="gemini:gemini-2.5-flash")  # the built-in agent


def test_an_alias_is_the_agent(workspace: Path) -> None:
    given = allowance(workspace, agents=("claude",))
    assert given.check(request(agent="claude-cli")).agent == registry.find("claude").name


@pytest.mark.parametrize(
    "name", ["sh -c 'touch owned'", "/bin/sh", "./agent", "acp:evil", "manual"]
)
def test_a_caller_names_no_program_and_no_person(workspace: Path, name: str) -> None:
    assert "is not permitted" in refused(allowance(workspace), agent=name)


def test_a_command_that_the_starter_named_is_permitted(workspace: Path) -> None:
    given = allowance(workspace, agents=("my-agent --acp",))
    assert given.check(request(agent="my-agent --acp")).agent == "my-agent --acp"
    assert "is not permitted" in refused(given, agent="my-agent --acp --evil")


def test_a_model_must_be_one_of_the_starter(workspace: Path) -> None:
    given = allowance(workspace, agents=("gemini-cli",), models=("gemini:flash", "gemini:pro"))
    assert given.check(request()).options.get("model") == "gemini:flash"
    assert given.check(request(model="gemini/pro")).options.get("model") == "gemini/pro"
    assert "only gemini:flash, gemini:pro" in refused(given, model="gemini:ultra")


@pytest.mark.parametrize(
    "policy", ["reads", "plan", {"read": "deny"}, {}, {"preset": "reads", "deny_tools": ["grep"]}]
)
def test_a_narrower_policy_is_taken(workspace: Path, policy: Any) -> None:
    checked = allowance(workspace, agents=("gemini-cli",)).check(request(policy=policy))
    assert isinstance(checked.options.get("policy"), Policy)


@pytest.mark.parametrize(
    "policy",
    ["edits", "all", {"write": "allow"}, {"mode": "native"}, {"shell_rules": ["allow ls"]},
     {"network_hosts": ["example.org"], "shell": "allow"},
     {"preset": "reads", "writable": ["/tmp"]},
     {"preset": "reads", "allow_tools": ["run_shell_command"]}],
)  # fmt: skip
def test_a_wider_policy_is_refused_with_who_set_the_limit(workspace: Path, policy: Any) -> None:
    text = refused(allowance(workspace, agents=("gemini-cli",)), policy=policy)
    assert text.endswith(
        "is not permitted: at most reads (set by the one who started corral mcp: --approve reads)"
    )


def test_a_writable_folder_of_the_starter_does_not_move_with_the_caller(workspace: Path) -> None:
    (workspace / "a" / "out").mkdir(parents=True)
    policy = Policy(write="allow", writable=("out",))
    checked = allowance(workspace, policy=policy, agents=("gemini-cli",)).check(request(cwd="a"))
    chosen = checked.options.get("policy")
    assert isinstance(chosen, Policy)
    assert chosen.writable == (str(workspace.resolve() / "out"),)


def test_a_folder_must_be_inside_after_links_are_resolved(workspace: Path) -> None:
    inside = workspace / "inside"
    inside.mkdir()
    (workspace / "link").symlink_to("/etc")
    (workspace / "loop").symlink_to("loop")
    (workspace / "here").symlink_to(inside)
    given = allowance(workspace)
    for asked in ("inside", str(inside), "here", "inside/../inside"):
        assert given.check(request(cwd=asked)).options.get("cwd") == str(inside.resolve())
    for asked in ("/", "..", "link", "link/ssh", "inside/../..", "~", "", "loop", "a\0b",
                  f"{workspace}-2", "/proc/self/cwd"):  # fmt: skip
        assert "is not permitted" in refused(given, cwd=asked)


def test_limits_may_be_smaller_only(workspace: Path) -> None:
    given = allowance(workspace, timeout=60.0, limits=BudgetLimits(max_cost=2.0))
    options = given.check(request(timeout="30s", max_cost=1, max_calls=5)).options
    assert (options.get("timeout"), options.get("max_cost"), options.get("max_calls")) == (
        30.0,
        1,
        5,
    )
    assert "a timeout of 1h is not permitted: at most 1m" in refused(given, timeout="1h")
    assert "max_cost 3 is not permitted: at most 2" in refused(given, max_cost=3)
    for wrong in ({"timeout": -1}, {"max_calls": 0}, {"timeout": "soon"}, {"max_cost": -2}):
        with pytest.raises(ConfigError):
            given.check(request(**wrong))


def test_agents_that_call_agents_end_at_the_depth(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_DEPTH", "1")
    assert "depth 2 of agents that call agents is not permitted: at most 1" in refused(
        allowance(workspace)
    )
    deeper = allowance(workspace, depth=2).check(request())
    assert deeper.options.get("env") == {"CORRAL_DEPTH": "2"}
    monkeypatch.setenv("CORRAL_DEPTH", "-1")
    with pytest.raises(ConfigError, match="CORRAL_DEPTH must be a number"):
        allowance(workspace).check(request())


def test_the_options_of_the_starter_are_in_each_run(workspace: Path) -> None:
    options: Any = {"sandbox": "require", "env": {"A": "1", "CORRAL_DEPTH": "0"}}
    checked = allowance(workspace, options=options).check(request())
    assert checked.options.get("sandbox") == "require"
    assert checked.options.get("env") == {"A": "1", "CORRAL_DEPTH": "1"}


def test_an_empty_or_huge_prompt_is_refused(workspace: Path) -> None:
    for prompt in ("", " \n", "x" * (9 << 20)):
        with pytest.raises(PromptError):
            allowance(workspace).check(request(prompt=prompt))


def test_only_named_pipelines_run(workspace: Path) -> None:
    file = workspace / "review.dot"
    file.write_text("digraph { a }")
    given = allowance(workspace, pipelines={"review": str(file)})
    asked = read_request({"pipeline": "digraph { a }"}, PipelineRequest, set_by=STARTER)
    with pytest.raises(NotPermitted, match="only review"):
        given.check_pipeline(asked)
    asked = read_request({"pipeline": "review", "goal": "x"}, PipelineRequest, set_by=STARTER)
    assert given.check_pipeline(asked).options.get("policy") == Policy.read_only()
    file.write_text("digraph { a [shape=parallelogram, tool_command=evil] }")
    with pytest.raises(NotPermitted, match="has changed since the server started"):
        given.check_pipeline(asked)


def test_a_client_gets_less_and_the_error_names_its_settings(workspace: Path) -> None:
    (workspace / "docs").mkdir()
    server = allowance(workspace, policy=Policy.edits(), label="corral serve", concurrency=4,
                       agents=("claude", "gemini-cli"))  # fmt: skip
    narrowing = Narrowing(agents=("gemini-cli",), policy="reads", folders=("docs",),
                          max_cost=1.0, concurrency=1, answers="nothing")  # fmt: skip
    client = server.narrowed(narrowing, "ci")
    assert client.label == "corral serve: ci"
    assert client.folders == (str(workspace.resolve() / "docs"),)
    assert client.limits.max_cost == 1.0
    assert refused(client, policy="edits").endswith("(set by the settings of client ci)")
    assert refused(client, max_cost=2).endswith("(set by the settings of client ci)")
    assert refused(client, agent="claude").endswith("(set by the settings of client ci)")


@pytest.mark.parametrize(
    "fields",
    [{"agents": ("codex",)}, {"policy": "all"}, {"folders": ("/",)}, {"timeout": 9999},
     {"concurrency": 9}, {"depth": 3}, {"answers": "all"}, {"keeps_runs": True},
     {"pipelines": ("x",)}, {"models": ("other",)}, {"max_calls": 11}],
)  # fmt: skip
def test_a_client_never_gets_more(workspace: Path, fields: dict[str, Any]) -> None:
    server = allowance(workspace, agents=("claude",), models=("sonnet",),
                       limits=BudgetLimits(max_calls=10))  # fmt: skip
    with pytest.raises(CorralError, match="is not permitted"):
        server.narrowed(Narrowing(**fields), "ci")
