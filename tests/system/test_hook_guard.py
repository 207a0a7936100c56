"""The hook that decides a call by its paths, run as an agent runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corral._system.hook_guard import DENY, Guarded, HookCall, patched_paths, refusal_reason


def patch(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", *lines, "*** End Patch", ""))


def hook(guarded: str, call: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-I", "-m", "corral._system.hook_guard", guarded]
    return subprocess.run(
        program, input=call, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A workspace with links that lead out and to a protected folder."""
    work = tmp_path / "work"
    (work / "sub" / ".git").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "more").mkdir()
    (work / "out").symlink_to(tmp_path / "outside")
    (work / "dangling").symlink_to(tmp_path / "outside" / "new.txt")
    (work / "inner").symlink_to("sub/.git")
    return work


@pytest.mark.parametrize(
    "line",
    [
        "*** Add File: .git/config",
        "*** Add File: deep/er/.git/hooks/pre-commit",
        "*** Update File: sub/.git",
        "*** Delete File: sub/.git/config",
        "*** Move to: .git/hooks/pre-commit",
        "   *** Add File:    .git/config   ",
        "\t***Add  File:.git/config\r",
        "*** add file: .git/config",
        "*** Add File: inner/config",
        "*** Add File: out/new.txt",
        "*** Add File: dangling",
        "*** Add File: ../outside/new.txt",
        "*** Add File: /proc/self/cwd/new.txt",
        "*** Add File: sub/../.codex/config.toml",
        "*** Add File: .mcp.json",
    ],
)
def test_a_patch_of_a_protected_or_outer_file_is_refused(tree: Path, line: str) -> None:
    harmless = ("*** Update File: a.txt", "@@", "-old", "+new")
    call = HookCall("apply_patch", {"command": patch(*harmless, line, "+x")}, str(tree))
    assert refusal_reason(Guarded(cwd=str(tree)), call)


def test_a_patch_in_the_workspace_and_the_writable_folders_is_allowed(tree: Path) -> None:
    more = str(tree.parent / "more")
    text = patch(
        "*** Add File: new.txt",
        "+a line that says *** Add File: .git/config",
        f"*** Update File: {more}/b.txt",
        "*** Move to: sub/c.txt",
        "@@",
        " *** a line between stars ***",
        "-old",
        "+new",
    )
    assert patched_paths(text) == ["new.txt", f"{more}/b.txt", "sub/c.txt"]
    guarded = Guarded(cwd=str(tree), writable=(more,))
    assert refusal_reason(guarded, HookCall("apply_patch", {"command": text}, str(tree))) is None
    assert refusal_reason(
        Guarded(cwd=str(tree)), HookCall("apply_patch", {"command": text}, str(tree))
    )


def test_an_image_is_read_only_in_the_workspace(tree: Path) -> None:
    def view(path: str) -> str | None:
        guarded = Guarded(cwd=str(tree), readable=(str(tree.parent / "more"),))
        return refusal_reason(guarded, HookCall("view_image", {"path": path}, str(tree)))

    assert view("a.png") is None
    assert view(f"{tree.parent}/more/a.png") is None
    for path in ("out/a.png", "/etc/a.png", "../outside/a.png", "/proc/self/environ"):
        assert view(path)


def test_without_a_folder_the_folder_of_the_call_is_used(tree: Path) -> None:
    def view(path: str, cwd: str | None) -> str | None:
        return refusal_reason(Guarded(), HookCall("view_image", {"path": path}, cwd))

    assert view("a.png", str(tree)) is None
    assert view(f"{tree}/a.png", str(tree.parent / "more"))
    assert view("a.png", None)


def test_unknown_calls_are_denied_by_the_exit_code(tree: Path) -> None:
    good = json.dumps({"cwd": str(tree)})
    allowed: dict[str, Any] = {"command": patch("*** Add File: a.txt", "+x")}
    calls: list[Any] = [
        {"tool_name": "apply_patch", "tool_input": {}},
        {"tool_name": "apply_patch", "tool_input": {"command": ["*** Add File: a.txt"]}},
        {"tool_name": "apply_patch", "tool_input": {"command": "no patch"}},
        {"tool_name": "Bash", "tool_input": {"command": "ls"}},
        {"tool_name": "apply_patch"},
        [],
    ]
    for call in calls:
        refused = hook(good, json.dumps(call))
        assert (refused.returncode, refused.stdout) == (DENY, "")
        assert "refused by policy" in refused.stderr
    for guarded, text in (("", "{}"), ("{}", "{}"), (good, ""), (good, "\0" * 10)):
        assert hook(guarded, text).returncode == DENY
    call = {"tool_name": "apply_patch", "tool_input": allowed, "cwd": str(tree)}
    assert hook(good, json.dumps(call)).returncode == 0


def test_nothing_of_the_working_directory_is_imported(tree: Path) -> None:
    (tree / "msgspec.py").write_text("raise SystemExit(0)\n")
    (tree / "corral").mkdir()
    (tree / "corral" / "__init__.py").write_text("raise SystemExit(0)\n")
    here = os.getcwd()
    os.chdir(tree)
    try:
        call = {"tool_name": "apply_patch", "tool_input": {"command": patch("*** Add File: .git")}}
        assert hook(json.dumps({"cwd": str(tree)}), json.dumps(call)).returncode == DENY
    finally:
        os.chdir(here)
