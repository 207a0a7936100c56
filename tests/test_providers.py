"""The blocking face of workflow engines, over a program that is really started."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.scripted_agent import GOOD, PROGRAM

from corral import providers
from corral.providers import (
    ClaudeCodeProvider,
    GeminiCliProvider,
    ManualProvider,
    ProviderError,
    ProviderResult,
    ResponseProvider,
    ResponseProviderFactory,
)
from corral.sessions import store

create = ResponseProviderFactory.create


@pytest.fixture
def gemini_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted program is the ``gemini`` of this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "gemini").symlink_to(PROGRAM)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")


@pytest.fixture
def gemini_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def scripted(workspace: Path, **config: Any) -> ResponseProvider:
    return create("gemini-cli", {"working_dir": str(workspace), **config})


def test_the_metadata_is_what_an_engine_lists() -> None:
    assert GeminiCliProvider.get_metadata() == {
        "name": "gemini-cli",
        "description": "Gemini CLI AI agent via subprocess",
        "requires_config": False,
        "config_keys": [
            "model",
            "approval_mode",
            "allowed_tools",
            "working_dir",
            "timeout",
            "sandbox",
            "include_directories",
        ],
        "default_connection_timeout": 60,
        "default_response_timeout": 600,
        "fs_ability": "local-write",
    }
    assert ManualProvider.get_metadata()["default_response_timeout"] is None
    assert ClaudeCodeProvider.get_metadata()["name"] == "claude-code"


def test_every_agent_is_a_provider_and_so_are_the_three_known_names() -> None:
    names = ResponseProviderFactory.list_providers()
    assert names == sorted(names)
    assert {"gemini-cli", "gemini-acp", "claude-code", "manual", "corral"} <= {*names}
    for name in names:
        assert create(name).get_metadata()["name"] == name
    assert isinstance(create("gemini-cli"), GeminiCliProvider)
    assert isinstance(create("claude-code"), ClaudeCodeProvider)
    assert isinstance(create("manual"), ManualProvider)
    assert "include_directories" in create("gemini-acp").get_metadata()["config_keys"]
    assert "sandbox" not in create("corral").get_metadata()["config_keys"]


def test_the_older_names_mean_the_same() -> None:
    assert providers.AIProvider is ResponseProvider
    assert providers.ProviderFactory is ResponseProviderFactory


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"no provider is called 'gemni'.*claude-code.*gemini-cli"):
        create("gemni")


class Echo(ResponseProvider):
    """A provider as somebody else would write it."""

    @classmethod
    def get_metadata(cls) -> dict[str, Any]:
        return {"name": "echo", "config_keys": ["loud"]}

    def validate(self) -> None: ...

    def generate(
        self,
        prompt: str,
        context: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        connection_timeout: float | None = None,
        response_timeout: float | None = None,
    ) -> ProviderResult:
        return ProviderResult(prompt, {"said.txt": prompt})


def test_a_provider_of_ones_own_is_made_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, type[ResponseProvider]] = vars(ResponseProviderFactory)["_registered"]
    monkeypatch.setattr(ResponseProviderFactory, "_registered", dict(registered))
    ResponseProviderFactory.register("echo", Echo)
    assert "echo" in ResponseProviderFactory.list_providers()
    assert create("echo", {"loud": True}).generate("hi") == ProviderResult("hi", {"said.txt": "hi"})
    assert create("echo").config == {}


def test_unknown_keys_are_warned_of_in_their_order_and_have_no_effect(workspace: Path) -> None:
    with pytest.warns(
        UserWarning, match="gemini-cli: unknown config keys, ignored: a, b, c, d, e, f$"
    ):
        provider = create("gemini-cli", {**dict.fromkeys("fbdaec"), "timeout": 5})
    assert provider.config == {"timeout": 5}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"timeout": -3}, "timeout must be >= 0"),
        ({"timeout": True}, "timeout must be a number"),
        ({"timeout": "soon"}, "timeout must be a number, got: str"),
        ({"approval_mode": "all"}, "approval_mode must be one of default, auto_edit, yolo, plan"),
        ({"allowed_tools": "read_file"}, "allowed_tools must be a list, got: str"),
        ({"include_directories": "src"}, "include_directories must be a list, got: str"),
        ({"include_directories": [1]}, "include_directories must hold texts"),
        ({"sandbox": "yes"}, "sandbox must be true or false"),
        ({"model": 3}, "model must be a text"),
    ],
)
def test_a_value_that_cannot_be_is_refused_at_once(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        create("gemini-cli", config)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"permission_mode": "yolo"}, "permission_mode must be one of default, acceptEdits"),
        ({"max_turns": 0}, "max_turns must be > 0"),
        ({"add_dirs": "src"}, "add_dirs must be a list, got: str"),
    ],
)
def test_the_keys_of_claude_code_are_checked_too(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        create("claude-code", config)


def test_the_keys_of_claude_code_become_options() -> None:
    provider = ClaudeCodeProvider({"permission_mode": "plan", "add_dirs": ["a"]})
    options = provider.options({})
    assert (options["approval_mode"], options["include_directories"]) == ("plan", ["a"])
    assert ClaudeCodeProvider().options({})["approval_mode"] == "auto_edit"


@pytest.mark.usefixtures("gemini_here")
def test_a_response_and_the_files_that_the_agent_wrote(workspace: Path) -> None:
    (workspace / "old.txt").write_text("old")
    provider = scripted(workspace)
    provider.validate()
    told = "use write_file a.txt\nwrite a.txt\nused write_file"
    others = "write other.txt"  # as somebody else would, who works in the same folder
    result = provider.generate(f"init\n{told}\n{others}\ntext hello\nresult")
    assert result == ProviderResult("hello", {str(workspace / "a.txt"): None})
    assert store.all_sessions() == []
    free = scripted(workspace, approval_mode="yolo")
    by_shell = free.generate("init\nwrite b.txt\ntext hello\nresult")
    assert by_shell.files == {str(workspace / "b.txt"): None}


@pytest.mark.usefixtures("gemini_here")
async def test_a_provider_blocks_also_inside_a_running_loop(workspace: Path) -> None:
    assert scripted(workspace).generate(GOOD).response == "hello"


@pytest.mark.usefixtures("gemini_here")
def test_the_working_folder_is_the_configs_then_the_contexts(
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


@pytest.mark.usefixtures("gemini_here")
def test_a_prompt_file_beats_the_prompt_and_has_the_system_prompt_before_it(
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


@pytest.mark.usefixtures("gemini_here")
def test_the_config_reaches_the_program_and_edits_are_the_default(workspace: Path) -> None:
    prompt = "init\nargv seen.json\ntext hello\nresult"
    (workspace / "lib").mkdir()
    scripted(workspace, model="gemini-2.5-pro", include_directories=["lib"]).generate(prompt)
    said = " ".join(json.loads((workspace / "seen.json").read_text())["argv"])
    assert "gemini-2.5-pro" in said
    assert str(workspace / "lib") in said
    assert "yolo" not in said
    assert GeminiCliProvider().options({})["approval_mode"] == "auto_edit"
    assert GeminiCliProvider({"approval_mode": "plan"}).options({})["approval_mode"] == "plan"


@pytest.mark.usefixtures("gemini_gone")
def test_a_missing_program_is_told_with_the_line_that_installs_it(workspace: Path) -> None:
    for call in (scripted(workspace).validate, lambda: scripted(workspace).generate(GOOD)):
        with pytest.raises(ProviderError, match="not found") as raised:
            call()
        assert "corral agents install gemini" in str(raised.value)


@pytest.mark.usefixtures("gemini_here")
def test_a_deadline_is_told_with_the_advice_to_raise_it(workspace: Path) -> None:
    with pytest.raises(ProviderError, match=r"timed out after 1s.*raise timeout"):
        scripted(workspace, timeout=1).generate("init\nhang")
    with pytest.raises(ProviderError, match=r"timed out after 0\.5s.*response_timeout"):
        scripted(workspace, timeout=60).generate("init\nhang", response_timeout=0.5)
    with pytest.raises(ProviderError, match=r"no sign of life 0\.5s.*raise connection_timeout"):
        scripted(workspace).generate("hang", connection_timeout=0.5)
    with pytest.raises(ProviderError, match=r"timed out after 0\.5s"):
        scripted(workspace, timeout=0.5).generate("init\nhang", response_timeout=60)
    with pytest.raises(ValueError, match="response_timeout must be >= 0"):
        scripted(workspace).generate(GOOD, response_timeout=-1)


@pytest.mark.usefixtures("gemini_here")
def test_zero_is_no_timeout(workspace: Path) -> None:
    slow = "init\nsleep 1\ntext hello\nresult"
    assert scripted(workspace, timeout=0).generate(slow).response == "hello"
    assert scripted(workspace).generate(slow, response_timeout=0).response == "hello"
    assert scripted(workspace).generate(slow, connection_timeout=0).response == "hello"


def test_allowed_tools_are_added_to_what_the_approval_mode_allows() -> None:
    made = GeminiCliProvider({"allowed_tools": ["run_shell_command"]}).options({})
    assert {"read_file", "write_file", "run_shell_command"} <= {*made["allowed_tools"]}
    assert "web_fetch" not in made["allowed_tools"]
    plain = ClaudeCodeProvider({"permission_mode": "default", "allowed_tools": ["Bash"]}).options(
        {}
    )
    assert {"Read", "Bash"} <= {*plain["allowed_tools"]}
    assert "Write" not in plain["allowed_tools"]


def test_the_factory_tells_of_its_providers() -> None:
    assert ResponseProviderFactory.is_registered("gemini-cli")
    assert ResponseProviderFactory.is_registered("gemini")
    assert not ResponseProviderFactory.is_registered("gemni")
    assert ResponseProviderFactory.get_metadata("claude-code")["name"] == "claude-code"
    with pytest.raises(KeyError, match="no provider is called 'gemni'"):
        ResponseProviderFactory.get_metadata("gemni")
    every = ResponseProviderFactory.get_all_metadata()
    assert list(every) == ResponseProviderFactory.list_providers()
    assert every["manual"]["default_response_timeout"] is None


@pytest.mark.usefixtures("gemini_here")
def test_validate_finds_a_missing_credential(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(workspace).validate()
    monkeypatch.delenv("GEMINI_API_KEY")
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        scripted(workspace).validate()
    with pytest.raises(ProviderError, match="GEMINI_API_KEY"):
        create("corral", {"model": "gemini:gemini-2.5-flash"}).validate()


@pytest.mark.usefixtures("gemini_here")
def test_the_start_and_the_end_of_a_session_are_logged(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "corral.providers")
    scripted(workspace).generate(GOOD)
    told = [record.getMessage() for record in caplog.records if record.name == "corral.providers"]
    assert "session" in told[0]
    assert "started" in told[0]
    assert told[-1].endswith("ended as success")


@pytest.mark.usefixtures("gemini_here")
def test_no_deadline_holds_but_the_engines_own(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corral.toml").write_text("[agents.gemini-cli]\nidle_timeout = 0.3\n")
    monkeypatch.setenv("CORRAL_CONFIG", str(tmp_path / "corral.toml"))
    assert scripted(workspace).generate("init\nsleep 1\ntext hello\nresult").response == "hello"


@pytest.mark.usefixtures("gemini_here")
def test_missing_credentials_are_told_with_what_to_do(workspace: Path) -> None:
    with pytest.raises(ProviderError, match="Set GEMINI_API_KEY, or sign in"):
        scripted(workspace).generate("stderr no key\nexit 41")


@pytest.mark.usefixtures("gemini_here")
def test_a_bad_exit_is_told_with_its_code_and_stderr(workspace: Path) -> None:
    with pytest.raises(ProviderError, match=r"gemini-cli: failed \(exit 7\)") as raised:
        scripted(workspace).generate("init\nstderr it broke\nexit 7")
    assert "it broke" in str(raised.value)
    assert str(raised.value).count("failed (exit 7)") == 1


@pytest.mark.usefixtures("gemini_here")
def test_stderr_is_logged_even_when_all_went_well(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "corral.providers")
    scripted(workspace).generate("stderr a quiet word\n" + GOOD)
    [record] = [r for r in caplog.records if "a quiet word" in r.getMessage()]
    assert (record.name, record.levelname) == ("corral.providers", "DEBUG")


@pytest.mark.usefixtures("gemini_here")
def test_malformed_lines_are_counted_and_the_first_three_shown(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = "\n".join(['raw {"one": ', "raw two", "raw [three", "raw four"])
    result = scripted(workspace).generate(f"init\n{odd}\ntext hello\nresult")
    assert result.response == "hello"
    [record] = [r for r in caplog.records if r.name == "corral.providers"]
    said = record.getMessage()
    assert record.levelname == "WARNING"
    assert "4 malformed lines" in said
    assert all(word in said for word in ("one", "two", "three"))
    assert "four" not in said


@pytest.mark.usefixtures("gemini_here")
def test_nothing_is_logged_where_nothing_is_odd(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scripted(workspace).generate(GOOD)
    assert not [r for r in caplog.records if r.name == "corral.providers"]


class Reader(logging.Handler):
    """A person who reads the engine's log, and answers."""

    def __init__(self, answer: str, workspace: Path) -> None:
        super().__init__()
        self._answer = answer
        self._workspace = workspace
        self.prompts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        _, _, path = record.getMessage().partition("awaited in: ")
        if path:
            answer = Path(path)
            self.prompts.append(answer.with_name("prompt.md").read_text())
            threading.Thread(target=self._work, args=(answer,)).start()

    def _work(self, answer: Path) -> None:
        (self._workspace / "old.txt").unlink()
        (self._workspace / "new.txt").write_text("new")
        answer.write_text(self._answer)


def test_a_person_answers_an_engine_that_asks(workspace: Path) -> None:
    log = logging.getLogger("corral.providers")
    (workspace / "old.txt").write_text("old")
    reader = Reader("by hand", workspace)
    log.addHandler(reader)
    try:
        provider = create("manual", {"working_dir": str(workspace)})
        provider.validate()
        result = provider.generate("What now?", system_prompt="Be kind.")
    finally:
        log.removeHandler(reader)
    assert result == ProviderResult("by hand", {str(workspace / "new.txt"): None})
    assert reader.prompts[0].startswith("Be kind.\n\nWhat now?")


def test_an_engine_that_asks_again_gets_what_was_answered_meanwhile(workspace: Path) -> None:
    provider = create("manual", {"working_dir": str(workspace), "timeout": 0.3})
    with pytest.raises(ProviderError, match=r"timed out after 0\.3s"):
        provider.generate("What now?")
    [kept] = store.all_sessions()
    (kept.folder / "turn-1" / "answer.md").write_text("Meanwhile.")
    again = create("manual", {"working_dir": str(workspace)})
    assert again.generate("What now?").response == "Meanwhile."
