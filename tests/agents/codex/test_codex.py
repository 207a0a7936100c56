"""Codex: launch, policy and errors."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from support.agent_launch import NOT_COMPILED, compile_policy, decisions, explained, launch_of

from corral import McpServer, Policy, errors
from corral._agents import registry
from corral._agents.spec import Launch, LaunchContext
from corral._protocol.ndjson import TurnEnd
from corral._system import programs
from corral.events import ToolResult
from corral.options import RunOptions

AGENT = registry.find("codex-cli")
KEY = {"OPENAI_API_KEY": "canary-key-in-env", "OPENAI_BASE_URL": "http://host/v1"}
NOTES: dict[str, Any] = {"name": "notes", "command": ["notes", "-x"], "env": {"TOKEN": "canary-1"}}
OWN = McpServer("corral", url="http://h/", headers={"Authorization": "canary-2"}, own=True)


def launch(
    *, env: dict[str, str] = KEY, at: dict[str, Any] | None = None, **options: Any
) -> Launch:
    values: dict[str, Any] = {
        "program": ("/opt/codex",),
        "version": "0.166.0",
        **NOT_COMPILED,
        "cwd": "/work/repo",
        "home": "/state/home",
        "tmp": "/state/tmp",
        "images": "/state/images",
        "env": env,
        **(at or {}),
    }
    resume = options.pop("resume", None)
    return launch_of(
        AGENT, RunOptions.build(AGENT.name, options), LaunchContext(**values), "the prompt", resume
    )


def settings(started: Launch) -> dict[str, Any]:
    """The ``-c`` arguments, parsed in the same way as by Codex."""
    configured = [word for flag, word in pairs(started) if flag == "-c"]
    complete: dict[str, Any] = {}
    for setting in configured:
        merge(complete, tomllib.loads(setting))
    return complete


def merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], cast("dict[str, Any]", value))
        else:
            into[name] = value


def pairs(started: Launch) -> list[tuple[str, str]]:
    return list(zip(started.argv, started.argv[1:], strict=False))


def disabled(started: Launch) -> set[str]:
    return {word for flag, word in pairs(started) if flag == "--disable"}


def sandbox(started: Launch) -> str | None:
    return next((word for flag, word in pairs(started) if flag == "--sandbox"), None)


def report(policy: Policy, **options: Any) -> dict[str, str]:
    return decisions(compile_policy(AGENT, policy, RunOptions.build(AGENT.name, options)))


def test_it_uses_the_private_home_and_reads_the_prompt_from_a_closed_stdin() -> None:
    started = launch(model="gpt-5.5")
    assert started.argv[:3] == ("/opt/codex", "exec", "--json")
    assert started.argv[-1] == "-"
    assert started.stdin == b"the prompt"
    assert started.env["CODEX_HOME"] == "/state/home/.codex"
    assert started.env["TMPDIR"] == "/state/tmp"
    assert ("--model", "gpt-5.5") in pairs(started)
    for flag in ("--ignore-user-config", "--strict-config", "--skip-git-repo-check"):
        assert flag in started.argv
    assert {"plugins", "unbounded_connection_retries"} <= disabled(started)


def test_it_contacts_only_the_model_and_runs_no_git() -> None:
    started = launch()
    configured = settings(started)
    assert configured["analytics"]["enabled"] is False
    assert configured["check_for_update_on_startup"] is False
    assert configured["otel"]["metrics_exporter"] == "none"
    assert started.env["GIT_DIR"] == "/dev/null"
    assert "GIT_DIR" in configured["shell_environment_policy"]["exclude"]


@pytest.mark.parametrize(
    ("policy", "tools"),
    [
        (Policy(), ["view_image"]),
        (Policy.edits(), ["apply_patch", "view_image"]),
        (Policy(write="allow", shell="allow"), ["apply_patch"]),
        (Policy(read="deny", write="allow"), ["apply_patch"]),
        (Policy(read="deny"), []),
        (Policy(shell="allow"), []),
        (Policy.all(), []),
        (Policy.native(), []),
    ],
)
def test_a_hook_judges_the_paths_that_the_sandbox_does_not(
    policy: Policy, tools: list[str]
) -> None:
    started = launch(policy=policy)
    hooks = settings(started).get("hooks", {}).get("PreToolUse", [])
    every = ("apply_patch", "view_image", "exec_command", "xapply_patchx")
    matched = [name for name in every for hook in hooks if re.search(hook["matcher"], name)]
    assert matched == tools
    assert ("--dangerously-bypass-hook-trust" in started.argv) == bool(tools)
    assert ("hooks" in disabled(started)) == (not tools)
    for hook in hooks:
        (command,) = hook["hooks"]
        # Any other exit code than 2, as of a program that is not there, would be leave.
        assert command["command"].endswith("|| exit 2")


def test_the_hook_guards_the_folders_of_the_session() -> None:
    policy = Policy(write="allow", writable=("/more",))
    configured = settings(launch(policy=policy, include_directories=["/else"]))
    words = shlex.split(configured["hooks"]["PreToolUse"][0]["hooks"][0]["command"])
    guarded = json.loads(words[words.index("corral._system.hook_guard") + 1])
    assert guarded == {
        "cwd": "/work/repo",
        "readable": ["/else"],
        "writable": ["/more", "/state/tmp"],
    }


def test_commands_do_not_run_the_users_profile() -> None:
    started = launch()
    assert settings(started)["allow_login_shell"] is False
    assert "shell_snapshot" in disabled(started)


def test_the_resume_argument_comes_after_all_flags() -> None:
    started = launch(resume="some-id", policy="edits")
    assert started.argv[-3:] == ("resume", "some-id", "-")
    assert "--sandbox" in started.argv[:-3]


def test_a_setting_that_is_too_long_for_an_argument_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="developer_instructions is longer than an arg"):
        launch(system_prompt="ü" * 65_000)
    launch(replace_system_prompt="ü" * 65_000)  # goes by a file


def test_no_secret_is_written_into_an_argument_or_a_file() -> None:
    started = launch(mcp_servers=[NOTES, OWN], policy="all")
    assert "canary" not in json.dumps([started.argv, started.files, started.notes])
    configured = settings(started)
    assert configured["model_providers"]["corral"]["env_key"] == "OPENAI_API_KEY"
    [token] = configured["mcp_servers"]["notes"]["env_vars"]
    assert "canary-1" not in started.env.values()
    (name,) = configured["mcp_servers"]["corral"]["env_http_headers"].values()
    assert started.env[name] == "canary-2"
    hidden = configured["shell_environment_policy"]["exclude"]
    assert {"OPENAI_API_KEY", "CODEX_API_KEY", token, name} <= set(hidden)


def test_the_environment_sets_the_base_url_and_the_options_the_retries() -> None:
    provider = settings(launch(retries=2))["model_providers"]["corral"]
    assert provider["base_url"] == "http://host/v1"
    assert (provider["request_max_retries"], provider["stream_max_retries"]) == (2, 2)
    direct = settings(launch(env={"OPENAI_API_KEY": "k"}))["model_providers"]["corral"]
    assert direct["base_url"] == "https://api.openai.com/v1"
    keyless = settings(launch(env={"OPENAI_BASE_URL": "http://host/v1"}))
    assert "env_key" not in keyless["model_providers"]["corral"]


def test_a_login_is_used_if_there_is_no_key_and_without_both_nothing_is_started() -> None:
    linked = launch(env={}, at={"credentials": (".codex/auth.json",)})
    assert "model_provider" not in settings(linked)
    assert "auth.json" in linked.notes[0]
    with pytest.raises(errors.AuthenticationFailed, match="no credentials"):
        launch(env={})


def test_options_become_settings_of_codex() -> None:
    odd = 'a "b"\n\\ \x7f é'
    started = launch(
        system_prompt=odd,
        reasoning_effort="high",
        images=["a.png", "b.png"],
        output_schema={"type": "object"},
        include_directories=["/else"],
    )
    configured = settings(started)
    assert configured["developer_instructions"] == odd
    assert configured["model_reasoning_effort"] == "high"
    assert "--image=/state/images/1-b.png" in started.argv
    assert ("--output-schema", "/state/home/schema.json") in pairs(started)
    assert json.loads(started.files["schema.json"]) == {"type": "object"}
    reads = launch(include_directories=["/else"], policy=Policy(shell="allow"))
    assert any("whole disk" in note for note in reads.notes)
    replaced = launch(replace_system_prompt="be a parrot")
    assert settings(replaced)["model_instructions_file"] == "/state/home/instructions.md"
    assert replaced.files["instructions.md"] == "be a parrot"
    with pytest.raises(errors.ConfigError, match="developer_instructions"):
        launch(system_prompt="x" * 130_000)


def test_instructions_of_a_repository_are_read_only_if_it_is_trusted() -> None:
    configured = settings(launch())
    assert (configured["project_doc_max_bytes"], configured["skills"]["include_instructions"]) == (
        0,
        False,
    )
    trusted = settings(launch(inherit="project"))
    assert trusted["projects"] == {"/work/repo": {"trust_level": "trusted"}}
    assert "project_doc_max_bytes" not in trusted
    with pytest.raises(errors.ConfigError, match="inherit"):
        launch(inherit="user")


@pytest.mark.parametrize(
    ("policy", "box", "network", "search", "shell"),
    [
        (Policy(), "read-only", None, "disabled", False),
        (Policy.reads(), "read-only", None, "disabled", False),
        (Policy.edits(), "workspace-write", False, "disabled", False),
        (Policy(shell="allow"), "read-only", None, "disabled", True),
        (Policy(shell="allow", write="allow"), "workspace-write", False, "disabled", True),
        (Policy(shell="allow", network="allow"), "read-only", None, "live", True),
        (
            Policy(shell="allow", write="allow", network="allow"),
            "workspace-write",
            True,
            "live",
            True,
        ),
        (Policy(write="allow", network="allow"), "workspace-write", False, "live", False),
        (Policy(allow_tools=("exec_command",)), "read-only", None, "disabled", True),
        (
            Policy(write="allow", shell="allow", deny_tools=("apply_patch",)),
            "read-only",
            None,
            "disabled",
            True,
        ),
        (
            Policy(write="allow", shell="allow", deny_tools=("shell",)),
            "workspace-write",
            False,
            "disabled",
            False,
        ),
        (Policy.all(), "danger-full-access", None, "live", True),
    ],
)
def test_a_policy_becomes_a_sandbox_and_a_list_of_offered_tools(
    policy: Policy, box: str, network: bool | None, search: str, shell: bool
) -> None:
    started = launch(policy=policy)
    configured = settings(started)
    assert sandbox(started) == box
    assert configured.get("sandbox_workspace_write", {}).get("network_access") == network
    assert configured["web_search"] == search
    assert ("shell_tool" not in disabled(started)) == shell
    if box == "workspace-write":
        assert configured["sandbox_workspace_write"]["exclude_slash_tmp"] is True


def test_writable_folders_are_opened_only_together_with_the_workspace() -> None:
    policy = Policy(write="allow", writable=("/more",))
    assert "--add-dir=/more" in launch(policy=policy).argv
    assert "--add-dir=/more" not in launch(policy=Policy(writable=("/more",))).argv


def test_native_has_no_rules() -> None:
    started = launch(policy=Policy.native())
    assert sandbox(started) is None
    assert "web_search" not in settings(started)
    assert set(report(Policy.native()).values()) == {"own default (native)"}


@pytest.mark.parametrize(
    ("policy", "capability", "decision"),
    [
        (Policy(), "write", "deny (native)"),
        (Policy(read="deny"), "read", "deny (native)"),
        (Policy(read="deny", shell="allow"), "read", "deny (not enforced)"),
        (Policy(read="ask", shell="allow"), "read", "deny (not enforced)"),
        (
            Policy(shell="allow", network="deny"),
            "network",
            "deny (native) · commands: deny (native)",
        ),
        (Policy(shell_rules=("allow git *",)), "shell", "deny (native) · git *: not offered"),
        (
            Policy(shell="allow", shell_rules=("deny rm *",)),
            "shell",
            "allow (native) · rm *: deny (not enforced)",
        ),
        (
            Policy(allow_tools=("mcp__notes__keep",)),
            "mcp",
            "deny (native) · mcp__notes__keep: allow (native)",
        ),
        (Policy(allow_tools=("exec_command",)), "write", "deny (native)"),
        (Policy(allow_tools=("exec_command",)), "read", "deny (native)"),
        (Policy(shell="allow", deny_tools=("view_image",)), "read", "deny (not enforced)"),
        (
            Policy(shell="allow", deny_tools=("shell",)),
            "shell",
            "not offered · shell: deny (native)",
        ),
        (Policy(write="allow", deny_tools=("apply_patch",)), "write", "deny (native)"),
    ],
)
def test_the_report_says_what_is_enforced(policy: Policy, capability: str, decision: str) -> None:
    assert report(policy)[capability] == decision


def test_allowed_servers_are_approved_and_others_are_left_out() -> None:
    given = [NOTES, OWN]
    assert "mcp_servers" not in settings(launch(mcp_servers=given, policy="reads"))
    own = settings(launch(mcp_servers=given, policy="edits"))["mcp_servers"]
    assert list(own) == ["corral"]
    assert own["corral"]["default_tools_approval_mode"] == "approve"
    assert own["corral"]["required"] is True
    policy = Policy(mcp="allow", deny_tools=("mcp__notes__drop",))
    chosen = settings(launch(mcp_servers=given, policy=policy))["mcp_servers"]
    assert chosen["notes"]["disabled_tools"] == ["drop"]
    listed = Policy(allow_tools=("mcp__notes__keep",))
    named = settings(launch(mcp_servers=given, policy=listed))["mcp_servers"]
    assert list(named) == ["notes"]
    assert named["notes"]["enabled_tools"] == ["keep"]
    native = settings(launch(mcp_servers=given, policy=Policy.native()))["mcp_servers"]
    assert "default_tools_approval_mode" not in native["notes"]


def test_an_unknown_tool_name_is_refused() -> None:
    run = RunOptions.build(AGENT.name)
    for names, why in ((("exec_comand",), "did you mean"), (("nonsense",), "would do nothing")):
        with pytest.raises(errors.PolicyError, match=why):
            compile_policy(AGENT, Policy(deny_tools=names), run)
    with pytest.raises(errors.PolicyError, match="not patterns"):
        compile_policy(AGENT, Policy(allow_tools=("mcp__*",)), run)
    loose = RunOptions.build(AGENT.name, {"strict": False})
    compile_policy(AGENT, Policy(deny_tools=("nonsense",)), loose)


def test_only_a_strict_schema_is_passed_to_codex() -> None:
    assert AGENT.native_schema is not None
    strict: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert AGENT.native_schema(strict)
    assert not AGENT.native_schema({"type": "object", "properties": {"a": {"type": "string"}}})


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("unexpected status 401 Unauthorized: x, url: y", errors.AuthenticationFailed),
        ("unexpected status 403 Forbidden: x", errors.AccessDenied),
        ("unexpected status 503 Service Unavailable: x", errors.ServerFailed),
        ("exceeded retry limit, last status: 429 Too Many Requests", errors.RateLimited),
        ("You've hit your usage limit. Try again at 5pm.", errors.QuotaSpent),
        ("stream disconnected before completion: x", errors.StreamBroken),
        ("Connection failed: error sending request", errors.NetworkFailed),
        ("something nobody knows", errors.ProcessFailed),
    ],
)
def test_the_text_of_an_error_decides_its_class(message: str, kind: type[Exception]) -> None:
    assert type(explained(AGENT, finish=TurnEnd(ok=False, message=message))) is kind


def test_an_end_is_a_success_only_with_an_answer_and_a_clean_exit() -> None:
    done = TurnEnd(ok=True)
    assert explained(AGENT, finish=done, answered=True) is None
    assert type(explained(AGENT, finish=done)) is errors.EmptyAnswer
    assert type(explained(AGENT, finish=done, answered=True, code=1)) is errors.ProcessFailed
    assert type(explained(AGENT, code=0)) is errors.StreamBroken
    assert type(explained(AGENT, code=None, signal=9)) is errors.KilledBySignal
    assert type(explained(AGENT, code=127)) is errors.BrokenInstall
    assert type(explained(AGENT, code=1, stderr="boom")) is errors.ProcessFailed


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("Error: thread/resume: no rollout found for thread id x", errors.ResumeLost),
        ("Error loading config.toml: unknown configuration field `x`", errors.SettingsRejected),
        ("Error: Unknown feature flag: shell_tool", errors.SettingsRejected),
        ("Error: required MCP servers failed to initialize: x", errors.ToolFailed),
    ],
)
def test_an_exit_without_a_turn_is_explained_by_stderr(stderr: str, kind: type[Exception]) -> None:
    assert type(explained(AGENT, code=1, stderr=stderr)) is kind


@pytest.mark.parametrize(
    ("line", "name", "status"),
    [
        ("patch rejected: writing outside of the project; rejected", "apply_patch", "denied"),
        ("approval policy is Never; reject command — you cannot", "exec_command", "denied"),
        ("unsupported call: exec_command", "exec_command", "denied"),
        ("unsupported call: mcp__notes__keep", "mcp__notes__keep", "denied"),
        ("unsupported call: NoSuchTool", "NoSuchTool", "error"),
        ("apply_patch verification failed: invalid patch", "apply_patch", "error"),
    ],
)
def test_a_denial_is_read_from_stderr(line: str, name: str, status: str) -> None:
    assert AGENT.read_stderr is not None
    head = "2026-11-15T00:03:51.608351Z ERROR codex_core::tools::router: error="
    configured: Any = AGENT.read_stderr(head + line)
    assert (configured.name, configured.status) == (name, status)
    assert AGENT.read_stderr("2026-11-15T00:03:51Z ERROR codex_core::other: error=rejected") is None


def test_the_program_is_the_one_made_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    program = programs.managed_program(AGENT)
    assert "codex-linux-arm64/vendor/aarch64-unknown-linux-musl/bin/codex" in str(program)
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    package = {"name": "@openai/codex", "version": "0.166.0-linux-arm64"}
    (program.parents[3] / "package.json").write_bytes(msgspec.json.encode(package))
    assert programs.locate(AGENT, str(program)).version == "0.166.0"


def test_a_call_that_the_hook_blocks_is_reported_as_denied() -> None:
    assert AGENT.read_stderr is not None
    head = "2026-11-15T18:48:12.282554Z ERROR codex_core::tools::router: error="
    why = "refused by policy: protected (git obeys it): /w/.git/x"
    blocked = AGENT.read_stderr(
        f"{head}Command blocked by PreToolUse hook: {why}. Command: *** Begin Patch"
    )
    assert isinstance(blocked, ToolResult)
    assert (blocked.status, blocked.name, blocked.error) == ("denied", "apply_patch", why)
    image = AGENT.read_stderr(
        f"{head}Tool call blocked by PreToolUse hook: {why}. Tool: view_image"
    )
    assert isinstance(image, ToolResult)
    assert (image.status, image.name, image.error) == ("denied", "view_image", why)
