"""Which credentials an agent gets, and which combinations are refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.scripted_agent import GOOD, scripted_options

import corral
from corral._agents import registry
from corral._sessions.credentials import check_ready
from corral._sessions.prepare import prepare
from corral._system.path_guard import PathGuard
from corral._system.programs import managed_program
from corral.errors import AuthenticationFailed, ConfigError, MissingKey

LOGIN = ".gemini/oauth_creds.json"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def signed_in(home: Path) -> None:
    (home / LOGIN).parent.mkdir()
    (home / LOGIN).write_text("{}")


def options(workspace: Path, **more: object) -> dict[str, object]:
    return {**scripted_options(workspace), **more}


def test_two_kinds_of_credentials_are_refused_unless_one_is_chosen(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed_in(home)
    monkeypatch.setenv("GEMINI_API_KEY", "key-0123456789")
    with pytest.raises(ConfigError, match="paid for in two ways: GEMINI_API_KEY") as raised:
        prepare("gemini-cli", options(workspace, env={}))
    assert "--auth" in (raised.value.hint or "")
    by_key = prepare("gemini-cli", options(workspace, env={}, auth="api_key"))
    assert (by_key.auth, by_key.credentials) == ("api_key", ())
    assert by_key.environment.values["GEMINI_API_KEY"] == "key-0123456789"
    by_login = prepare("gemini-cli", options(workspace, env={}, auth="subscription"))
    assert (by_login.auth, by_login.credentials) == ("subscription", (LOGIN,))
    assert "GEMINI_API_KEY" not in by_login.environment.values
    left = prepare("gemini-cli", options(workspace, env={}, auth="inherit"))
    assert (left.auth, left.credentials) == ("api_key", (LOGIN,))


def test_missing_credentials_are_an_error_before_anything_starts(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AuthenticationFailed, match="no API key for Gemini CLI") as raised:
        prepare("gemini-cli", options(workspace, env={}, auth="api_key"))
    assert "GEMINI_API_KEY" in (raised.value.hint or "")
    monkeypatch.setenv("GEMINI_API_KEY", "key-0123456789")
    with pytest.raises(AuthenticationFailed, match="there is no sign-in"):
        prepare("gemini-cli", options(workspace, env={}, auth="subscription"))


def test_a_sign_in_names_the_path_of_a_program_that_is_not_on_path(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_HOME", str(home / "corral"))
    own = options(workspace, env={})
    program = Path(str(own.pop("program")))
    with pytest.raises(AuthenticationFailed, match="by running `gemini` in a terminal"):
        check_ready(prepare("gemini-cli", {**own, "program": str(program)}), "a-session")
    managed = managed_program(registry.find("gemini-cli"))
    managed.parent.mkdir(parents=True)
    managed.symlink_to(program)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable) + ":/usr/bin:/bin")
    with pytest.raises(AuthenticationFailed, match=f"by running `{managed}` in a terminal"):
        check_ready(prepare("gemini-cli", own), "a-session")


def test_a_session_without_credentials_is_not_ready(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AuthenticationFailed, match="no credentials for the Gemini CLI"):
        check_ready(prepare("gemini-cli", options(workspace, env={})), "a-session")
    with pytest.raises(MissingKey, match="no API key for Gemini"):
        check_ready(prepare("corral", {"model": "gemini:x", "cwd": str(workspace)}), "a-session")
    ready = prepare("gemini-cli", options(workspace, env={"GEMINI_API_KEY": "k" * 9}))
    monkeypatch.setattr(PathGuard, "links", None)  # the folders are walked once, at the launch
    check_ready(ready, "a-session")


async def test_the_result_names_the_credentials_that_were_billed(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "key-0123456789")
    result = await corral.run("gemini-cli", GOOD, **scripted_options(workspace))
    assert result.auth == "api_key"
    assert os.environ["HOME"] == str(home)


def test_an_unknown_auth_value_is_refused(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="auth"):
        prepare("gemini-cli", options(workspace, auth="barter"))
