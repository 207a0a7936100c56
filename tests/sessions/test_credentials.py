"""Which credentials an agent gets, and which combinations are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.scripted_agent import GOOD, scripted_options

import corral
from corral._sessions.prepare import prepare
from corral.errors import AuthenticationFailed, ConfigError

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
