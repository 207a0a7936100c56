"""``corral completion``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.pipeline_command import corral

from corral._system import paths

CORRAL = str(Path(sys.executable).parent / "corral")


def completed(*words: str, cwd: Path) -> list[str]:
    """What bash offers for the last of these words."""
    quoted = " ".join(map(shlex.quote, words))
    code = f"""
        eval "$({CORRAL} completion bash)"
        COMP_WORDS=({quoted})
        COMP_CWORD={len(words) - 1}
        _corral_completion corral
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{Path(CORRAL).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", code],
        cwd=cwd,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.deep
def test_bash_completes_commands_agents_and_models(workspace: Path) -> None:
    assert completed("corral", "ses", cwd=workspace) == ["sessions"]
    assert completed("corral", "run", "--agent", "gemini-", cwd=workspace) == [
        "gemini-acp",
        "gemini-cli",
    ]
    assert "gemini:gemini-2.5-flash" in completed(
        "corral", "run", "-m", "gemini:gemini-2.5-fl", cwd=workspace
    )
    assert completed("corral", "runs", "show", "la", cwd=workspace) == ["last"]


@pytest.mark.deep
def test_bash_completes_runs_batches_and_files(workspace: Path) -> None:
    for number, kind in enumerate(("runs", "batches")):
        for name in ("first-1", "first-2", "other"):
            folder = paths.home() / kind / name
            folder.mkdir(parents=True)
            os.utime(folder, (number, number))
    for word in ("show", "export", "watch", "replay", "delete"):
        found = completed("corral", "runs", word, "f", cwd=workspace)
        assert found == ["first-2", "first-1"] * 2
    assert completed("corral", "runs", "show", "", cwd=workspace)[0] == "last"
    assert completed("corral", "chat", "--resume", "la", cwd=workspace) == ["last"]
    assert completed("corral", "batch", "-m", "gemini:gemini-2.5-fl", cwd=workspace)
    assert completed("corral", "agents", "show", "gemini-c", cwd=workspace) == ["gemini-cli"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed_for_each_shell(shell: str, workspace: Path) -> None:
    done = corral("completion", shell, cwd=workspace)
    assert done.returncode == 0
    assert "_CORRAL_COMPLETE" in done.stdout


def test_a_broken_configuration_offers_nothing_and_prints_no_error(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "broken.toml").write_text("[")
    monkeypatch.setenv("CORRAL_CONFIG", str(workspace / "broken.toml"))
    assert completed("corral", "run", "--agent", "g", cwd=workspace) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rnu",), "no command is called 'rnu'\n  Did you mean 'run'?"),
        (("zzzz",), "no command is called 'zzzz'\n  For a prompt: corral run"),
    ],
)
def test_a_wrong_command_is_corrected(
    words: tuple[str, ...], message: str, workspace: Path
) -> None:
    done = corral(*words, cwd=workspace)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_version_has_a_short_flag(workspace: Path) -> None:
    assert corral("-V", cwd=workspace).stdout == corral("--version", cwd=workspace).stdout
