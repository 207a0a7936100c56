"""The launch of the Gemini CLI: arguments, settings, environment, prompt."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent_launch import NOT_COMPILED, launch_of
from support.goldens import check_golden
from support.stream_checks import no_deadline

from corral._agents import registry
from corral._agents.gemini.launch import launch_acp, rename_to_earlier
from corral._agents.spec import Launch, LaunchContext
from corral.errors import AuthenticationFailed, ConfigError, UntrustedFolder
from corral.options import RunOptions
from corral.policy import Policy

GOLDENS = Path(__file__).parent / "goldens"
KEY = {"GEMINI_API_KEY": "canary-key-in-env"}


def place(**more: Any) -> LaunchContext:
    values: dict[str, Any] = {
        "program": ("/usr/bin/node", "/opt/gemini.js"),
        "version": "0.61.0",
        "cwd": "/work/repo",
        "home": "/state/sessions/s-1/home",
        "tmp": "/state/sessions/s-1/tmp",
        "images": "/state/sessions/s-1/images",
        "env": KEY,
        **NOT_COMPILED,
        **more,
    }
    return LaunchContext(**values)


def launch(
    prompt: str = "hello",
    *,
    at: LaunchContext | None = None,
    resume: str | None = None,
    **options: Any,
) -> Launch:
    run = RunOptions.build("gemini-cli", options)
    return launch_of(registry.find("gemini-cli"), run, at or place(), prompt, resume)


def settings_of(started: Launch) -> dict[str, Any]:
    return json.loads(started.files[".gemini/settings.json"])  # type: ignore[no-any-return]


LAUNCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "edits": {"policy": "edits", "model": "gemini-2.5-flash", "max_turns": 5, "retries": 0},
    "resumed": {"resume": "0329faea", "policy": "reads"},
    "native_sandbox": {"sandbox": "agent", "inherit": "project"},
    "user": {"inherit": "user", "policy": "all"},
    "folders": {"include_directories": ["../other", "/abs"], "policy": "edits"},
    "mcp": {
        "policy": "all",
        "mcp_servers": [
            {"name": "web", "url": "http://x/mcp", "headers": {"Authorization": "canary-bearer"}},
            {"name": "local", "command": ["srv", "--x"], "env": {"DB_PASSWORD": "canary-password"}},
        ],
    },
    "system_prompts": {"replace_system_prompt": "You are terse."},
}


@pytest.mark.parametrize("name", sorted(LAUNCHES))
def test_a_run_is_started_like_this(name: str) -> None:
    options = dict(LAUNCHES[name])
    started = launch(resume=options.pop("resume", None), **options)
    shown = msgspec.to_builtins(started)
    shown["stdin"] = started.stdin.decode()
    shown["files"].pop("policy.toml", None)
    shown["files"][".gemini/settings.json"] = settings_of(started)
    shown["env"] = {
        name: value if not value.startswith("canary") else "<secret>"
        for name, value in shown["env"].items()
    }
    text = json.dumps(shown, indent=1, ensure_ascii=False) + "\n"
    text = text.replace(sys.executable, "python")
    check_golden(GOLDENS / f"launch_{name}.json", text)


PROMPTS = [
    "hello",
    "/quit",
    "/init now",
    "@secret.txt",
    "look at @src/a.py and @b",
    "--version",
    "mail bob@example.com",
    "use {{args}} here",
    "/x {{args}} @y !{rm -rf /}",
    "@{/etc/passwd} !{rm}",
    "a\n/b\n@c",
    'quotes " \\ \x7f and ünïcödé \u2028',
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_prompt_is_never_an_argument(prompt: str) -> None:
    for word in launch(prompt).argv:
        assert prompt not in word


def text_sent(started: Launch) -> str:
    """The text for the model: stdin, or the text of the command that stdin names."""
    stdin = started.stdin.decode()
    commands = [name for name in started.files if name.startswith(".gemini/commands/")]
    if not commands:
        return stdin
    (command,) = commands
    assert stdin == "/" + command.removeprefix(".gemini/commands/").removesuffix(".toml")
    table = tomllib.loads(started.files[command])
    assert set(table) == {"prompt"}
    return str(table["prompt"])


@pytest.mark.parametrize("prompt", [p for p in PROMPTS if "{" not in p])
def test_the_prompt_is_sent_unchanged(prompt: str) -> None:
    assert text_sent(launch(prompt)) == prompt


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_cli_finds_nothing_to_act_on_in_the_prompt(prompt: str) -> None:
    started = launch(prompt)
    stdin = started.stdin.decode()
    if any(name.startswith(".gemini/commands/") for name in started.files):
        sent = text_sent(started)
        assert not any(mark in sent for mark in ("{{args}}", "!{", "@{"))
        assert "@" not in stdin
        return
    assert not stdin.startswith("/")
    assert not re.search(r"(?<!\\)@\S", stdin)


@no_deadline
@given(prompt=st.text(alphabet="/@{}!args\\ \n.x\"'é\x7f", min_size=1))
def test_any_prompt_is_sent_as_plain_text(prompt: str) -> None:
    test_the_cli_finds_nothing_to_act_on_in_the_prompt(prompt)


def test_a_prompt_with_template_syntax_and_files_is_escaped_with_a_note() -> None:
    started = launch("see @a and {{args}}")
    assert started.stdin == b"see \\@a and {{args}}"
    assert any("\\@" in note for note in started.notes)


def test_files_are_expanded_only_when_asked_for() -> None:
    assert launch("see @a.txt", expand_files=True).stdin == b"see @a.txt"
    assert launch("/see @a.txt", expand_files=True).stdin == b"\n/see @a.txt"


def test_a_system_prompt_is_put_before_the_prompt() -> None:
    assert launch("hello", system_prompt="Be kind.").stdin == b"Be kind.\n\nhello"


def test_a_replacing_system_prompt_is_a_private_file() -> None:
    started = launch(replace_system_prompt="Only this.")
    assert started.files["system.md"] == "Only this."
    assert started.env["GEMINI_SYSTEM_MD"] == "/state/sessions/s-1/home/system.md"


def test_images_are_named_to_the_cli_by_their_copies() -> None:
    started = launch("what is this? @b", images=["/pictures/a.png"])
    assert text_sent(started) == "what is this? @b\n@{/state/sessions/s-1/images/0-a.png}"
    assert "/state/sessions/s-1/images" in started.argv


@pytest.mark.parametrize("prompt", ["{{args}}", "!{ls}", "@{x}"])
def test_images_with_a_prompt_in_template_syntax_are_refused(prompt: str) -> None:
    with pytest.raises(ConfigError, match="with images the prompt may not contain"):
        launch(prompt, images=["a.png"])


def test_secrets_of_mcp_servers_are_in_the_environment_and_in_no_file() -> None:
    started = launch(**LAUNCHES["mcp"])
    everything = json.dumps([started.argv, started.files, started.notes])
    assert "canary" not in everything
    servers = settings_of(started)["mcpServers"]
    reference = servers["web"]["headers"]["Authorization"]
    assert reference.startswith("${")
    assert started.env[reference[2:-1]] == "canary-bearer"
    ((name, reference),) = servers["local"]["env"].items()
    assert reference == f"${{{name}}}"
    assert name in started.env
    assert "canary-password" not in started.env.values()


def test_no_key_is_in_any_file_or_argument() -> None:
    started = launch()
    assert "canary" not in json.dumps([started.argv, started.files, started.notes, started.env])


def test_only_our_mcp_servers_are_allowed() -> None:
    started = launch(**LAUNCHES["mcp"])
    words = started.argv
    named = [words[at + 1] for at, word in enumerate(words) if word == "--allowed-mcp-server-names"]
    assert named == ["web", "local"]
    assert settings_of(started)["mcp"] == {"allowed": ["web", "local"]}


@pytest.mark.parametrize(
    ("options", "trusted"),
    [
        ({}, False),
        ({"policy": "all"}, False),
        ({"approval_mode": "plan"}, True),
        ({"mcp_servers": [{"name": "s", "url": "http://x"}], "policy": Policy(mcp="allow")}, True),
        ({"inherit": "user"}, True),
        ({"inherit": "project"}, True),
    ],
)
def test_the_folder_is_trusted_only_if_an_option_needs_it(options: Any, trusted: bool) -> None:
    started = launch(**options)
    assert started.env["GEMINI_CLI_TRUST_WORKSPACE"] == str(trusted).lower()
    assert any("trusted" in note for note in started.notes) is trusted


@pytest.mark.parametrize(
    "options",
    [
        {"approval_mode": "plan"},
        {"mcp_servers": [{"name": "s", "url": "http://x"}], "policy": Policy(mcp="allow")},
        {"inherit": "user"},
    ],
)
def test_a_repository_with_settings_of_its_own_is_not_trusted_by_default(options: Any) -> None:
    at = place(project_files=("/work/repo/.gemini",))
    with pytest.raises(UntrustedFolder, match=r"/work/repo/\.gemini") as raised:
        launch(at=at, **options)
    assert "inherit='project'" in (raised.value.hint or "")
    assert launch(at=at).env["GEMINI_CLI_TRUST_WORKSPACE"] == "false"
    both = launch(at=at, **{**options, "inherit": "project"})
    assert both.env["GEMINI_CLI_TRUST_WORKSPACE"] == "true"


OAUTH = (".gemini/oauth_creds.json",)


@pytest.mark.parametrize(
    ("env", "credentials", "method"),
    [
        (KEY, (), "gemini-api-key"),
        ({**KEY, "GOOGLE_GEMINI_BASE_URL": "http://x"}, (), "gemini-api-key"),
        (KEY, OAUTH, "gemini-api-key"),
        ({}, OAUTH, "oauth-personal"),
        ({"GOOGLE_GENAI_USE_GCA": "true"}, (), "oauth-personal"),
        ({**KEY, "GOOGLE_GENAI_USE_VERTEXAI": "true"}, OAUTH, "vertex-ai"),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "1", "GOOGLE_API_KEY": "x"}, (), "vertex-ai"),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "false", **KEY}, (), "gemini-api-key"),
        ({"CLOUD_SHELL": "true"}, (), "cloud-shell"),
        ({"GEMINI_CLI_USE_COMPUTE_ADC": "true"}, (), "compute-default-credentials"),
        ({"GOOGLE_GEMINI_BASE_URL": "http://x"}, (), "gateway"),
    ],
)
def test_the_credentials_are_chosen_and_noted(
    env: dict[str, str], credentials: tuple[str, ...], method: str
) -> None:
    started = launch(at=place(env=env, credentials=credentials))
    auth = settings_of(started)["security"]["auth"]
    assert auth == {"selectedType": method, "useExternal": method == "gateway"}
    assert started.notes[0].startswith("authentication: ")


@pytest.mark.parametrize("env", [{}, {"GEMINI_API_KEY": ""}, {"GOOGLE_GENAI_USE_GCA": "0"}])
def test_without_credentials_nothing_is_started(env: dict[str, str]) -> None:
    with pytest.raises(AuthenticationFailed, match="no credentials") as raised:
        launch(at=place(env=env, credentials=(".gemini/installation_id",)))
    assert "GEMINI_API_KEY or GOOGLE_API_KEY" in (raised.value.hint or "")


def test_a_dot_env_of_the_repository_cannot_set_a_key() -> None:
    env = launch(at=place(env={"GEMINI_API_KEY": "k"})).env
    assert env["GOOGLE_API_KEY"] == ""
    assert env["GOOGLE_CLOUD_PROJECT"] == ""
    assert "GEMINI_API_KEY" not in env
    assert "GOOGLE_API_KEY" not in launch(inherit="project").env


def test_the_cli_does_not_start_itself_again_and_keeps_to_its_private_home() -> None:
    env = launch().env
    assert env["GEMINI_CLI_NO_RELAUNCH"] == "1"
    assert env["GEMINI_CLI_HOME"] == "/state/sessions/s-1/home"
    assert env["TMPDIR"] == "/state/sessions/s-1/tmp"


def test_retries_and_turns_are_in_the_settings() -> None:
    settings = settings_of(launch(retries=1, max_turns=7))
    assert settings["general"]["maxAttempts"] == 2
    assert settings["model"]["maxSessionTurns"] == 7
    assert settings_of(launch())["model"]["maxSessionTurns"] == -1


def test_no_telemetry_is_sent() -> None:
    settings = settings_of(launch())
    assert settings["privacy"] == {"usageStatisticsEnabled": False}
    assert settings["telemetry"] == {"enabled": False}


@pytest.mark.parametrize("model", ["--yolo", "-y", "a b", "--approval-mode=yolo"])
def test_a_model_name_cannot_become_a_flag(model: str) -> None:
    assert f"--model={model}" in launch(model=model).argv
    assert model not in launch(model=model).argv


def test_a_folder_with_a_comma_is_refused() -> None:
    with pytest.raises(ConfigError, match="no folder with a comma: a,b"):
        launch(include_directories=["a,b"])


def test_the_policy_is_also_passed_as_admin_policy() -> None:
    argv = launch(policy="edits").argv
    file = "/state/sessions/s-1/home/policy.toml"
    assert argv[argv.index("--policy") + 1] == argv[argv.index("--admin-policy") + 1] == file
    assert "policy.toml" in launch(policy="edits").files


def test_the_mode_yolo_is_never_used() -> None:
    for options in LAUNCHES.values():
        given = {name: value for name, value in options.items() if name != "resume"}
        words = launch(**given).argv
        assert "yolo" not in words
        assert not {"--yolo", "-y", "--skip-trust"} & set(words)


@pytest.mark.parametrize("mode", ["autoEdit", "yolo"])
def test_a_mode_in_which_the_cli_bypasses_the_policy_is_refused(mode: str) -> None:
    run = RunOptions(agent="gemini-acp", session_mode=mode, policy=Policy.edits())
    agent = registry.find("gemini-acp")
    with pytest.raises(ConfigError, match="would bypass the policy"):
        launch_of(agent, run, place())
    assert launch_of(agent, msgspec.structs.replace(run, session_mode="plan"), place())
    assert launch_of(agent, msgspec.structs.replace(run, policy=Policy.native()), place())


def test_no_mcp_server_of_the_user_is_trusted() -> None:
    """The tools of a trusted server run without asking."""
    theirs: dict[str, Any] = {"mcpServers": {"theirs": {"command": "x", "trust": True}}}
    run = RunOptions(agent="gemini-acp", inherit="user")
    settings = settings_of(launch_acp(run, place(user_settings=theirs), "", None))
    assert settings["mcpServers"]["theirs"] == {"command": "x", "trust": False}


def test_always_is_never_offered_and_no_model_corrects_an_edit() -> None:
    theirs: dict[str, Any] = {
        "security": {"disableAlwaysAllow": False},
        "tools": {"disableLLMCorrection": False},
    }
    run = RunOptions(agent="gemini-acp", inherit="user")
    settings = settings_of(launch_acp(run, place(user_settings=theirs), "", None))
    assert settings["security"]["disableAlwaysAllow"] is True
    assert settings["tools"]["disableLLMCorrection"] is True


# The file of a conversation is renamed to an earlier minute; no other file changes.

ID = "4b969d99-3ae1-4d2f-8c1a-f90185cd65a6"
NOON = 1_800_014_430.0  # 2027-01-15 12:00:30


def conversation_file(minute: str, short: str = ID[:8]) -> str:
    return f"session-2027-01-15T{minute}-{short}.jsonl"


def test_a_file_of_this_minute_gets_an_earlier_free_name() -> None:
    names = [conversation_file(minute) for minute in ("11-58", "11-59", "12-00")]
    earlier = {conversation_file("12-00"): conversation_file("11-57")}
    assert rename_to_earlier(names, ID, NOON) == earlier
    ahead = [conversation_file("12-00"), conversation_file("12-05")]  # the clock was set back
    assert rename_to_earlier(ahead, ID, NOON) == {
        conversation_file("12-00"): conversation_file("11-59"),
        conversation_file("12-05"): conversation_file("11-58"),
    }


def test_files_of_other_minutes_are_not_renamed() -> None:
    names = [conversation_file("11-59"), conversation_file("12-00", "0f6ffda6")]
    assert rename_to_earlier(names, ID, NOON) == {}
