"""``corral config``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.pipeline_command import corral


def write(folder: Path, text: str) -> Path:
    file = folder / "corral.toml"
    file.write_text(text)
    return file


def test_path_lists_the_files_and_how_far_they_are_trusted(workspace: Path) -> None:
    write(workspace, "")
    user, local = json.loads(corral("config", "path", "--json", cwd=workspace).stdout)
    assert (user["exists"], user["trusted"]) == (False, True)
    assert local == {"path": str(workspace / "corral.toml"), "exists": True, "trusted": False}
    shown = corral("config", "path", cwd=workspace).stdout
    assert "harmless options only" in shown


def test_one_named_file_replaces_both(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_CONFIG", "mine.toml")
    (only,) = json.loads(corral("config", "path", "--json", cwd=workspace).stdout)
    assert only == {"path": "mine.toml", "exists": False, "trusted": True}


def test_show_prints_what_is_set_for_an_agent(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CORRAL_PROBE")
    write(workspace, "[defaults]\ntimeout = 900\n[agents.codex]\nmax_turns = 7\n")
    shown = corral("config", "show", "--agent", "codex-acp", "--json", cwd=workspace).stdout
    assert json.loads(shown) == {
        "agent": "codex-acp",
        "options": {"timeout": 900.0, "max_turns": 7},
    }
    assert "900" in corral("config", "show", cwd=workspace).stdout


def test_check_accepts_a_valid_file(workspace: Path) -> None:
    write(workspace, "[defaults]\ntimeout = 900\n")
    done = corral("config", "check", cwd=workspace)
    assert (done.returncode, done.stdout) == (0, "ok: corral.toml\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[defaults", "corral.toml"),
        ("[default]\n", "Did you mean [defaults]?"),
        ("[defaults]\ntimeuot = 3\n", "did you mean 'timeout'?"),
        ('[defaults]\ntimeout = "soon"\n', "timeout: 'soon' is not a duration"),
        ('[defaults]\npolicy = "all"\n', "may not set policy"),
        ("[agents.gemni]\nmodel = 'x'\n", "gemni"),
    ],
)
def test_check_names_each_mistake(text: str, message: str, workspace: Path) -> None:
    write(workspace, text)
    done = corral("config", "check", cwd=workspace)
    assert done.returncode == 2
    assert message in done.stderr
