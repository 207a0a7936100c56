"""Copilot: launch, policy and errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent_launch import NOT_COMPILED, compile_policy, decisions, explained, launch_of

from corral import Policy, errors
from corral._agents import registry
from corral._agents.report import CompiledPolicy
from corral._agents.spec import AgentSpec, Launch, LaunchContext
from corral._protocol.ndjson import TurnEnd
from corral._sessions.prepare import prepare
from corral._system import programs
from corral.options import RunOptions
from corral.values import McpServer

ALONE, PEER = registry.find("copilot-cli"), registry.find("copilot")
ENV = {
    "COPILOT_PROVIDER_API_KEY": "canary-key-in-env",
    "COPILOT_PROVIDER_BASE_URL": "http://host/v1",
}
SERVER = {"name": "notes", "command": ["notes", "--x"], "env": {"N-TOKEN": "canary-1"}}


def launch(
    agent: AgentSpec = ALONE,
    *,
    prompt: str = "do it",
    resume: str | None = None,
    env: dict[str, str] = ENV,
    found: tuple[str, ...] = (),
    **options: Any,
) -> Launch:
    place = LaunchContext(
        program=("/opt/copilot",),
        version="1.0.102",
        **NOT_COMPILED,
        cwd="/work/repo",
        home="/state/home",
        tmp="/state/tmp",
        env=env,
        project_files=found,
    )
    return launch_of(
        agent, RunOptions.build(agent.name, {"model": "m", **options}), place, prompt, resume
    )


def flags(agent: AgentSpec, policy: Policy, **options: Any) -> list[str]:
    run = RunOptions.build(agent.name, {"policy": policy, **options})
    return list(compile_policy(agent, policy, run).controls.flags)


def report(agent: AgentSpec, policy: Policy) -> dict[str, str]:
    return decisions(compile_policy(agent, policy))


def test_a_mode_that_never_asks_is_refused_unless_everything_is_allowed() -> None:
    """In autopilot the real program writes outside the workspace without asking."""
    address = "https://agentclientprotocol.com/protocol/session-modes#"
    for mode in ("agent", "plan", f"{address}agent", f"{address}plan"):
        assert launch(PEER, policy="edits", session_mode=mode)
    for mode in ("autopilot", f"{address}autopilot", "other"):
        for policy in ("reads", "edits", None):
            with pytest.raises(errors.ConfigError, match="would bypass the policy"):
                launch(PEER, policy=policy, session_mode=mode)
        assert launch(PEER, policy="all", session_mode=mode)


def test_the_prompt_is_sent_on_stdin_and_the_session_id_is_known_before_the_start() -> None:
    started = launch(prompt="--yolo\n/help", system_prompt="Be kind.")
    assert started.stdin == b"Be kind.\n\n--yolo\n/help"
    assert "--yolo" not in started.argv
    assert f"--session-id={started.session_id}" in started.argv
    assert launch().session_id == started.session_id
    second = launch(resume="abc")
    assert ("--resume=abc" in second.argv, second.session_id) == (True, "abc")
    assert f"--usage-output-file={started.report}" in started.argv
    assert started.report == "/state/tmp/usage.json"


def test_it_contacts_only_the_provider_and_loads_nothing_of_the_repository() -> None:
    for agent in (ALONE, PEER):
        started = launch(agent)
        assert started.env["COPILOT_OFFLINE"] == "true"
        assert started.env["COPILOT_HOME"] == "/state/home/.copilot"
        assert started.env["COPILOT_ALLOW_ALL"] == "false"
        assert "HOME" not in started.env
        assert {"--no-custom-instructions", "--no-auto-update", "--model=m"} <= {*started.argv}
    assert "COPILOT_OFFLINE" not in launch(env={"GH_TOKEN": "canary-token"}).env
    assert "--no-custom-instructions" not in launch(inherit="project").argv


def test_no_secret_is_written_or_seen_by_its_shell() -> None:
    remote = {"name": "far", "url": "http://far/mcp", "headers": {"Authorization": "canary-2"}}
    for agent in (ALONE, PEER):
        started = launch(agent, mcp_servers=[SERVER, remote], policy=Policy(mcp="allow"))
        assert "canary" not in json.dumps([started.argv, started.files])
        servers = json.loads(started.files["mcp.json"])["mcpServers"]
        name = "CORRAL_MCP_SECRET_0_N_2d_TOKEN"
        assert servers["notes"]["env"] == {name: f"${{{name}}}"}
        assert servers["notes"]["command"] == sys.executable
        assert servers["far"]["url"] == "http://far/mcp"
        assert "--additional-mcp-config=@/state/home/mcp.json" in started.argv
        (secret,) = [word for word in started.argv if word.startswith("--secret-env-vars=")]
        assert "COPILOT_PROVIDER_API_KEY" in secret
        # It would not hand one that it strips on to the server either.
        assert "CORRAL_MCP_SECRET" not in secret


def test_unsupported_options_are_refused_before_the_start() -> None:
    with pytest.raises(errors.AuthenticationFailed, match="no credentials"):
        launch(env={})
    with pytest.raises(errors.ConfigError, match="shorter than 8"):
        launch(env={**ENV, "COPILOT_PROVIDER_API_KEY": "x"})
    with pytest.raises(errors.ConfigError, match="a model must be named"):
        launch(model=None)
    with pytest.raises(errors.ConfigError, match="inherit"):
        launch(inherit="user")
    found = ("/work/repo/.github/hooks",)
    with pytest.raises(errors.UntrustedFolder, match="hooks"):
        launch(PEER, found=found)
    launch(PEER, found=found, inherit="project")
    with pytest.raises(errors.ConfigError, match="copilot-cli has no option 'images'"):
        prepare(ALONE.name, {"images": ["a.png"]})


KEPT = "--disallow-temp-dir"
DENY = ["--deny-tool=write", "--deny-tool=shell", "--deny-tool=url", "--deny-tool=notes"]
OTHER = "task,read_agent,list_agents,write_agent,skill"
SHELL = "bash,read_bash,write_bash,stop_bash,list_bash"
WRITE, WEB = "create,edit,apply_patch", "web_fetch,web_search"


def hidden(*names: str) -> str:
    return f"--excluded-tools={','.join((OTHER, *names))}"


ALL = hidden(WRITE, SHELL, WEB)


@pytest.mark.parametrize(
    ("policy", "alone", "peer"),
    [
        (Policy(), [KEPT, *DENY, ALL], None),
        (Policy.reads(), [KEPT, *DENY, ALL], None),
        (
            Policy.edits(),
            [KEPT, "--allow-tool=write", *DENY[1:], hidden(SHELL, WEB)],
            [KEPT, *DENY[1:], hidden(SHELL, WEB)],
        ),
        (Policy.all(), ["--allow-all"], ["--allow-all"]),
        (Policy.native(), [], []),
        (
            Policy(read="deny"),
            [KEPT, "--deny-tool=read", *DENY, hidden("view,grep,glob", WRITE, SHELL, WEB)],
            None,
        ),
        (
            Policy(shell="allow", network="allow", mcp="allow"),
            [
                KEPT,
                DENY[0],
                "--allow-tool=shell",
                "--allow-all-urls",
                "--allow-tool=notes",
                hidden(WRITE),
            ],
            None,
        ),
        (
            Policy(allow_tools=("bash", "notes-keep"), deny_tools=("view",)),
            [
                KEPT,
                "--available-tools=bash,notes-keep",
                "--allow-tool=shell",
                "--allow-tool=notes(keep)",
                "--excluded-tools=view",
            ],
            None,
        ),
        (Policy(allow_tools=()), [KEPT, "--available-tools=none"], None),
    ],
)
def test_what_is_not_allowed_is_not_offered_and_writes_ask_us(
    policy: Policy, alone: list[str], peer: list[str] | None
) -> None:
    assert flags(ALONE, policy, mcp_servers=[SERVER]) == alone
    assert flags(PEER, policy, mcp_servers=[SERVER]) == (alone if peer is None else peer)


def asking(policy: Policy, *, strict: bool = True) -> CompiledPolicy:
    """Of the persistent agent, with somebody who can answer."""
    run = RunOptions.build(PEER.name, {"policy": policy, "strict": strict})
    return compile_policy(PEER, policy, replace(run, interactive=True))


def test_if_somebody_can_answer_it_asks_about_writes_and_about_commands_only_if_not_strict() -> (
    None
):
    asked = asking(Policy())
    assert "--deny-tool=write" not in asked.controls.flags
    assert "--deny-tool=shell" in asked.controls.flags
    rows = decisions(asked)
    assert rows["write"] == "ask (brokered) · protected names: deny (brokered)"
    assert rows["shell"] == "not offered"
    loose = asking(Policy(), strict=False)
    assert not [flag for flag in loose.controls.flags if "shell" in flag]
    row = next(row for row in loose.report if row.capability == "shell")
    assert (row.verdict, row.enforcer) == ("ask", "advisory")
    assert "without asking" in row.note


@pytest.mark.parametrize(("capability", "flag"), [("read", "read"), ("mcp", "notes")])
def test_what_it_does_not_ask_about_is_denied_even_if_somebody_can_answer(
    capability: str, flag: str
) -> None:
    """It reads in the workspace and runs read-only MCP tools without asking."""
    policy = Policy(read="ask", mcp="ask")
    servers = (McpServer("notes", command=("notes",)), McpServer("corral", command=("ours",)))
    run = replace(RunOptions.build(PEER.name, {"policy": policy}), mcp_servers=servers)
    compiled = compile_policy(PEER, policy, replace(run, interactive=True))
    assert decisions(compiled)[capability] == "not offered"
    assert f"--deny-tool={flag}" in compiled.controls.flags
    assert "--deny-tool=corral" not in compiled.controls.flags
    loose = compile_policy(PEER, policy, replace(run, interactive=True, strict=False))
    assert decisions(loose)[capability] == "ask (not enforced)"


def test_writable_folders_are_named() -> None:
    started = launch(policy=Policy(write="allow", writable=("more", "/abs")))
    added = [word for word in started.argv if word.startswith("--add-dir=")]
    assert added == ["--add-dir=/work/repo/more", "--add-dir=/abs"]


def test_shell_rules_become_permission_requests_or_flags() -> None:
    policy = Policy(shell_rules=("deny git push *", "allow git status"))
    assert flags(ALONE, policy)[-3:-1] == [
        "--deny-tool=shell(git push:*)",
        "--allow-tool=shell(git status)",
    ]
    assert not [word for word in flags(PEER, policy) if "shell" in word]
    for agent in (ALONE, PEER):
        with pytest.raises(errors.PolicyNotEnforceable, match="shell=deny"):
            prepare(agent.name, {"policy": policy})
    ruled = report(PEER, Policy(shell_rules=("allow git *",)))["shell"]
    assert ruled == "deny (not enforced) · git *: allow (not enforced)"


def test_the_report_says_what_ask_becomes() -> None:
    for agent in (ALONE, PEER):
        row = next(
            row for row in compile_policy(agent, Policy()).report if row.capability == "write"
        )
        assert row.decision == "deny (native)"
        assert "no one can answer" in row.note
    written = "allow ({0}) · protected names: deny ({1})"
    assert report(PEER, Policy.edits())["write"] == written.format("brokered", "brokered")
    assert report(ALONE, Policy.edits())["write"] == written.format("native", "not enforced")
    assert report(ALONE, Policy.all())["write"] == "allow (native)"
    for agent in (ALONE, PEER):
        rows = compile_policy(agent, Policy(network="allow")).report
        assert "has no web tools" in next(r.note for r in rows if r.capability == "network")
    free = report(ALONE, Policy(shell="allow", network="deny"))["network"]
    assert free == "deny (native) · commands: deny (not enforced)"


def test_a_name_that_is_similar_to_a_tool_is_refused() -> None:
    with pytest.raises(errors.PolicyError, match="did you mean 'bash'"):
        flags(ALONE, Policy(deny_tools=("bassh",)))


@pytest.mark.parametrize(
    ("finish", "code", "kind"),
    [
        (TurnEnd(ok=False, kind="401", message="x"), 1, errors.AuthenticationFailed),
        (TurnEnd(ok=False, kind="404", message="x"), 1, errors.ModelNotFound),
        (TurnEnd(ok=False, kind="429", message="x"), 1, errors.RateLimited),
        (TurnEnd(ok=False, kind="503", message="x"), 1, errors.ServerFailed),
        (TurnEnd(ok=False, kind="400", message="context length"), 1, errors.ContextLengthExceeded),
        (TurnEnd(ok=False, kind="400", message="x"), 1, errors.InvalidRequest),
        (TurnEnd(ok=False, kind="agent_error", message="no key (HTTP 401)"), 0, None),
        (TurnEnd(ok=False, kind="query", message="connect refused"), 1, errors.NetworkFailed),
        (TurnEnd(ok=False, kind="aborted"), 0, errors.Interrupted),
        (TurnEnd(ok=True), 1, errors.ProcessFailed),
        (TurnEnd(ok=True), None, errors.KilledBySignal),
        (None, None, errors.KilledBySignal),
        (None, 127, errors.BrokenInstall),
        (None, 1, errors.ProcessFailed),
    ],
)
def test_success_needs_a_result_and_a_clean_exit(
    finish: TurnEnd | None, code: int | None, kind: type[errors.CorralError] | None
) -> None:
    assert type(explained(ALONE, finish, code, answered=True)) is (
        kind or errors.AuthenticationFailed
    )


def test_a_turn_with_an_answer_succeeds_and_one_without_fails() -> None:
    assert explained(ALONE, TurnEnd(ok=True), 0, answered=True) is None
    assert type(explained(ALONE, TurnEnd(ok=True), 0)) is errors.EmptyAnswer
    advice = "".join(f"\nTo resume by {way}: copilot --resume" for way in "abcdefg")
    lost = f"Error: No session, task, or name matched 'x'.{advice}"
    assert type(explained(ALONE, None, 1, stderr=lost, answered=True)) is errors.ResumeLost


def test_its_version_is_read_from_the_package_with_its_owners_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    program = programs.managed_program(ALONE)
    assert str(program).endswith("node_modules/@github/copilot-linux-x64/copilot")
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    package = {"name": "@github/copilot-linux-x64", "version": "1.0.102"}
    (program.parent / "package.json").write_text(json.dumps(package))
    assert programs.locate(ALONE, str(program)).version == "1.0.102"
