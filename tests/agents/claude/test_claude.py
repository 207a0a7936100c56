"""Claude Code: launch, policy and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent_launch import NOT_COMPILED, compile_policy, decisions, explained, launch_of

from corral import McpServer, Policy, errors
from corral._agents import registry
from corral._agents.spec import Launch, LaunchContext
from corral._protocol.ndjson import TurnEnd
from corral.options import RunOptions

AGENT, PEER = registry.find("claude"), registry.find("claude-acp")
NONE: set[str] = set()
KEY = {"ANTHROPIC_API_KEY": "canary-key-in-env"}


def launch(
    *,
    env: dict[str, str] = KEY,
    prompt: str = "hello",
    resume: str | None = None,
    at: dict[str, Any] | None = None,
    peer: bool = False,
    interactive: bool = True,
    **options: Any,
) -> Launch:
    values: dict[str, Any] = {
        "program": ("/opt/claude",),
        "version": "2.1.325",
        **NOT_COMPILED,
        "cwd": "/work/repo",
        "home": "/state/home",
        "tmp": "/state/tmp",
        "env": env,
        **(at or {}),
    }
    agent = PEER if peer else AGENT
    run = replace(RunOptions.build(agent.name, options), interactive=interactive)
    return launch_of(agent, run, LaunchContext(**values), prompt, resume)


def value(started: Launch, flag: str) -> str | None:
    if flag not in started.argv:
        return None
    return started.argv[started.argv.index(flag) + 1]


def rules(started: Launch) -> dict[str, list[str]]:
    return json.loads(started.files["settings.json"])["permissions"]  # type: ignore[no-any-return]


def test_both_names_of_the_program_and_its_acp_agent_are_found() -> None:
    assert registry.find("claude-code") is AGENT
    assert registry.find("claude-acp").transport.kind == "acp"


def test_nothing_of_the_repository_or_the_user_is_read_unless_it_is_inherited() -> None:
    started = launch()
    assert value(started, "--setting-sources") == ""
    assert "--strict-mcp-config" in started.argv
    assert started.env["CLAUDE_CONFIG_DIR"] == "/state/home/.claude"
    assert started.env["CLAUDE_CODE_DISABLE_CLAUDE_MDS"] == "1"
    trusting = launch(inherit="project")
    assert value(trusting, "--setting-sources") == "project,local"
    assert "CLAUDE_CODE_DISABLE_CLAUDE_MDS" not in trusting.env


def test_its_temporary_files_stay_in_the_session_and_no_service_is_asked_about_a_url() -> None:
    started = launch(env={**KEY, "ANTHROPIC_BASE_URL": "http://host"})
    assert {started.env["TMPDIR"], started.env["CLAUDE_CODE_TMPDIR"]} == {"/state/tmp"}
    assert json.loads(started.files["settings.json"])["skipWebFetchPreflight"] is True
    assert "skipWebFetchPreflight" not in launch().files["settings.json"]
    elsewhere = launch(peer=True, env={**KEY, "ANTHROPIC_BASE_URL": "http://host"})
    assert "skipWebFetchPreflight" in json.dumps(dict(elsewhere.session_meta))
    assert "skipWebFetchPreflight" not in json.dumps(dict(launch(peer=True).session_meta))


def test_no_secret_is_in_the_arguments_or_the_files() -> None:
    server = McpServer("notes", url="http://host/mcp", headers={"Authorization": "Bearer canary"})
    started = launch(mcp_servers=[server], policy="all")
    assert "canary" not in json.dumps([started.argv, started.files])
    assert "Bearer canary" in started.env.values()


def test_options_become_flags() -> None:
    started = launch(
        model="opus",
        max_turns=3,
        max_cost=0.5,
        reasoning_effort="high",
        include_directories=["/more"],
        output_schema={"type": "object"},
        retries=3,
    )
    assert value(started, "--model") == "opus"
    assert value(started, "--max-turns") == "3"
    assert float(value(started, "--max-budget-usd") or 0) == 0.5
    assert value(started, "--effort") == "high"
    assert value(started, "--add-dir") == "/more"
    assert value(started, "--json-schema") == '{"type": "object"}'
    assert started.env["CLAUDE_CODE_MAX_RETRIES"] == "3"


def test_a_system_prompt_is_appended_or_replaces_the_original() -> None:
    added = launch(system_prompt="Be brief.")
    assert value(added, "--append-system-prompt-file") == "/state/home/system.md"
    assert added.files["system.md"] == "Be brief."
    assert value(launch(replace_system_prompt="x"), "--system-prompt-file") is not None


def test_without_credentials_nothing_is_started() -> None:
    with pytest.raises(errors.AuthenticationFailed, match="no credentials"):
        launch(env={})
    assert (
        "~/.claude" in launch(env={}, at={"credentials": (".claude/.credentials.json",)}).notes[0]
    )


@pytest.mark.parametrize(
    ("policy", "offered", "hidden", "allowed", "asked"),
    [
        (Policy(), {"Bash", "Write", "WebFetch", "Read"}, NONE, NONE, {"Bash", "Write"}),
        (Policy(write="allow"), {"Write"}, NONE, NONE, {"Write", "Edit", "NotebookEdit"}),
        (Policy.reads(), {"Read"}, {"Bash", "Monitor", "Write"}, NONE, NONE),
        (Policy.edits(), {"Write"}, {"Bash", "WebFetch"}, NONE, {"Write", "Edit", "NotebookEdit"}),
        (Policy.all(), {"Bash"}, NONE, {"Bash", "Write", "Read"}, NONE),
        (Policy(read="ask"), {"Read"}, NONE, NONE, {"Read", "Grep", "Glob"}),
        (Policy(shell="allow"), {"Bash"}, NONE, {"Bash"}, {"Write"}),
        (Policy(shell="allow", shell_rules=("deny rm *",)), {"Bash"}, NONE, NONE, {"Bash"}),
        (Policy(shell="deny", shell_rules=("allow ls",)), {"Bash"}, NONE, NONE, {"Bash"}),
        (Policy(shell="deny", shell_rules=("deny ls",)), NONE, {"Bash"}, NONE, NONE),
        (Policy(allow_tools=("Read",)), {"Read"}, NONE, NONE, NONE),
        (Policy(deny_tools=("Task",)), {"Bash"}, {"Task", "Agent"}, NONE, NONE),
    ],
)
def test_a_policy_becomes_offered_hidden_allowed_and_asked_tools(
    policy: Policy, offered: set[str], hidden: set[str], allowed: set[str], asked: set[str]
) -> None:
    started = launch(policy=policy)
    there = set((value(started, "--tools") or "").split(","))
    away = set((value(started, "--disallowedTools") or "").split(","))
    free = set((value(started, "--allowedTools") or "").split(","))
    assert offered <= there
    assert hidden <= away
    assert not there & away
    assert allowed <= free
    assert asked <= set(rules(started)["ask"])
    assert not free & set(rules(started)["ask"])


def test_tools_that_would_ask_are_not_offered_if_no_one_can_answer() -> None:
    server = McpServer("notes", command=("notes",))
    for peer in (False, True):
        started = launch(interactive=False, mcp_servers=[server], peer=peer)
        text = json.dumps([started.argv, started.files, dict(started.session_meta)])
        offered = (value(started, "--tools") or "Read").split(",")
        if peer:
            offered = json.loads(text)[2]["claudeCode"]["options"]["tools"]
        assert "Read" in offered
        assert not {"Bash", "Monitor", "Write", "Edit", "NotebookEdit", "WebFetch"} & {*offered}
    assert "mcp.json" not in launch(interactive=False, mcp_servers=[server]).files
    ruled = launch(interactive=False, policy=Policy(shell_rules=("allow ls",)))
    assert "Bash" in (value(ruled, "--tools") or "").split(",")
    assert "Bash" in rules(ruled)["ask"]


def test_protected_names_are_denied_unless_commands_may_write_them_anyway() -> None:
    for policy in (Policy(), Policy.edits(), Policy(read="deny", write="allow")):
        denied = rules(launch(policy=policy))["deny"]
        assert {"Edit(**/.git)", "Edit(**/.git/**)", "Edit(**/.claude/**)"} <= set(denied)
    assert rules(launch(policy=Policy(shell="allow")))["deny"] == []


def test_an_exact_list_offers_nothing_else_and_an_empty_one_nothing() -> None:
    assert value(launch(policy=Policy(allow_tools=("Read", "Write"))), "--tools") == "Read,Write"
    assert value(launch(policy=Policy(allow_tools=())), "--tools") == ""


def test_permissions_are_never_skipped() -> None:
    for policy in (Policy.all(), Policy.edits(), Policy()):
        assert value(launch(policy=policy), "--permission-mode") == "manual"
        assert "skip-permissions" not in " ".join(launch(policy=policy).argv)


def test_mcp_servers_follow_the_policy() -> None:
    server = McpServer("notes", command=("notes",))
    asked = launch(mcp_servers=[server])
    assert "mcp__notes" in rules(asked)["ask"]
    denied = launch(mcp_servers=[server], policy=Policy(mcp="deny"))
    assert "mcp.json" not in denied.files
    ours = McpServer("corral", command=("c",), own=True)
    own = launch(mcp_servers=[ours], policy=Policy.edits())
    assert "mcp__corral" in (value(own, "--allowedTools") or "")


def test_a_misspelled_tool_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(errors.PolicyError, match="did you mean 'Bash'"):
        launch(policy=Policy(deny_tools=("bash",)))
    with pytest.raises(errors.PolicyError, match="would do nothing"):
        launch(policy=Policy(deny_tools=("run_shell_command",)))


def test_the_report_says_how_each_capability_is_enforced() -> None:
    def report(policy: Policy, *, interactive: bool = True) -> dict[str, str]:
        run = RunOptions(agent=AGENT.name, interactive=interactive)
        return decisions(compile_policy(AGENT, policy, run))

    asked = dict.fromkeys(("shell", "network", "mcp"), "ask (brokered)")
    writes = "ask (brokered) · protected names: deny (brokered)"
    assert report(Policy()) == {"read": "allow (native)", "write": writes, **asked}
    assert report(Policy(), interactive=False)["shell"] == "deny (native)"
    assert report(Policy.reads())["shell"] == "deny (native)"
    assert report(Policy.edits())["write"] == writes.replace("ask", "allow")
    assert report(Policy.all())["write"] == "allow (native)"
    network = report(Policy(shell="allow", network="deny"))["network"]
    assert network == "deny (native) · commands: deny (not enforced)"
    shell = report(Policy(shell="allow", shell_rules=("deny rm *",)))["shell"]
    assert shell == "allow (brokered) · rm *: deny (brokered)"
    shell = report(Policy(shell="deny", shell_rules=("allow git status",)))["shell"]
    assert shell == "deny (brokered) · git status: allow (brokered)"


@pytest.mark.parametrize(
    ("kind", "message", "error"),
    [
        ("authentication_failed", "401", errors.AuthenticationFailed),
        ("authentication_failed", "API Error: 403", errors.AccessDenied),
        ("billing_error", "Credit balance is too low", errors.QuotaSpent),
        ("server_error", "Connection refused (ECONNREFUSED)", errors.NetworkFailed),
        ("server_error", "529 Overloaded", errors.ServerFailed),
        ("error_max_turns", "", errors.TurnLimit),
        ("error_max_budget_usd", "", errors.BudgetExceeded),
        ("error_during_execution", "No conversation found with session ID: x", errors.ResumeLost),
        ("error", "what is this", errors.ProcessFailed),
        ("", "Request rejected (429) · Rate limit reached", errors.RateLimited),
        ("", "You've hit your limit", errors.QuotaSpent),
        ("", "5-hour limit reached", errors.QuotaSpent),
    ],
)
def test_a_failure_has_its_own_class(
    kind: str, message: str, error: type[errors.CorralError]
) -> None:
    found = explained(AGENT, TurnEnd(ok=False, kind=kind, message=message), 1)
    assert type(found) is error


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"code": 0}, errors.StreamBroken),
        ({"code": 143}, errors.KilledBySignal),
        ({"code": None, "signal": 9}, errors.KilledBySignal),
        ({"stderr": "Error: claude native binary not installed."}, errors.BrokenInstall),
        ({"stderr": "error: unknown option '--nope'"}, errors.InputRejected),
        ({"stderr": "Something else"}, errors.ProcessFailed),
    ],
)
def test_an_exit_without_a_message_is_explained_by_code_and_stderr(
    more: dict[str, Any], error: type[errors.CorralError]
) -> None:
    assert type(explained(AGENT, **{"code": 1, **more})) is error


def test_success_needs_a_clean_exit_and_an_answer() -> None:
    assert explained(AGENT, TurnEnd(ok=True), code=0, answered=True) is None
    assert isinstance(explained(AGENT, TurnEnd(ok=True), code=0), errors.EmptyAnswer)
    failed = explained(AGENT, TurnEnd(ok=True), code=1, answered=True)
    assert isinstance(failed, errors.ProcessFailed)
