"""The blocking face of workflow engines, over the real Gemini CLI."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.real_gemini import KEY, Gemini

from corral.providers import ProviderError, ResponseProvider, ResponseProviderFactory
from corral.testing import Call, Turn, fail

pytestmark = pytest.mark.gemini_cli


def provider(
    gemini: Gemini, monkeypatch: pytest.MonkeyPatch, script: Sequence[Turn]
) -> ResponseProvider:
    """Found, led and paid for as an engine's would be: by the environment."""
    env = gemini.options(script).get("env", {})
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", env["GOOGLE_GEMINI_BASE_URL"])
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setenv("PATH", f"{Path(gemini.program).parent}{os.pathsep}{os.environ['PATH']}")
    return ResponseProviderFactory.create("gemini-cli", {"model": "gemini-2.5-flash"})


def test_an_engine_gets_the_response_and_what_was_written(
    gemini: Gemini, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [
        Turn(calls=[Call("write_file", {"file_path": "a.txt", "content": "hi"})]),
        Turn(text="Written."),
    ]
    made = provider(gemini, monkeypatch, script)
    made.validate()
    (workspace / "prompt.md").write_text("Write a.txt, please")
    result = made.generate(
        "something else",
        {"project_root": workspace, "prompt_file": "prompt.md"},
        system_prompt="Be brief.",
        response_timeout=90,
    )
    assert result.response == "Written."
    assert result.files == {str(workspace / "a.txt"): None}
    assert (workspace / "a.txt").read_text() == "hi"
    assert "Be brief.\n\nWrite a.txt, please" in gemini.requests[0].last_text


def test_the_shell_is_refused_and_a_refused_key_is_told(
    gemini: Gemini,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = [
        Turn(calls=[Call("run_shell_command", {"command": "touch ran.txt"})]),
        Turn(text="I may not."),
    ]
    made = provider(gemini, monkeypatch, script)
    with caplog.at_level("WARNING", "corral.providers"):
        result = made.generate("Run it", {"project_root": workspace})
    assert result.response == "I may not."
    assert [refused.partition(":")[0] for refused in result.denied] == ["run_shell_command"]
    assert "denied by the policy: run_shell_command" in caplog.text
    assert not (workspace / "ran.txt").exists()
    made = provider(gemini, monkeypatch, [fail(401, "API key not valid")])
    with pytest.raises(ProviderError, match="Set GEMINI_API_KEY, or sign in"):
        made.generate("Hello", {"project_root": workspace})
