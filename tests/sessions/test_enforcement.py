"""When a run gets a sandbox by itself: if the agent alone cannot enforce the policy."""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.costs import deep_but
from support.odd_policies import ODD_POLICIES, PRESETS
from support.sandbox import needs_sandbox
from support.scripted_agent import scripted_options

import corral
from corral import Policy
from corral._agents import grants, registry, report
from corral._agents.grants import Grants
from corral._agents.spec import AgentControls, AgentSpec
from corral._core.protected_paths import Links
from corral._sessions import enforcement, pool
from corral._sessions.prepare import for_prompt, needs_new_process, prepare
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.sandbox import agent_sandbox, command_sandbox, named_hosts
from corral._sessions.tools.hooks import ToolRequest
from corral._system import config
from corral._system.sandbox.box import SandboxEndpoint
from corral.errors import ConfigError, PolicyError, PolicyNotEnforceable, SandboxFailed
from corral.options import RunOptions

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
    assert run.sandbox_reason == f"{agent} alone cannot enforce network=deny for commands"
    levels = {row.capability: row.enforcer for row in run.compiled.report}
    assert levels["network"] == levels["shell"] == "sandbox"


@pytest.mark.parametrize(
    "policy", [Policy(), Policy.reads(), Policy.edits(), Policy(shell="allow")]
)
def test_a_policy_that_holds_changes_nothing_and_the_machine_is_not_examined(
    workspace: Path, broken_bwrap: Path, policy: Policy
) -> None:
    run = prepared(workspace, policy=policy)
    assert run.sandbox is None
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
        named = "pypi.org, localhost:5432: allow (sandbox)"
        assert row.decision == f"deny (sandbox) · commands: deny (sandbox) · {named}"
        commands = command_sandbox(run)
        assert commands is not None
        assert [str(rule) for rule in commands.box.hosts] == ["pypi.org", "localhost:5432"]
        assert SandboxEndpoint("localhost", 5432) in commands.box.endpoints
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
    launch = run.agent.launch(run.run, run.launch_context(workspace, Links()), "x", None)
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


def test_a_run_that_must_hide_something_says_why_it_is_refused(
    workspace: Path, broken_bwrap: Path
) -> None:
    with pytest.raises(SandboxFailed, match=r"scenarios need corral's sandbox; .*No permissions"):
        prepared(workspace, hidden=[broken_bwrap.parent])


def test_without_strict_and_with_off_there_is_no_sandbox(workspace: Path) -> None:
    assert prepared(workspace, policy=NO_NETWORK, strict=False).sandbox is None
    with pytest.raises(PolicyNotEnforceable, match="network=deny"):
        prepared(workspace, policy=NO_NETWORK, sandbox="off")


def decide(agent: str, policy: Policy) -> enforcement.Decision:
    spec = config.find_agent(agent)
    return enforcement.decide(spec, RunOptions.build(spec.name, {"policy": policy}), "/")


@pytest.mark.parametrize(
    ("agent", "policy"),
    [
        ("codex-cli", Policy(read="deny", shell="allow")),
        ("codex-cli", Policy(read="ask", write="allow", shell="allow")),
        ("copilot-cli", Policy.edits()),  # nothing would protect .git
        ("pi-cli", Policy(shell_rules=("allow git *",))),
        ("manual", Policy.reads()),
    ],
)
def test_what_a_sandbox_cannot_enforce_either_stays_refused(
    agent: str, policy: Policy, broken_bwrap: Path
) -> None:
    decision = decide(agent, policy)
    assert decision.sandbox is None
    assert decision.compiled.unenforced
    assert not broken_bwrap.exists()


def test_a_person_cannot_be_started_in_a_sandbox(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be started in a sandbox"):
        prepare("manual", {"cwd": workspace, "sandbox": "require"})
    person = prepare("manual", {"cwd": workspace, "sandbox": "auto"})
    assert person.sandbox is None


def test_a_replay_of_such_a_run_needs_no_sandbox(workspace: Path, broken_bwrap: Path) -> None:
    spec: AgentSpec = config.find_agent("gemini-cli")
    run = RunOptions.build(spec.name, {"policy": NO_NETWORK, "replay": "x.ndjson"})
    decision = enforcement.decide(spec, run, "/")
    assert decision.sandbox is None
    assert decision.compiled.unenforced == ()
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
    assert result.sandbox_reason == "gemini-cli alone cannot enforce network=deny for commands"
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


# The policy is compiled once per run.

EVERY = [*registry.all_agents()]


def allow_every_call(_request: ToolRequest) -> None:
    """For ``on_tool_call``."""


SITUATIONS: dict[str, dict[str, Any]] = {
    "nobody to ask": {},
    "a person": {"has_asker": True},
    "a hook": {"on_tool_call": allow_every_call},
    "sandbox required": {"sandbox": "require"},
    "sandbox off": {"sandbox": "off", "has_asker": True},
    "not strict": {"strict": False, "has_asker": True},
}
"""The JSON stream or ACP is chosen by the agent."""
CountedRun = tuple[dict[str, Any], list[Grants], list[Grants]]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[AgentSpec], CountedRun]:
    """Makes options for a run of an agent; the grants that are computed for it, by whichever
    module; and those that the agent turned into controls."""

    def count(agent: AgentSpec) -> CountedRun:
        computed: list[Grants] = []
        made: list[Grants] = []

        def computing(*arguments: Any, **options: Any) -> Grants:
            computed.append(compute(*arguments, **options))
            return computed[-1]

        compute = grants.compute_grants
        for module in [*sys.modules.values()]:
            if getattr(module, "compute_grants", None) is compute:
                monkeypatch.setattr(module, "compute_grants", computing)

        def counting(spec: AgentSpec) -> AgentSpec:
            def controls(granted: Grants, run: RunOptions) -> AgentControls:
                made.append(granted)
                return spec.controls(granted, run)

            return replace(spec, controls=controls)

        spec = counting(agent)
        if (for_run := agent.for_run) is not None:

            def counting_for_run(run: RunOptions) -> AgentSpec:
                return counting(for_run(run))

            spec = replace(spec, for_run=counting_for_run)

        def find_agent(_name: str) -> AgentSpec:
            return spec

        monkeypatch.setattr(config, "find_agent", find_agent)
        folder = tmp_path / agent.name
        (folder / "more").mkdir(parents=True)
        options: dict[str, Any] = {"cwd": folder}
        if agent.probe is not None:
            env = {agent.probe.key_env: "a-key-of-a-service", agent.probe.url_env: "http://h/v1"}
            options |= {"model": agent.probe.model, "env": env}
        if agent.programs:
            program = tmp_path / "programs" / agent.name / "program"
            program.parent.mkdir(parents=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            package = {"name": agent.package.name, "version": agent.package.tested}
            (program.parent / "package.json").write_text(json.dumps(package))
            options["program"] = str(program)
        return options, computed, made

    return count


@needs_sandbox
@pytest.mark.parametrize(
    "name", deep_but([each.name for each in EVERY], "codex-cli", "gemini-acp", "corral")
)
def test_the_policy_is_compiled_once_per_run(
    name: str, counted: Callable[[AgentSpec], CountedRun]
) -> None:
    agent = registry.find(name)
    options, computed, compiled = counted(agent)
    boxed = 0
    for situation, more in SITUATIONS.items():
        given = {key: more[key] for key in ("has_asker", "on_tool_call") if key in more}
        extra = {key: value for key, value in more.items() if key not in given}
        for preset, policy in {**PRESETS, **ODD_POLICIES}.items():
            computed.clear()
            compiled.clear()
            try:
                run = prepare(agent.name, {**options, **extra, "policy": policy}, **given)
            except (PolicyError, PolicyNotEnforceable, ConfigError):
                # The hint may name another agent, whose policy is compiled for it.
                assert len(compiled) == 1, (situation, preset)
                continue
            assert len(computed) == len(compiled) == 1, (situation, preset)
            assert run.compiled.grants is computed[0] is compiled[0]
            boxed += run.sandbox is not None
    assert bool(boxed) is enforcement.can_contain(agent)


@pytest.mark.parametrize("transport", ["acp", "stream"])
async def test_a_complete_run_compiles_its_policy_once(
    transport: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Policy] = []
    compile_once = report.compile_for

    def counting(agent: AgentSpec, run: RunOptions) -> report.CompiledPolicy:
        compiled.append(run.policy)
        return compile_once(agent, run)

    for module in (report, enforcement, pool):
        monkeypatch.setattr(module, "compile_for", counting)
    if transport == "stream":
        options = scripted_options(workspace)
        result = await corral.run("gemini-cli", "init\ntext hello\nresult", **options)
    else:
        program = Path(__file__).parents[1] / "programs" / "scripted_acp.py"
        command = shlex.join([sys.executable, "-S", "-E", str(program), "--acp"])
        result = await corral.run(command, "text hello", cwd=workspace, timeout=30)
    assert result.text == "hello"
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("agent", "policy", "twin"),
    [
        ("gemini-cli", Policy(shell_rules=("allow *a*b*c* x",)), "gemini-acp"),
        ("copilot-cli", Policy(write="allow"), "copilot-acp"),
        ("codex-cli", Policy(shell_rules=("allow git *",)), None),  # codex-acp cannot either
        ("pi-cli", Policy(shell_rules=("allow git *",)), None),
    ],
)
def test_what_an_agent_that_cannot_ask_does_not_enforce_names_the_one_that_asks(
    agent: str, policy: Policy, twin: str | None
) -> None:
    spec = registry.find(agent)
    run = RunOptions.build(agent, {"policy": policy, "sandbox": "off"})
    with pytest.raises(PolicyNotEnforceable) as caught:
        enforcement.check(spec, enforcement.decide(spec, run, "/"))
    hint = caught.value.hint or ""
    assert ("it asks for permission" in hint) is (twin is not None)
    assert twin is None or hint.startswith(f"{twin} enforces it")
