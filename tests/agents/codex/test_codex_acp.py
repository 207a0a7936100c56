"""codex-acp: launch and policy."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent_launch import NOT_COMPILED, compile_policy, decisions, explained, launch_of

from corral import McpServer, Policy, errors
from corral._agents import registry
from corral._agents.codex import controls
from corral._agents.codex.spec import QUIRKS
from corral._agents.spec import Launch, LaunchContext
from corral._protocol.acp.frames import ToolFields
from corral._protocol.acp.tool_calls import OpenToolCall
from corral._protocol.ndjson import TurnEnd
from corral.options import RunOptions
from corral.values import Json

AGENT = registry.find("codex-acp")
KEY = {"OPENAI_API_KEY": "canary-key-in-env", "OPENAI_BASE_URL": "http://host/v1"}


def launch(project_files: tuple[str, ...] = (), **options: Any) -> Launch:
    place = LaunchContext(
        program=("node", "/opt/codex-acp"),
        version="2.6.0",
        **NOT_COMPILED,
        cwd="/work/repo",
        home="/state/home",
        tmp="/state/tmp",
        env=KEY,
        project_files=project_files,
    )
    return launch_of(AGENT, RunOptions.build(AGENT.name, options), place, "", None)


def config(started: Launch) -> dict[str, Any]:
    return json.loads(started.env["CODEX_CONFIG"])  # type: ignore[no-any-return]


def report(policy: Policy, **options: Any) -> dict[str, str]:
    run = RunOptions.build(AGENT.name, options)
    return decisions(compile_policy(AGENT, policy, replace(run, interactive=True)))


def test_it_gets_its_settings_as_json_without_a_secret() -> None:
    started = launch(model="gpt-5.5", retries=2)
    configured = config(started)
    assert started.argv == ("node", "/opt/codex-acp")
    assert "canary" not in json.dumps([started.argv, started.env, started.files])
    assert (configured["model"], configured["model_provider"]) == ("gpt-5.5", "corral")
    assert configured["model_providers"]["corral"]["env_key"] == "OPENAI_API_KEY"
    assert configured["model_providers"]["corral"]["stream_max_retries"] == 2
    assert configured["features"]["plugins"] is False
    assert (configured["project_doc_max_bytes"], configured["allow_login_shell"]) == (0, False)
    assert started.env["CODEX_HOME"] == "/state/home/.codex"
    assert started.env["CODEX_ACP_PROMPT_SUGGESTIONS"] == "false"
    assert any("title" in note for note in started.notes)


def test_it_never_starts_in_the_mode_that_writes_without_asking() -> None:
    for policy in ("reads", "edits", Policy()):
        started = launch(policy=policy)
        assert started.env["INITIAL_AGENT_MODE"] == "read-only"
        assert config(started)["features"]["shell_tool"] is False
        assert config(started)["web_search"] == "disabled"
    free = launch(policy="all")
    assert free.env["INITIAL_AGENT_MODE"] == "agent-full-access"
    assert "shell_tool" not in config(free)["features"]
    assert "session_mode" not in AGENT.supports
    blind = launch(policy=Policy(read="deny", network="allow"))
    assert config(blind)["features"]["view_image"] is False
    assert config(blind)["web_search"] == "live"


@pytest.mark.parametrize(
    ("policy", "capability", "decision"),
    [
        (Policy.edits(), "write", "allow (brokered) · protected names: deny (brokered)"),
        (Policy(), "write", "ask (brokered) · protected names: deny (brokered)"),
        (Policy(), "shell", "not offered"),
        (Policy(shell="allow"), "shell", "allow (not enforced)"),
        (Policy(shell_rules=("allow ls",)), "shell", "not offered · ls: not offered"),
        (
            Policy(shell="deny", shell_rules=("allow ls",)),
            "shell",
            "deny (native) · ls: not offered",
        ),
        (Policy(deny_tools=("apply_patch",)), "write", "deny (brokered)"),
        (Policy(deny_tools=("apply_patch",)), "network", "not offered"),
        (Policy(allow_tools=("apply_patch",)), "read", "deny (native)"),
        (Policy(allow_tools=("web_search",)), "network", "allow (native)"),
        (Policy(allow_tools=("web_search",)), "write", "deny (brokered)"),
        (Policy(allow_tools=()), "mcp", "deny (native)"),
        (Policy(allow_tools=("exec_command",)), "shell", "allow (not enforced)"),
        (
            Policy(allow_tools=("mcp__notes__keep",)),
            "mcp",
            "deny (not enforced) · mcp__notes__keep: allow (not enforced)",
        ),
        (Policy.native(), "read", "own default (not enforced)"),
        (Policy.all(), "shell", "allow (native)"),
        (Policy(mcp="deny"), "mcp", "deny (native)"),
    ],
)
def test_the_report_says_what_is_enforced(policy: Policy, capability: str, decision: str) -> None:
    assert report(policy)[capability] == decision


def test_its_settings_follow_the_lists_of_tools() -> None:
    run = RunOptions.build(AGENT.name, {})
    searching = controls.without_lists(Policy(allow_tools=("web_search",)), run)
    assert searching.allow_tools is None
    configured = config(launch(policy=searching))
    assert configured["web_search"] == "live"
    assert configured["features"]["view_image"] is False
    with pytest.raises(errors.PolicyError, match="'apply_patch'"):
        controls.without_lists(Policy(deny_tools=("aply_patch",)), run)


def test_a_server_that_asks_is_refused_and_a_denied_one_is_not_started() -> None:
    notes: dict[str, Any] = {"name": "notes", "command": ["notes"]}
    own = McpServer("corral", url="http://h/", own=True)
    assert report(Policy(mcp="ask"), mcp_servers=[notes])["mcp"] == "ask (not enforced)"
    assert report(Policy(mcp="deny"), mcp_servers=[notes])["mcp"] == "deny (native)"
    assert report(Policy(mcp="allow"), mcp_servers=[notes])["mcp"] == "allow (brokered)"
    ours = report(Policy(mcp="deny", own_mcp="allow"), mcp_servers=[notes, own])["mcp"]
    assert ours == "deny (native) · your own functions: allow (brokered)"


def test_a_tool_of_an_mcp_server_is_recognized_by_its_input() -> None:
    call = OpenToolCall("c", QUIRKS)
    call.merge(ToolFields(kind="execute", raw_input={"server": "corral", "tool": "double"}))
    assert (call.tool_use().name, call.tool_use().kind) == ("mcp__corral__double", "mcp")
    called: Json = {"server": "corral", "tool": "double", "arguments": {"number": 21}}
    call.merge(ToolFields(raw_input=called))
    assert call.tool_use().input == {"number": 21}
    plain = OpenToolCall("c", QUIRKS)
    plain.merge(ToolFields(kind="execute", raw_input={"command": "ls"}))
    assert plain.tool_use().kind == "execute"


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("-32000", "Authentication required", errors.AuthenticationFailed),
        ("agent_error", "We’re currently experiencing high demand.\n\n", errors.ServerFailed),
        ("-32603", "Internal error", errors.ProcessFailed),
    ],
)
def test_the_text_of_a_reported_error_decides_its_class(
    kind: str, message: str, expected: type[Exception]
) -> None:
    finish = TurnEnd(ok=False, kind=kind, message=message)
    configured = explained(AGENT, finish, answered=True)
    assert configured is not None
    assert type(configured) is expected
    assert configured.message == message.strip()


def test_settings_of_a_repository_are_refused_unless_they_are_inherited() -> None:
    files = ("/work/repo/.codex/config.toml",)
    with pytest.raises(errors.UntrustedFolder, match=r"\.codex/config\.toml"):
        launch(project_files=files)
    trusted = config(launch(project_files=files, inherit="project"))
    assert "project_doc_max_bytes" not in trusted
    assert "project_root_markers" not in trusted
    with pytest.raises(errors.ConfigError, match="inherit"):
        launch(inherit="user")
    assert {".codex/config.toml", ".codex/hooks.json", ".codex/rules"} <= {*AGENT.project_files}


def test_the_process_obeys_the_same_settings_as_its_sessions() -> None:
    for policy in ("reads", "edits", "all"):
        started = launch(policy=policy)
        written = tomllib.loads(started.files[".codex/config.toml"])
        assert written == config(started)
        assert written["features"]["plugins"] is False
        assert written["features"]["shell_snapshot"] is False
        assert written["analytics"]["enabled"] is False
        assert written["project_root_markers"] == []
        assert started.env["GIT_DIR"] == "/dev/null"
        assert "GIT_DIR" in written["shell_environment_policy"]["exclude"]


def test_images_are_judged_by_a_hook_and_patches_by_permission_requests() -> None:
    configured = config(launch(policy="edits"))
    (hook,) = configured["hooks"]["PreToolUse"]
    assert hook["matcher"] == "^(view_image)$"
    assert configured["bypass_hook_trust"] is True
    for policy in (Policy(read="deny"), Policy.all()):
        assert "hooks" not in config(launch(policy=policy))
