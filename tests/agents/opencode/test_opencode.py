"""OpenCode (persistent): launch, policy and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.agent_launch import NOT_COMPILED, compile_policy, decisions, explained, launch_of

from corral import Policy, errors
from corral._agents import registry
from corral._agents.spec import Launch, LaunchContext
from corral._core.protected_paths import Link, Links
from corral._protocol.ndjson import TurnEnd
from corral._system import programs
from corral._system.install import install
from corral.errors import NotInstalled
from corral.options import RunOptions

AGENT = registry.find("opencode")
KEY = {"OPENAI_API_KEY": "canary-key-in-env", "OPENAI_BASE_URL": "http://host/v1"}


def launch(
    *, env: dict[str, str] = KEY, at: dict[str, Any] | None = None, **options: Any
) -> Launch:
    values: dict[str, Any] = {
        "program": ("/opt/opencode",),
        "version": "1.18.18",
        **NOT_COMPILED,
        "cwd": "/work/repo",
        "home": "/state/home",
        "tmp": "/state/tmp",
        "env": env,
        "helpers": {"rg": "/opt/tools/rg"},
        **(at or {}),
    }
    interactive = options.pop("interactive", False)
    run = msgspec.structs.replace(RunOptions.build(AGENT.name, options), interactive=interactive)
    return launch_of(AGENT, run, LaunchContext(**values), "", None)


def config(started: Launch) -> dict[str, Any]:
    return json.loads(started.env["OPENCODE_CONFIG_CONTENT"])  # type: ignore[no-any-return]


def rules(policy: Policy, **options: Any) -> dict[str, Any]:
    return config(launch(policy=policy, **options))["permission"]  # type: ignore[no-any-return]


def test_it_uses_the_private_home_and_works_in_the_folder_of_the_run() -> None:
    started = launch(model="custom/m")
    assert started.argv == ("/opt/opencode", "acp", "--pure")
    assert started.env["PWD"] == "/work/repo"
    assert started.env["TMPDIR"] == "/state/tmp"
    homes = [value for name, value in started.env.items() if name.startswith(("HOME", "XDG_"))]
    assert len(homes) == 5
    assert all(value.startswith("/state/home") for value in homes)
    assert started.env["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"
    assert started.env["OPENCODE_DISABLE_FFF"] == "1"  # a library left in TMPDIR by each run


def test_no_secret_is_written_into_the_configuration() -> None:
    started = launch(model="custom/m")
    assert "canary" not in json.dumps(msgspec.to_builtins(started))
    (provider,) = config(started)["provider"].values()
    assert provider["options"] == {
        "baseURL": "{env:OPENAI_BASE_URL}",
        "apiKey": "{env:OPENAI_API_KEY}",
    }
    assert provider["models"] == {"m": {}}


def test_the_hosted_models_are_off_unless_they_are_requested() -> None:
    assert config(launch())["disabled_providers"] == ["opencode"]
    assert "disabled_providers" not in config(launch(env={}, model="opencode/big-pickle"))
    assert "disabled_providers" not in config(launch(env={"OPENCODE_API_KEY": "canary-key"}))


def test_the_list_of_all_models_is_read_only_if_one_of_them_may_be_used() -> None:
    alone = launch(model="custom/m")
    assert alone.files["models.json"] == "{}"
    assert alone.env["OPENCODE_MODELS_PATH"] == "/state/home/models.json"
    trusted = launch(model="custom/m", inherit="project")
    for started in (launch(), launch(model="openai/gpt-5.5"), trusted):
        assert "models.json" not in started.files
        assert "OPENCODE_MODELS_PATH" not in started.env


def test_a_model_name_needs_its_provider() -> None:
    for name in ("gpt", "/gpt", "gpt/"):
        with pytest.raises(errors.ConfigError, match="by its provider"):
            launch(model=name)
    assert config(launch(model="openai/gpt-5.5"))["model"] == "openai/gpt-5.5"


def test_without_credentials_nothing_is_started() -> None:
    with pytest.raises(errors.AuthenticationFailed, match="no credentials"):
        launch(env={}, model="openai/gpt-5.5")
    linked = {"credentials": (".local/share/opencode/auth.json",)}
    assert "auth.json" in launch(env={}, at=linked).notes[0]


def test_a_repository_with_settings_of_its_own_is_refused_unless_it_is_trusted() -> None:
    found = {"project_files": ("/work/repo/.opencode/plugin",)}
    with pytest.raises(errors.UntrustedFolder, match="plugin"):
        launch(at=found)
    trusted = launch(at=found, inherit="project")
    assert "--pure" not in trusted.argv
    assert "OPENCODE_DISABLE_PROJECT_CONFIG" not in trusted.env
    with pytest.raises(errors.ConfigError, match="inherit"):
        launch(inherit="user")


def test_it_downloads_nothing_and_runs_no_program_of_the_repository() -> None:
    started = launch(policy="edits")
    configured = config(started)
    assert (configured["formatter"], configured["lsp"], configured["snapshot"]) == (
        False,
        False,
        False,
    )
    assert started.files[".config/opencode/.npmrc"] == "offline=true\n"
    assert started.path_folders == ("/opt/tools",)
    without = launch(policy="edits", at={"helpers": {}})
    made = config(without)["permission"]
    assert (made["glob"], made["grep"], made["read"]) == ("deny", "deny", "ask")
    assert any("ripgrep" in note for note in without.notes)
    # Its own git finds no repository; a shell of the model's needs one.
    assert started.env["GIT_DIR"] == "/dev/null"
    assert "GIT_DIR" not in launch(policy=Policy(shell="allow")).env
    assert "GIT_DIR" not in launch(policy="all").env


def test_a_link_that_would_be_sent_to_the_model_is_refused() -> None:
    link = Link("/work/repo/sub/AGENTS.md", "/home/me/.netrc", readable=False)
    with pytest.raises(errors.UntrustedFolder, match=r"sub/AGENTS\.md"):
        launch(at={"links": Links((link,))})
    other = Link("/work/repo/sub/data", "/srv/data", readable=False)
    launch(at={"links": Links((other,))})


def test_files_ask_for_permission_and_denied_tools_are_not_offered() -> None:
    for policy in (Policy(), Policy.reads()):
        made = rules(policy)
        assert next(iter(made)) == "*"
        assert made["*"] == "deny"
        names = ("read", "glob", "edit", "bash", "webfetch", "skill", "task", "doom_loop")
        assert [made[name] for name in names] == ["ask", "ask", *["deny"] * 6]
        assert made["external_directory"] == {"*": "deny"}
    asked = rules(Policy(), interactive=True)
    some = ("*", "read", "edit", "bash", "webfetch", "task")
    assert [asked[name] for name in some] == ["deny", "ask", "ask", "deny", "ask", "deny"]
    assert asked["external_directory"] == "allow"  # each file is asked for all the same
    assert rules(Policy(read="deny"))["read"] == "deny"
    assert rules(Policy.edits())["edit"] == "ask"


def test_full_asks_nothing_and_native_has_no_rules() -> None:
    full = rules(Policy.all())
    assert full.pop("read") == {"*": "allow", "*proc/*environ": "deny"}
    assert full == {"*": "allow"}
    assert rules(Policy.native()) == {}
    assert config(launch(policy=Policy.plan()))["default_agent"] == "plan"


def test_with_rules_and_lists_it_asks_us() -> None:
    assert rules(Policy(shell="allow", shell_rules=("deny rm *",)))["bash"] == "ask"
    assert rules(Policy(network="allow", deny_tools=("webfetch",)))["webfetch"] == "deny"
    assert rules(Policy(write="allow", deny_tools=("write",)))["edit"] == "ask"
    listed = rules(Policy(allow_tools=("read", "write")))
    assert listed == {
        "*": "deny",
        "invalid": "allow",
        "read": "ask",
        "edit": "ask",
        "external_directory": {"*": "deny"},
        "doom_loop": "deny",
        "task": "deny",
    }


def test_writable_folders_are_open_and_no_other() -> None:
    made = rules(Policy(write="allow", writable=("../more", "/abs")))["external_directory"]
    assert made == {
        "*": "deny",
        "/work/more": "allow",
        "/work/more/*": "allow",
        "/abs": "allow",
        "/abs/*": "allow",
    }


@pytest.mark.parametrize(
    ("mcp", "shell", "rule"),
    [
        ("allow", "deny", "allow"),
        ("deny", "deny", "deny"),
        ("deny", "allow", "deny"),
        ("deny", "ask", "deny"),
        ("ask", "allow", "deny"),
        ("ask", "ask", "ask"),
    ],
)
def test_a_tool_whose_request_would_be_answered_by_the_shells_verdict_is_not_offered(
    mcp: Any, shell: Any, rule: str
) -> None:
    server = {"name": "notes", "command": ["notes"]}
    policy = Policy(mcp=mcp, shell=shell)
    assert rules(policy, mcp_servers=[server], interactive=True)["notes_*"] == rule
    assert rules(policy, mcp_servers=[server])["notes_*"] == rule.replace("ask", "deny")


def test_a_name_that_is_similar_to_a_tool_is_refused() -> None:
    with pytest.raises(errors.PolicyError, match="did you mean 'bash'"):
        compile_policy(AGENT, Policy(deny_tools=("bassh",)), RunOptions.build(AGENT.name))


def test_the_report_says_what_cannot_be_enforced() -> None:
    compiled = compile_policy(AGENT, Policy(shell="allow", network="deny"))
    report = decisions(compiled)
    assert report["network"] == "deny (native) · commands: deny (not enforced)"
    assert report["write"] == "deny (native)"
    assert report["read"] == "allow (brokered)"
    notes = {row.capability: row.note for row in compiled.report}
    assert "ask→deny" in notes["write"]
    assert "keys" in notes["shell"]


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Internal error: Incorrect API key provided: sk-fake.", errors.AuthenticationFailed),
        ("Internal error: Unauthorized", errors.AuthenticationFailed),
        ("Internal error: Rate limit reached for m", errors.RateLimited),
        ("Internal error: You exceeded your current quota", errors.QuotaSpent),
        ("Internal error: The model `x` does not exist", errors.ModelNotFound),
        ("Internal error: maximum context length is 8192 tokens", errors.ContextLengthExceeded),
        ("Internal error: Internal Server Error", errors.ServerFailed),
        ("Internal error: Unable to connect. Is the computer able", errors.NetworkFailed),
        ("Internal error: OpenCode service failure", errors.ProcessFailed),
    ],
)
def test_the_text_of_an_error_decides_its_class(message: str, kind: type[Exception]) -> None:
    configured = explained(AGENT, finish=TurnEnd(ok=False, kind="-32603", message=message))
    assert type(configured) is kind
    assert not str(configured).startswith("Internal error: ")


def test_an_exit_without_a_message_is_explained_by_its_code() -> None:
    assert explained(AGENT, finish=TurnEnd(ok=True)) is None
    assert type(explained(AGENT, signal=9)) is errors.KilledBySignal
    assert type(explained(AGENT, code=127)) is errors.BrokenInstall
    assert (
        type(explained(AGENT, code=1, stderr="postinstall script was not run"))
        is errors.BrokenInstall
    )
    assert type(explained(AGENT, code=1, stderr="boom")) is errors.StreamBroken


def test_the_program_is_the_one_made_for_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    program = programs.managed_program(AGENT)
    assert str(program).endswith("node_modules/opencode-linux-arm64/bin/opencode")
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    package = program.parents[1] / "package.json"
    package.write_text('{"name": "opencode-linux-arm64", "version": "1.18.18"}')
    assert programs.locate(AGENT, str(program)).version == "1.18.18"
    monkeypatch.setattr("platform.machine", lambda: "mips")
    assert not programs.managed_program(AGENT).exists()
    with pytest.raises(NotInstalled, match="on linux-mips: it knows builds for") as e:
        install(AGENT)
    assert "npm install -g opencode-ai" in str(e.value.hint)


def test_a_denied_shell_is_not_offered_because_rules_do_not_see_every_line() -> None:
    assert rules(Policy.reads())["bash"] == "deny"
    assert rules(Policy(deny_tools=("bash",)))["bash"] == "deny"
    assert "bash" not in rules(Policy(allow_tools=("read",)))
    assert rules(Policy(allow_tools=("bash",)))["bash"] == "ask"
    run = msgspec.structs.replace(RunOptions.build(AGENT.name), interactive=True)
    report = compile_policy(AGENT, Policy(), run).report
    (row,) = [row for row in report if row.capability == "shell"]
    assert row.decision == "not offered"
    assert "`> file`" in row.note
