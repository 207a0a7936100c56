"""Qwen Code: launch, policy and errors."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent_launch import NOT_COMPILED, compile_policy, decisions, explained, launch_of

import corral
from corral import McpServer, Policy, errors
from corral._agents import registry
from corral._agents.spec import Launch, LaunchContext
from corral._protocol.ndjson import TurnEnd
from corral.options import RunOptions

ALONE, PEER = registry.find("qwen-cli"), registry.find("qwen-acp")
NONE: set[str] = set()
KEY = {"OPENAI_API_KEY": "canary-key-in-env"}
NOTES = McpServer("notes", command=("notes", "--here"), env={"TOKEN": "canary-token"})


def launch(
    *,
    env: dict[str, str] = KEY,
    prompt: str = "hello",
    resume: str | None = None,
    project_files: tuple[str, ...] = (),
    peer: bool = False,
    **options: Any,
) -> Launch:
    place = LaunchContext(
        program=("/opt/qwen",),
        version="0.24.4",
        **NOT_COMPILED,
        cwd="/work/repo",
        home="/state/s1/home",
        tmp="/state/s1/tmp",
        env=env,
        project_files=project_files,
    )
    agent = PEER if peer else ALONE
    if resume is not None:
        options["resume"] = resume
    return launch_of(agent, RunOptions.build(agent.name, options), place, prompt, resume)


def value(started: Launch, flag: str) -> str | None:
    found = [word.partition("=")[2] for word in started.argv if word.startswith(f"{flag}=")]
    return found[0] if found else None


def excluded(started: Launch) -> set[str]:
    return set((value(started, "--exclude-tools") or "").split(","))


def settings(started: Launch) -> dict[str, Any]:
    path = started.env["QWEN_CODE_SYSTEM_SETTINGS_PATH"]
    return json.loads(started.files[path.removeprefix("/state/s1/home/")])  # type: ignore[no-any-return]


def mode(started: Launch) -> str:
    return started.argv[started.argv.index("--approval-mode") + 1]


@pytest.mark.parametrize("peer", [False, True])
@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (Policy(), "default"),
        (Policy.all(), "default"),
        (Policy.native(), "default"),
        (Policy.plan(), "plan"),
    ],
)
def test_the_mode_is_always_set_because_the_default_writes_without_asking(
    policy: Policy, wanted: str, peer: bool
) -> None:
    assert mode(launch(policy=policy, peer=peer)) == wanted


@pytest.mark.parametrize(
    ("policy", "hidden", "asked"),
    [
        (Policy(), {"edit", "run_shell_command", "web_fetch"}, {"read_file", "glob"}),
        (Policy.reads(), {"edit", "write_file", "run_shell_command", "web_fetch"}, NONE),
        (Policy.edits(), {"run_shell_command", "web_fetch"}, {"edit", "write_file"}),
        (Policy.all(), NONE, {"edit", "run_shell_command", "web_fetch"}),
        (Policy(read="deny", write="allow"), {"read_file", "glob"}, {"edit"}),
        (Policy(read="ask"), {"read_file", "glob", "edit"}, NONE),
        (Policy(allow_tools=("glob",)), {"edit", "run_shell_command"}, {"read_file", "glob"}),
        (Policy(shell="deny", shell_rules=("allow git *",)), NONE, {"run_shell_command", "edit"}),
        (Policy(deny_tools=("glob",)), NONE, {"glob"}),
    ],
)
def test_denied_tools_are_not_offered_and_the_others_ask_us(
    policy: Policy, hidden: set[str], asked: set[str]
) -> None:
    started = launch(policy=policy)
    rules = settings(started)["permissions"]
    assert hidden <= excluded(started)
    assert asked <= set(rules["ask"])
    assert not set(rules["ask"]) & excluded(started)
    assert {"agent", "skill", "send_message"} <= excluded(started)


def test_if_somebody_can_answer_tools_that_ask_are_offered_and_each_call_asks() -> None:
    run = replace(RunOptions.build("qwen-cli", {"policy": Policy(read="ask")}), interactive=True)
    compiled = compile_policy(ALONE, run.policy, run)
    asked = set(json.loads(compiled.controls.files["settings.json"])["permissions"]["ask"])
    assert {"read_file", "glob", "edit", "run_shell_command", "web_fetch"} <= asked
    assert not asked & set(compiled.controls.flags[-1].partition("=")[2].split(","))
    rows = {row.capability: row for row in compiled.report}
    assert all((row.verdict, row.enforcer) == ("ask", "brokered") for row in rows.values())


@pytest.mark.parametrize(
    ("policy", "capability", "decision"),
    [
        (Policy(), "read", "allow (brokered)"),
        (Policy(), "write", "deny (native)"),
        (Policy(), "shell", "deny (native)"),
        (Policy.reads(), "write", "deny (native)"),
        (Policy.edits(), "write", "allow (brokered) · protected names: deny (brokered)"),
        (
            Policy(shell="allow", network="deny"),
            "network",
            "deny (native) · commands: deny (not enforced)",
        ),
        (
            Policy(shell="deny", shell_rules=("allow git *",)),
            "shell",
            "deny (brokered) · git *: allow (brokered)",
        ),
        (
            Policy(allow_tools=("web_fetch",)),
            "network",
            "deny (brokered) · web_fetch: allow (brokered)",
        ),
        (Policy(allow_tools=("edit",)), "shell", "deny (native)"),
        (
            Policy(allow_tools=("mcp__a__b",)),
            "mcp",
            "deny (brokered) · mcp__a__b: allow (brokered)",
        ),
    ],
)
def test_the_report_says_how_the_policy_is_enforced(
    policy: Policy, capability: str, decision: str
) -> None:
    assert decisions(compile_policy(ALONE, policy))[capability] == decision


def test_a_similar_tool_name_is_an_error() -> None:
    with pytest.raises(errors.PolicyError, match="write_file"):
        launch(policy=Policy(deny_tools=("writefile",)))
    with pytest.raises(errors.PolicyError, match="do nothing"):
        launch(policy=Policy(deny_tools=("Bash",)))
    launch(policy=Policy(deny_tools=("Bash",)), strict=False)


def test_nothing_of_the_repository_or_the_user_is_read_unless_it_is_inherited() -> None:
    started = launch()
    configured = settings(started)
    assert started.env["QWEN_HOME"] == "/state/s1/home/.qwen"
    assert configured["security"]["folderTrust"]["enabled"] is True
    assert configured["disableAllHooks"] is True
    assert configured["mcp"] == {"allowed": ["none"]}
    assert value(started, "--extensions") == "none"
    assert json.loads(started.files[".qwen/settings.json"]) == {}
    theirs = settings(launch(inherit="project", project_files=("/work/repo/.qwen",)))
    assert theirs["security"]["folderTrust"]["enabled"] is False
    assert "disableAllHooks" not in theirs
    assert value(launch(inherit="user"), "--extensions") is None


def test_mcp_servers_need_trust_and_are_refused_if_the_repository_has_settings() -> None:
    started = launch(mcp_servers=[NOTES], policy=Policy(mcp="allow"))
    configured = settings(started)
    assert configured["security"]["folderTrust"]["enabled"] is False
    assert configured["mcpServers"]["notes"]["args"][-2:] == ["notes", "--here"]
    (name,) = configured["mcpServers"]["notes"]["env"]
    assert name in started.env
    assert "canary-token" not in json.dumps([configured, started.env])
    denied = settings(launch(mcp_servers=[NOTES], policy=Policy(mcp="deny")))
    assert denied["mcpServers"] == {}
    with pytest.raises(errors.UntrustedFolder, match="qwen"):
        launch(
            mcp_servers=[NOTES],
            policy=Policy(mcp="allow"),
            project_files=("/work/repo/.qwen",),
        )


def test_variables_that_a_dot_env_could_set_are_already_set() -> None:
    assert launch().env["OPENAI_BASE_URL"] == "https://api.openai.com/v1"
    mine = launch(env={**KEY, "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert mine.env["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert (mine.env["QWEN_TLS_INSECURE"], mine.env["NODE_TLS_REJECT_UNAUTHORIZED"]) == ("0", "1")


def test_the_key_that_is_set_chooses_the_service() -> None:
    both = launch(env={**KEY, "ANTHROPIC_API_KEY": "canary-other"})
    assert value(both, "--auth-type") == "openai"
    assert both.hidden_env == {"ANTHROPIC_API_KEY"}
    assert value(launch(env={"ANTHROPIC_API_KEY": "k"}), "--auth-type") == "anthropic"
    with pytest.raises(errors.AuthenticationFailed, match="no credentials"):
        launch(env={})


@pytest.mark.parametrize("agent", [ALONE.name, PEER.name])
async def test_the_key_of_the_other_service_does_not_reach_the_program(
    workspace: Path, tmp_path: Path, agent: str
) -> None:
    program = tmp_path / "qwen"
    version = '[ "$1" = --version ] && echo 0.24.4 && exit'
    program.write_text(f"#!/bin/sh\n{version}\nenv > {tmp_path}/seen\nexit 1\n")
    program.chmod(0o755)
    env = {**KEY, "ANTHROPIC_API_KEY": "canary-other"}
    with contextlib.suppress(errors.CorralError):
        await corral.run(agent, "hi", cwd=workspace, program=str(program), env=env)
    seen = (tmp_path / "seen").read_text()
    assert "canary-key-in-env" in seen
    assert "canary-other" not in seen


@pytest.mark.parametrize("prompt", ["/help me", "mail me@example.com", "see @seed.txt"])
def test_a_prompt_with_special_syntax_is_sent_as_a_command(prompt: str) -> None:
    started = launch(prompt=prompt)
    name = started.stdin.decode().removeprefix("/")
    assert json.dumps(prompt) in started.files[f".qwen/commands/{name}.toml"]
    assert launch(prompt="plain words").stdin == b"plain words"


def test_options_become_flags_and_settings() -> None:
    started = launch(
        model="qwen3",
        resume="s-1",
        fork=True,
        max_turns=3,
        system_prompt="kind",
        include_directories=("lib",),
        reasoning_effort="high",
    )
    assert value(started, "--model") == "qwen3"
    assert value(started, "--resume") == "s-1"
    assert "--fork-session" in started.argv
    assert value(started, "--max-session-turns") == "3"
    assert value(started, "--append-system-prompt") == "kind"
    assert value(started, "--add-dir") == "/work/repo/lib"
    assert settings(started)["model"]["reasoningEffort"] == "high"
    with pytest.raises(errors.ConfigError, match="minimal"):
        launch(reasoning_effort="minimal")
    assert launch(peer=True).argv[-1] == "--acp"


@pytest.mark.parametrize("option", ["images", "max_cost", "output_schema", "retries"])
def test_the_headless_agent_does_not_claim_unsupported_options(option: str) -> None:
    assert option not in ALONE.supports


@pytest.mark.parametrize(
    ("expected", "kind"),
    [
        ("[API Error: 401 Incorrect API key provided]", errors.AuthenticationFailed),
        ("Internal error: 401 no", errors.AuthenticationFailed),
        ("[API Error: 403 Forbidden]", errors.AccessDenied),
        ("[API Error: 404 The model `x` does not exist]", errors.ModelNotFound),
        ("[API Error: 429 Too many requests]", errors.RateLimited),
        ("[API Error: 429 You exceeded your quota]", errors.QuotaSpent),
        ("[API Error: 500 oh no]", errors.ServerFailed),
        ("[API Error: 400 maximum context length is 8]", errors.ContextLengthExceeded),
        ("[API Error: 400 bad field]", errors.InvalidRequest),
        ("[API Error: Connection error. (cause: fetch failed)]", errors.NetworkFailed),
        ("Operation cancelled.", errors.Interrupted),
        ("Model stream ended with empty response text.", errors.EmptyAnswer),
        ("something else", errors.ProcessFailed),
    ],
)
def test_the_text_of_the_service_becomes_one_error(
    expected: str, kind: type[errors.CorralError]
) -> None:
    assert type(explained(ALONE, TurnEnd(ok=False, message=expected), 1)) is kind


def test_an_end_without_a_result_is_explained() -> None:
    assert explained(ALONE, TurnEnd(ok=True), answered=True) is None
    assert type(explained(ALONE, None, 53)) is errors.TurnLimit
    assert (
        type(explained(ALONE, None, 1, stderr="No saved session found with ID x"))
        is errors.ResumeLost
    )
    assert type(explained(ALONE, None, None)) is errors.KilledBySignal
    assert type(explained(ALONE, None, 127)) is errors.BrokenInstall
    assert type(explained(ALONE, None, 0)) is errors.StreamBroken
    assert type(explained(ALONE, None, 1, stderr="odd")) is errors.ProcessFailed
    assert type(explained(ALONE, TurnEnd(ok=True), 1, answered=True)) is errors.ProcessFailed
    assert type(explained(ALONE, TurnEnd(ok=True), None, answered=True)) is errors.KilledBySignal


async def test_a_prompt_that_would_be_cut_is_refused(workspace: Path) -> None:
    for agent in (ALONE, PEER):
        with pytest.raises(errors.PromptError):
            await corral.run(
                agent.name, "x" * (8 << 20), cwd=workspace, program=sys.executable, env=KEY
            )


def test_a_probe_gets_its_working_directory() -> None:
    assert ALONE.probe is not None
    assert replace(ALONE.probe, folder="/here").write[1]["file_path"] == "/here/probe.txt"
