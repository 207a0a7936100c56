"""When a run gets a sandbox by itself: if the agent alone cannot enforce the policy."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from support.sandbox import needs_sandbox
from support.scripted_agent import scripted_options

import corral
from corral import Policy
from corral.errors import ConfigError, PolicyNotEnforceable
from corral.sessions import enforcement
from corral.sessions.prepare import prepare
from corral.sessions.prepared_run import PreparedRun
from corral.sessions.prompt_options import for_prompt, needs_new_process
from corral.sessions.sandbox import agent_sandbox, command_sandbox, named_hosts
from corral.system.sandbox.box import Endpoint

NO_NETWORK = Policy(write="allow", shell="allow", network="deny")


def prepared(workspace: Path, agent: str = "gemini-acp", **options: object) -> PreparedRun:
    return prepare(agent, {**scripted_options(workspace), **options})


@pytest.fixture
def broken_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bubblewrap that builds no sandbox. The file that is returned exists if it was started."""
    program, marker = tmp_path / "tools" / "bwrap", tmp_path / "was_started"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {marker}\necho 'bwrap: No permissions' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return marker


@needs_sandbox
@pytest.mark.parametrize("agent", ["gemini-acp", "gemini-cli"])
def test_a_policy_that_the_agent_cannot_enforce_gets_the_sandbox(
    workspace: Path, agent: str
) -> None:
    run = prepared(workspace, agent, policy=NO_NETWORK)
    assert run.sandbox is not None
    assert run.sandbox.method == "bubblewrap"
    assert run.sandbox_reason == f"{agent} alone cannot enforce network=deny"
    assert run.run.in_sandbox
    levels = {row.capability: row.enforcement for row in run.compiled.report}
    assert levels["network"] == levels["shell"] == "sandboxed"


@pytest.mark.parametrize(
    "policy", [Policy(), Policy.read_only(), Policy.edits(), Policy(shell="allow")]
)
def test_a_policy_that_holds_changes_nothing_and_the_machine_is_not_examined(
    workspace: Path, broken_bwrap: Path, policy: Policy
) -> None:
    run = prepared(workspace, policy=policy)
    assert run.sandbox is None
    assert not run.run.in_sandbox
    assert not broken_bwrap.exists()


@needs_sandbox
def test_a_policy_that_names_hosts_gets_the_sandbox(workspace: Path) -> None:
    hosts = ("pypi.org", "localhost:5432")
    for policy in (
        Policy(shell="allow", network_hosts=hosts),
        Policy(shell_rules=("allow pip *",), network_hosts=hosts),
    ):
        run = prepared(workspace, policy=policy)
        assert run.sandbox is not None
        row = next(row for row in run.compiled.report if row.capability == "network")
        assert (row.verdict, row.enforcement) == ("deny", "sandboxed")
        assert "pypi.org" in row.note
        commands = command_sandbox(run)
        assert commands is not None
        assert [str(rule) for rule in commands.box.hosts] == ["pypi.org", "localhost:5432"]
        assert Endpoint("localhost", 5432) in commands.box.endpoints
    without = prepared(workspace, policy=Policy(shell="deny", network_hosts=hosts))
    assert without.sandbox is None  # there are no commands that could reach a host


def test_hosts_of_a_region_follow_from_the_environment() -> None:
    hosts = ("a.example", "{REGION}-a.example", "b.{OTHER}.example")
    assert list(named_hosts(hosts, {"REGION": "europe-west4"})) == [
        "a.example",
        "europe-west4-a.example",
    ]
    assert list(named_hosts(hosts, {"REGION": "x/../y"})) == ["a.example"]


@needs_sandbox
def test_a_proxy_that_corral_cannot_use_is_an_error_before_the_start(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    run = prepared(workspace, policy=NO_NETWORK)
    launch = run.agent.launch(run.run, run.launch_context(workspace), "x", None)
    with pytest.raises(ConfigError, match="socks5"):
        agent_sandbox(run, launch, workspace)


def test_a_machine_without_a_sandbox_refuses_and_says_why(
    workspace: Path, broken_bwrap: Path
) -> None:
    with pytest.raises(PolicyNotEnforceable, match=r"network=deny.*No permissions") as raised:
        prepared(workspace, policy=NO_NETWORK)
    assert "strict=False" in (raised.value.hint or "")
    assert broken_bwrap.exists()


@needs_sandbox
def test_a_folder_that_no_sandbox_can_protect_is_refused_with_both_reasons(
    workspace: Path,
) -> None:
    with pytest.raises(PolicyNotEnforceable, match=r"network=deny.*could not hide keys"):
        prepared(workspace, policy=NO_NETWORK, cwd=os.path.expanduser("~"))


def test_without_strict_and_with_off_there_is_no_sandbox(workspace: Path) -> None:
    assert prepared(workspace, policy=NO_NETWORK, strict=False).sandbox is None
    with pytest.raises(PolicyNotEnforceable, match="network=deny"):
        prepared(workspace, policy=NO_NETWORK, sandbox="off")


def decide(agent: str, policy: Policy) -> enforcement.Decision:
    from corral.options import RunOptions
    from corral.system import config

    spec = config.find_agent(agent)
    return enforcement.decide(spec, RunOptions.build(spec.name, {"policy": policy}), "/")


@pytest.mark.parametrize(
    ("agent", "policy"),
    [
        ("codex-cli", Policy(read="deny", shell="allow")),
        ("codex-cli", Policy(read="ask", write="allow", shell="allow")),
        ("copilot-cli", Policy.edits()),  # nothing would protect .git
        ("pi-cli", Policy(shell_rules=("allow git *",))),
        ("manual", Policy.read_only()),
    ],
)
def test_what_a_sandbox_cannot_enforce_either_stays_refused(
    agent: str, policy: Policy, broken_bwrap: Path
) -> None:
    decision = decide(agent, policy)
    assert decision.sandbox is None
    assert decision.unenforced
    assert not broken_bwrap.exists()


def test_a_person_cannot_be_started_in_a_sandbox(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be started in a sandbox"):
        prepare("manual", {"cwd": workspace, "sandbox": "require"})
    person = prepare("manual", {"cwd": workspace, "sandbox": "auto"})
    assert person.sandbox is None


def test_a_replay_of_such_a_run_needs_no_sandbox(workspace: Path, broken_bwrap: Path) -> None:
    from corral.agents.spec import AgentSpec
    from corral.options import RunOptions
    from corral.system import config

    spec: AgentSpec = config.find_agent("gemini-cli")
    run = RunOptions.build(spec.name, {"policy": NO_NETWORK, "replay": "x.ndjson"})
    decision = enforcement.decide(spec, run, "/")
    assert decision.sandbox is None
    assert decision.unenforced == ()
    assert not broken_bwrap.exists()


@needs_sandbox
def test_the_sandbox_of_a_session_stays_for_a_narrower_prompt(workspace: Path) -> None:
    options = {**scripted_options(workspace), "policy": NO_NETWORK}
    session = prepare("gemini-acp", options)
    given = {"policy": Policy(shell="deny", network="deny", write="allow")}
    prompt = for_prompt(session, "gemini-acp", options, given, has_asker=False)
    assert prompt.sandbox == session.sandbox
    # A session without a sandbox, and a prompt that needs one.
    options["policy"] = Policy(write="allow", shell="allow")
    session = prepare("gemini-acp", options)
    given = {"policy": NO_NETWORK}
    prompt = for_prompt(session, "gemini-acp", options, given, has_asker=False)
    assert session.sandbox is None
    assert prompt.sandbox is not None
    assert needs_new_process(prompt, session)


@needs_sandbox
async def test_the_result_says_that_there_was_a_sandbox_and_why(workspace: Path) -> None:
    options = scripted_options(workspace, policy=NO_NETWORK)
    result = await corral.run("gemini-cli", "init\ntext hello\nresult", **options)
    assert result.ok, result
    assert result.sandbox == "bubblewrap"
    assert result.sandbox_reason == "gemini-cli alone cannot enforce network=deny"
    plain = await corral.run("gemini-cli", "init\nresult", **scripted_options(workspace))
    assert (plain.sandbox, plain.sandbox_reason) == (None, None)


def test_a_policy_without_limits_and_without_a_sandbox_warns_once(workspace: Path) -> None:
    enforcement.warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        prepared(workspace, policy="all", sandbox="off")
        prepared(workspace, policy="edits")
        assert seen == []
        prepared(workspace, policy="all")
        prepared(workspace, policy="all")
    assert len(seen) == 1
    assert "--sandbox auto" in str(seen[0].message)
