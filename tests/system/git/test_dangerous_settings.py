"""Which settings of a repository start nothing. git itself is the judge of what a file means."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from corral._system.git.dangerous_settings import LARGEST, find_not_harmless, is_dangerous


def others(text: str) -> list[str]:
    return find_not_harmless(text.encode(), lambda tree: tree == "../tree")


def git(*words: str, cwd: Path) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    allow = ("-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *allow, *words], cwd=cwd, check=True, capture_output=True)


def test_what_git_writes_by_itself_is_harmless(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    git("init", "-q", str(first), cwd=tmp_path)
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=first)
    git("branch", "fix#1;2", cwd=first)
    git("clone", "-q", str(first), str(second), cwd=tmp_path)
    git("checkout", "-q", "fix#1;2", cwd=second)
    git("config", "user.name", "Somebody", cwd=second)
    git("remote", "add", "other", "git@example.org:a/b.git", cwd=second)
    git("submodule", "add", "-q", str(first), "sub", cwd=second)
    git("sparse-checkout", "set", "--skip-checks", "sub", cwd=second)
    files = [first / ".git/config", *(second / ".git").rglob("config*")]
    assert len(files) == 4
    trees = {"../../../sub"}
    assert [find_not_harmless(file.read_bytes(), trees.__contains__) for file in files] == [[]] * 4


@pytest.mark.parametrize(
    "text",
    [
        "[core]\n\tfsmonitor = x",
        "[CORE]\n\tFsMonitor = true",
        "[core]\n\tfsmonitor",
        "[core]\n\thooksPath = hooks",
        "[core]\n\tworktree = ../../elsewhere",
        '[filter "x"]\n\tclean = x',
        "[filter.x]\n\tclean = x",
        "[include]\n\tpath = x",
        '[includeIf "gitdir:~"]\n\tpath = x',
        "[alias]\n\tx = !y",
        '[remote "x"]\n\turl = ext::sh -c x',
        '[remote "x"]\n\turl = foo://x',
        '[remote "x"]\n\turl = --upload-pack=x',
        '[remote "x"]\n\tuploadpack = x',
        '[branch "x"]\n\tremote = ext::sh -c x',
        '[submodule "x"]\n\tupdate = !x',
        "[gc]\n\trecentObjectsHook = x",
        "[core] fsmonitor = x",
        '[core "x"]\n\tfsmonitor = x',
        "[core]\n\tbare = false ; [core]",
        "[core]\n\tbare = fal\\\nse",
        "[core]\r\n\tbare = false",
        "[core]\n\tbare = \x00",
        "[core\n]\n\tbare = false",
        "\ufeff[core]\n\tbare = false",
        "core = x",
        "[unknown]\n\tsetting = x",
        "[core]\n" + "\tbare = false\n" * LARGEST,
    ],
)
def test_everything_else_is_reported(text: str) -> None:
    assert others(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# a comment\n; another\n",
        "[core]\n\tfsmonitor = false\n\thooksPath = /dev/null\n\tworktree = ../tree",
        '[remote "o"]\n\turl = https://example.org/x.git\n\tfetch = +refs/heads/*:refs/remotes/o/*',
        '[branch "a.b"]\n\tmerge = "refs/heads/a#b"\n\tremote = o',
        "[core]\n\tbare",
    ],
)
def test_these_are_harmless(text: str) -> None:
    assert others(text) == []


PIECES = (
    "[core]", "[core", "]", '[filter "x"]', '[filter "x', '"', "\\", "\n", "\n", "\n", "\t", " ",
    "=", "#", ";",
    "fsmonitor", "bare", "clean", "x", "true", "[alias]", "[include]", "path", "\r", "-", ".",
)  # fmt: skip


def test_no_text_in_which_git_sees_a_program_is_harmless(tmp_path: Path) -> None:
    """Random texts: whatever git finds a dangerous setting in is reported."""
    chance = random.Random(28)
    texts = ["".join(chance.choices(PIECES, k=chance.randint(3, 14))) for _ in range(4000)]
    accepted = [text for text in texts if others(text) == []]
    assert len(accepted) > 10
    file = tmp_path / "config"
    for text in accepted:
        file.write_bytes(text.encode())
        command = ["git", "config", "--file", str(file), "--list", "-z", "--no-includes"]
        seen = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        rows = [row.partition("\n") for row in seen.split("\0") if row]
        assert not [name for name, _, value in rows if is_dangerous(name, value)], text
