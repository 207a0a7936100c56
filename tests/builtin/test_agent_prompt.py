"""The system prompt and the tools of the built-in agent."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest
from support.builtin_agent import BuiltinAgent

from corral._builtin.prompt import LARGEST_DOCUMENTS, git_branch, project_documents
from corral._models.registry import family_of
from corral.policy import Policy
from corral.testing import say

pytest_plugins = ("support.builtin_agent_fixture",)


async def test_the_environment_is_described(ours: BuiltinAgent) -> None:
    subprocess.run(["git", "init", "-q", "-b", "trunk", ours.workspace], check=True)
    await ours.events([say("ok")])
    system = ours.requests[0].system
    block = system.partition("<environment>")[2].partition("</environment>")[0]
    assert f"Working directory: {os.path.realpath(ours.workspace)}" in block
    assert "Git branch: trunk" in block
    assert f"Platform: {platform.system()}" in block
    assert "Model: gemini:gemini-2.5-flash" in block


async def test_the_prompt_describes_the_policy(ours: BuiltinAgent) -> None:
    await ours.events([say("ok")], policy=Policy(write="allow", shell="deny"))
    output = "reading: allowed, writing files: allowed, commands: not allowed, network: asks"
    assert output in ours.requests[0].system
    await ours.events([say("ok")], policy=Policy.plan())
    assert "Only plan" in ours.requests[0].system


async def test_documents_are_in_order_from_the_root_and_the_users_text_is_last(
    ours: BuiltinAgent,
) -> None:
    deep = ours.workspace / "a" / "b"
    deep.mkdir(parents=True)
    (ours.workspace / ".git").mkdir()
    (ours.workspace.parent / "AGENTS.md").write_text("from above the repository")
    (ours.workspace / "AGENTS.md").write_text("of the root")
    (ours.workspace / "GEMINI.md").write_text("for gemini")
    (ours.workspace / "CLAUDE.md").write_text("for claude")
    (ours.workspace / "a" / "AGENTS.md").write_text("of a")
    (deep / "AGENTS.md").write_text("of b")
    await ours.events([say("ok")], cwd=deep, system_prompt="the user's words")
    system = ours.requests[0].system
    places = [system.find(output) for output in ("of the root", "for gemini", "of a", "of b")]
    assert -1 not in places
    assert places == sorted(places)
    assert system.endswith("the user's words")
    assert "for claude" not in system
    assert "from above" not in system


@pytest.mark.parametrize(
    ("wire", "theirs", "others"),
    [
        ("gemini", ["GEMINI.md"], ["CLAUDE.md"]),
        ("anthropic", ["CLAUDE.md"], ["GEMINI.md"]),
        ("openai", [], ["GEMINI.md", "CLAUDE.md"]),
    ],
)
async def test_each_family_has_its_documents(
    ours: BuiltinAgent, wire: str, theirs: list[str], others: list[str]
) -> None:
    for name in ("AGENTS.md", "GEMINI.md", "CLAUDE.md"):
        (ours.workspace / name).write_text(f"this is {name}")
    await ours.events([say("ok")], wire=wire)
    system = ours.requests[0].system
    assert all(f"this is {name}" in system for name in ["AGENTS.md", *theirs])
    assert not any(f"this is {name}" in system for name in others)


async def test_another_base_prompt_replaces_only_the_base(ours: BuiltinAgent) -> None:
    (ours.workspace / "AGENTS.md").write_text("of the project")
    await ours.events([say("ok")], replace_system_prompt="You are a poet.")
    system = ours.requests[0].system
    assert system.startswith("You are a poet.\n\n<environment>")
    assert "coding agent" not in system
    assert "of the project" in system


def test_documents_are_cut_at_the_limit_with_a_note(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / "AGENTS.md").write_text("é" * 10_000)
    (below / "AGENTS.md").write_text("x" * LARGEST_DOCUMENTS)
    (below / "GEMINI.md").write_text("never read")
    first, second = project_documents(below, ("GEMINI.md",))
    assert first == ("AGENTS.md", "é" * 10_000)
    text, _, mark = second[1].rpartition("\n")
    assert "cut here" in mark
    assert len(first[1].encode()) + len(text.encode()) == LARGEST_DOCUMENTS


def test_a_character_at_the_limit_is_not_split(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("x" + "é" * LARGEST_DOCUMENTS)
    ((_, text),) = project_documents(tmp_path, ())
    assert "\ufffd" not in text


def test_links_are_followed_only_inside_the_repository(tmp_path: Path) -> None:
    repo, outside = tmp_path / "repo", tmp_path / "repo-evil"
    below = repo / "below"
    for folder in (repo / ".git", below, outside, repo / "docs"):
        folder.mkdir(parents=True)
    (outside / "key").write_text("secret")
    (repo / "AGENTS.md").symlink_to(outside / "key")
    (repo / "docs" / "rules.md").write_text("the rules")
    (below / "AGENTS.md").symlink_to("../docs/rules.md")
    assert project_documents(below, ()) == [("below/AGENTS.md", "the rules")]


def test_one_document_with_two_names_is_included_once(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("the rules")
    (tmp_path / "CLAUDE.md").symlink_to("AGENTS.md")
    assert project_documents(tmp_path, ("CLAUDE.md",)) == [("AGENTS.md", "the rules")]


def test_a_document_must_be_a_regular_file(tmp_path: Path) -> None:
    """A pipe would be waited for without end."""
    os.mkfifo(tmp_path / "AGENTS.md")
    (tmp_path / "GEMINI.md").mkdir()
    assert project_documents(tmp_path, ("GEMINI.md",)) == []


def test_bytes_that_are_not_text_do_not_stop_the_conversion(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"so \xff\xfe and so")
    assert project_documents(tmp_path, ()) == [("AGENTS.md", "so  and so")]


def test_the_branch_is_read_in_repositories_worktrees_and_submodules(tmp_path: Path) -> None:
    def git(*args: str, cwd: Path) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always"]
        subprocess.run(["git", *who, *args], cwd=cwd, check=True, capture_output=True)

    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        git("init", "-q", "-b", "trunk", cwd=folder)
        git("commit", "-q", "--allow-empty", "-m", "x", cwd=folder)
    git("worktree", "add", "-q", "-b", "feature/x", "../tree", cwd=one)
    git("submodule", "add", "-q", str(two), "sub", cwd=one)
    assert git_branch(one) == "trunk"
    assert git_branch(tmp_path / "tree") == "feature/x"
    assert git_branch(one / "sub") == "trunk"
    git("checkout", "-q", "--detach", cwd=two)
    assert len(git_branch(two) or "") == 12
    assert git_branch(tmp_path) is None


EDITS = {"edit_file", "write_file"}


@pytest.mark.parametrize(
    ("wire", "edits"), [("gemini", True), ("anthropic", True), ("openai", False), ("chat", True)]
)
async def test_openai_patches_and_the_others_edit(
    ours: BuiltinAgent, wire: str, edits: bool
) -> None:
    await ours.events([say("ok")], wire=wire)
    tools = set(ours.requests[0].tools)
    assert {"read_file", "glob", "grep", "shell", "spawn_agent"} <= tools
    assert (tools >= EDITS) == edits
    assert ("apply_patch" in tools) != edits


@pytest.mark.parametrize(
    ("provider", "model", "patches"),
    [
        ("openrouter", "openai/gpt-5", True),
        ("openrouter", "anthropic/claude-opus-4", False),
        ("openrouter", "google/gemini-2.5-pro", False),
        ("openrouter", "qwen/qwen3-coder", False),
        ("openai-chat", "o3", True),
        ("groq", "llama-3.3-70b", False),
    ],
)
def test_the_family_comes_from_the_models_own_name(
    provider: str, model: str, patches: bool
) -> None:
    assert ("apply_patch" in family_of(provider, model).tools) == patches
