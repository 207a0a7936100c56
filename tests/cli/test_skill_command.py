"""``corral skill``, the skill that it installs, and the programs that find the skill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_in_process import run_in_process
from support.skill_scan import PROGRAM, skill_folders

import corral
from corral._agents import registry
from corral._cli.skill import PLUGIN, SKILL

FILES = sorted(str(path.relative_to(SKILL)) for path in SKILL.rglob("*.md"))


def installed(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture(autouse=True)
def _in_workspace(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)


def test_the_skill_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run_in_process("skill show", monkeypatch)
    assert (done.returncode, done.stdout) == (0, (SKILL / "SKILL.md").read_text())
    assert run_in_process("skill show --plugin", monkeypatch).stdout.strip() == str(PLUGIN)


def test_the_skill_is_short_and_names_its_references() -> None:
    text = (SKILL / "SKILL.md").read_text()
    assert len(text.splitlines()) < 150
    assert [name for name in FILES if name != "SKILL.md" and name not in text] == []


def test_it_is_installed_for_a_project_and_then_up_to_date(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = workspace / ".agents" / "skills" / "corral"
    done = run_in_process("skill install", monkeypatch)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"installed {target}")
    assert "--agent claude" in done.stdout
    assert installed(target) == FILES
    assert (target / "SKILL.md").read_bytes() == (SKILL / "SKILL.md").read_bytes()
    done = run_in_process("skill install", monkeypatch)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"{target} is up to date")


def test_each_agent_has_its_folder_and_a_shared_one_is_written_once(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_in_process("skill install -a claude -a gemini-acp -a codex -a qwen", monkeypatch)
    folders = (".agents", ".claude", ".qwen")
    assert done.stdout.splitlines() == [
        f"installed {workspace}/{folder}/skills/corral" for folder in folders
    ]
    assert sorted(os.listdir(workspace)) == list(folders)


def test_every_agent_with_a_program_has_a_folder() -> None:
    without = {
        each.name for each in registry.all_agents() if each.programs and not each.skill_folder
    }
    assert without == {"antigravity-acp"}  # corral starts its library, which looks in no folder


def test_it_is_installed_for_the_user_also_behind_a_link_of_the_home_folder(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    Path(os.environ["HOME"], ".claude").symlink_to(dotfiles)
    done = run_in_process("skill install --user --agent claude", monkeypatch)
    assert done.returncode == 0, done.stderr
    assert installed(dotfiles / "skills" / "corral") == FILES
    assert os.listdir(workspace) == []


def test_a_skill_that_differs_is_kept_without_force(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_process("skill install --agent claude", monkeypatch)
    changed = workspace / ".claude" / "skills" / "corral" / "SKILL.md"
    changed.write_text("mine")
    done = run_in_process("skill install --agent claude --agent gemini", monkeypatch)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert changed.read_text() == "mine"
    assert not (workspace / ".agents").exists(), "nothing is written if one is refused"
    done = run_in_process("skill install --agent claude --force", monkeypatch)
    assert done.stdout == f"replaced {changed.parent}\n"
    assert changed.read_bytes() == (SKILL / "SKILL.md").read_bytes()


@pytest.mark.parametrize("link", [".agents", ".agents/skills/corral", "references"])
def test_a_link_of_a_repository_does_not_lead_the_files_out_of_it(
    link: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place = workspace / (".agents/skills/corral/references" if link == "references" else link)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside)
    done = run_in_process("skill install --force", monkeypatch)
    assert done.returncode == 2
    assert "leads out of" in done.stderr
    assert os.listdir(outside) == []


def test_a_file_that_is_a_link_is_replaced_and_its_target_is_not_changed(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("secret")
    target = workspace / ".agents" / "skills" / "corral"
    target.mkdir(parents=True)
    (target / "SKILL.md").symlink_to(tmp_path / "secret")
    assert run_in_process("skill install --force", monkeypatch).returncode == 0
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (target / "SKILL.md").is_symlink()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--agent corral", "does not know where"),
        ("--agent nobody", "nobody"),
        ("--user --cwd .", "both"),
        ("--cwd missing", "does not exist"),
    ],
)
def test_wrong_options_are_errors(
    words: str, message: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_in_process(f"skill install {words}", monkeypatch)
    assert done.returncode == 2
    assert message in done.stderr
    assert os.listdir(workspace) == []


@pytest.mark.deep
def test_library_skills_finds_it_and_its_link_is_up_to_date(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a checkout that is installed as editable; ``test_packaging`` has the wheel."""
    assert skill_folders(Path(sys.prefix), workspace) == [str(SKILL)]
    done = subprocess.run(
        [PROGRAM, "--yes", "--skill", "corral"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    target = workspace / ".agents" / "skills" / "corral"
    assert target.is_symlink(), done.stdout + done.stderr
    done = run_in_process("skill install", monkeypatch)
    assert done.stdout.splitlines()[0] == f"{target} is up to date"


def test_both_plugins_are_the_same() -> None:
    claude, codex = (PLUGIN / f".{name}-plugin" / "plugin.json" for name in ("claude", "codex"))
    assert json.loads(claude.read_text())["name"] == corral.__name__
    assert claude.read_bytes() == codex.read_bytes()
