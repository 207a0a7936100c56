"""A provider that starts a real program: the scripted agent."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from support.scripted_agent import GOOD

from corral._sessions import store
from corral.providers import (
    ClaudeCodeProvider,
    GeminiCliProvider,
    ProviderError,
    ProviderResult,
    ResponseProvider,
    ResponseProviderFactory,
)
from corral.values import as_texts

create = ResponseProviderFactory.create


def scripted(workspace: Path, **config: object) -> ResponseProvider:
    return create("gemini-cli", {"working_dir": str(workspace), **config})


def test_unknown_config_keys_cause_a_sorted_warning_and_have_no_effect(workspace: Path) -> None:
    with pytest.warns(
        UserWarning, match="gemini-cli: unknown config keys, ignored: a, b, c, d, e, f$"
    ):
        provider = create("gemini-cli", {**dict.fromkeys("fbdaec"), "timeout": 5})
    assert provider.config == {"timeout": 5}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"timeout": -1}, "timeout must be more than 0, got: -1"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": True}, "timeout must be a number"),
        ({"timeout": "soon"}, "timeout must be a number, got: str"),
        ({"approval_mode": "all"}, "approval_mode must be one of default, auto_edit, yolo, plan"),
        ({"allowed_tools": "read_file"}, "allowed_tools must be a list, got: str"),
        ({"include_directories": "src"}, "include_directories must be a list, got: str"),
        ({"include_directories": [1]}, "include_directories\\[0\\] must be a text"),
        ({"sandbox": "yes"}, "sandbox must be true or false"),
        ({"model": 3}, "model must be a text"),
    ],
)
def test_an_invalid_config_value_is_an_error_at_once(
    config: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        create("gemini-cli", config)


@pytest.mark.usefixtures("gemini_on_path")
def test_the_result_has_the_response_and_the_files_that_the_agent_wrote(workspace: Path) -> None:
    (workspace / "old.txt").write_text("old")
    provider = scripted(workspace)
    provider.validate()
    tool_call = "use write_file a.txt\nwrite a.txt\nused write_file"
    others = "write other.txt"  # by another process in the same folder
    result = provider.generate(f"init\n{tool_call}\n{others}\ntext hello\nresult")
    assert result == ProviderResult("hello", {str(workspace / "a.txt"): None})
    assert store.all_sessions() == []
    free = scripted(workspace, approval_mode="yolo")
    by_shell = free.generate("init\nwrite b.txt\ntext hello\nresult")
    assert by_shell.files == {str(workspace / "b.txt"): None}


@pytest.mark.usefixtures("gemini_on_path")
async def test_a_provider_can_be_called_inside_a_running_event_loop(workspace: Path) -> None:
    assert scripted(workspace).generate(GOOD).response == "hello"


@pytest.mark.usefixtures("gemini_on_path")
def test_the_working_directory_of_the_config_wins_over_that_of_the_context(
    workspace: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    context = {"project_root": root}
    prompt = "init\nargv seen.json\ntext hello\nresult"
    create("gemini-cli").generate(prompt, context)
    assert json.loads((root / "seen.json").read_text())["cwd"] == str(root)
    scripted(workspace).generate(prompt, context)
    assert json.loads((workspace / "seen.json").read_text())["cwd"] == str(workspace)


@pytest.mark.usefixtures("gemini_on_path")
def test_a_prompt_file_replaces_the_prompt_and_the_system_prompt_comes_first(
    workspace: Path,
) -> None:
    (workspace / "prompt.txt").write_text("text  file\nresult")
    result = scripted(workspace).generate(
        "init\ntext prompt\nresult",
        {"prompt_file": workspace / "prompt.txt"},
        system_prompt="init\ntext system",
    )
    assert result.response == "system file"
    with pytest.raises(ProviderError, match="prompt file does not exist"):
        scripted(workspace).generate("x", {"prompt_file": "missing.txt"})


@pytest.mark.usefixtures("gemini_on_path")
def test_the_config_reaches_the_program_and_edits_are_allowed_by_default(workspace: Path) -> None:
    prompt = "init\nargv seen.json\ntext hello\nresult"
    (workspace / "lib").mkdir()
    scripted(workspace, model="gemini-2.5-pro", include_directories=["lib"]).generate(prompt)
    arguments = " ".join(json.loads((workspace / "seen.json").read_text())["argv"])
    assert "gemini-2.5-pro" in arguments
    assert str(workspace / "lib") in arguments
    assert "yolo" not in arguments
    assert GeminiCliProvider().options({})["approval_mode"] == "auto_edit"
    assert GeminiCliProvider({"approval_mode": "plan"}).options({})["approval_mode"] == "plan"


@pytest.mark.usefixtures("no_programs")
def test_a_missing_program_is_an_error_with_the_command_that_installs_it(workspace: Path) -> None:
    for call in (scripted(workspace).validate, lambda: scripted(workspace).generate(GOOD)):
        with pytest.raises(ProviderError, match="not found") as raised:
            call()
        assert "corral agents install gemini" in str(raised.value)


@pytest.mark.usefixtures("gemini_on_path")
def test_a_timeout_is_an_error_that_names_the_setting_to_raise(workspace: Path) -> None:
    with pytest.raises(ProviderError, match=r"timed out after 1s.*raise timeout"):
        scripted(workspace, timeout=1).generate("init\nhang")
    with pytest.raises(ProviderError, match=r"timed out after 0\.5s.*response_timeout"):
        scripted(workspace, timeout=60).generate("init\nhang", response_timeout=0.5)
    with pytest.raises(ProviderError, match=r"no output 0\.5s.*raise connection_timeout"):
        scripted(workspace).generate("hang", connection_timeout=0.5)
    with pytest.raises(ProviderError, match=r"timed out after 0\.5s"):
        scripted(workspace, timeout=0.5).generate("init\nhang", response_timeout=60)
    with pytest.raises(ValueError, match="response_timeout must be >= 0"):
        scripted(workspace).generate(GOOD, response_timeout=-1)


@pytest.mark.usefixtures("gemini_on_path")
def test_zero_means_no_timeout(workspace: Path) -> None:
    slow = "init\nsleep 0.3\ntext hello\nresult"
    assert scripted(workspace).generate(slow, response_timeout=0).response == "hello"
    assert scripted(workspace).generate(slow, connection_timeout=0).response == "hello"


def test_allowed_tools_are_added_to_what_the_approval_mode_allows() -> None:
    made = GeminiCliProvider({"allowed_tools": ["run_shell_command"]}).options({})
    assert {"read_file", "write_file", "run_shell_command"} <= {*as_texts(made["allowed_tools"])}
    assert "web_fetch" not in as_texts(made["allowed_tools"])
    plain = ClaudeCodeProvider({"permission_mode": "default", "allowed_tools": ["Bash"]}).options(
        {}
    )
    assert {"Read", "Bash"} <= {*as_texts(plain["allowed_tools"])}
    assert "Write" not in as_texts(plain["allowed_tools"])


@pytest.mark.usefixtures("gemini_on_path")
def test_validate_finds_a_missing_credential(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(workspace).validate()
    monkeypatch.delenv("GEMINI_API_KEY")
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        scripted(workspace).validate()
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        create("corral", {"model": "gemini:gemini-2.5-flash"}).validate()


@pytest.mark.usefixtures("gemini_on_path")
def test_the_start_and_the_end_of_a_session_are_logged(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "corral.providers")
    scripted(workspace).generate(GOOD)
    logged = [record.getMessage() for record in caplog.records if record.name == "corral.providers"]
    assert "session" in logged[0]
    assert "started" in logged[0]
    assert logged[-1].endswith("ended as success")


@pytest.mark.usefixtures("gemini_on_path")
def test_a_configured_idle_timeout_has_no_effect(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corral.toml").write_text("[agents.gemini-cli]\nidle_timeout = 0.3\n")
    monkeypatch.setenv("CORRAL_CONFIG", str(tmp_path / "corral.toml"))
    assert scripted(workspace).generate("init\nsleep 1\ntext hello\nresult").response == "hello"


@pytest.mark.usefixtures("gemini_on_path")
def test_missing_credentials_are_an_error_with_a_hint(workspace: Path) -> None:
    with pytest.raises(ProviderError, match="Set GEMINI_API_KEY, or sign in"):
        scripted(workspace).generate("stderr no key\nexit 41")


@pytest.mark.usefixtures("gemini_on_path")
def test_an_exit_code_is_an_error_with_the_code_and_stderr(workspace: Path) -> None:
    with pytest.raises(ProviderError, match=r"gemini-cli: failed \(exit 7\)") as raised:
        scripted(workspace).generate("init\nstderr it broke\nexit 7")
    assert "it broke" in str(raised.value)
    assert str(raised.value).count("failed (exit 7)") == 1


@pytest.mark.usefixtures("gemini_on_path")
def test_stderr_is_logged_after_a_success(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "corral.providers")
    scripted(workspace).generate("stderr a quiet word\n" + GOOD)
    [record] = [r for r in caplog.records if "a quiet word" in r.getMessage()]
    assert (record.name, record.levelname) == ("corral.providers", "DEBUG")


@pytest.mark.usefixtures("gemini_on_path")
def test_malformed_lines_are_counted_and_the_first_three_shown(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = "\n".join(['raw {"one": ', "raw two", "raw [three", "raw four"])
    result = scripted(workspace).generate(f"init\n{odd}\ntext hello\nresult")
    assert result.response == "hello"
    [record] = [r for r in caplog.records if r.name == "corral.providers"]
    line = record.getMessage()
    assert record.levelname == "WARNING"
    assert "4 malformed lines" in line
    assert all(word in line for word in ("one", "two", "three"))
    assert "four" not in line


@pytest.mark.usefixtures("gemini_on_path")
def test_nothing_is_logged_after_a_run_without_warnings(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scripted(workspace).generate(GOOD)
    assert not [r for r in caplog.records if r.name == "corral.providers"]
