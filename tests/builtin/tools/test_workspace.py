"""No tool reads or writes outside its folders, in whatever form the path is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.builtin_tools import call_error, call_ok, call_tool

from corral._builtin.tools import all_tools
from corral._builtin.tools import files as tool_files
from corral._builtin.tools.workspace import ToolError, Workspace
from corral.errors import ConfigError
from corral.values import Json

SECRET = "the secret of another folder"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace beside a folder whose name begins the same, with links between them."""
    root, evil = tmp_path / "repo", tmp_path / "repo-evil"
    (root / "inner").mkdir(parents=True)
    (evil / "deep").mkdir(parents=True)
    (root / "own.txt").write_text("own\n")
    (evil / "secret.txt").write_text(SECRET)
    (evil / "deep" / "secret.txt").write_text(SECRET)
    (root / "link.txt").symlink_to("../repo-evil/secret.txt")
    (root / "folder").symlink_to("../repo-evil")
    (root / "dangling").symlink_to("../repo-evil/new.txt")
    (root / "chain").symlink_to("inner/further")
    (root / "inner" / "further").symlink_to("../folder/deep")
    (root / "circle").symlink_to("circle")
    (root / "inner" / "back").symlink_to("..")
    return root


ESCAPES = [
    "../repo-evil/secret.txt",
    "..",
    "../",
    "inner/../../repo-evil/secret.txt",
    "inner/back/../repo-evil/secret.txt",
    "{evil}/secret.txt",
    "{evil}",
    "/etc/passwd",
    "/",
    "~",
    "~/x",
    "~root/x",
    "link.txt",
    "folder",
    "folder/secret.txt",
    "folder/new/file.txt",
    "dangling",
    "chain",
    "chain/secret.txt",
    "circle",
    "circle/x",
    "own.txt\0",
    "a\0/../../x",
    "",
    "/proc/self/cwd/../repo-evil/secret.txt",
    "/proc/self/environ",
]

CALLS: dict[str, Callable[[str], dict[str, Json]]] = {
    "read_file": lambda path: {"file_path": path},
    "read_many_files": lambda path: {"paths": [path]},
    "write_file": lambda path: {"file_path": path, "content": "broken in"},
    "edit_file": lambda path: {"file_path": path, "old_string": "the", "new_string": "THE"},
    "grep": lambda path: {"pattern": ".", "path": path},
    "glob": lambda path: {"pattern": "*", "path": path},
    "list_dir": lambda path: {"path": path},
}


def outside(root: Path) -> dict[str, str]:
    evil = root.parent / "repo-evil"
    return {str(path): path.read_text() for path in evil.rglob("*") if path.is_file()}


@pytest.mark.parametrize("path", ESCAPES)
@pytest.mark.parametrize("tool", CALLS)
async def test_a_path_outside_the_workspace_is_refused(root: Path, tool: str, path: str) -> None:
    before = outside(root)
    path = path.replace("{evil}", str(root.parent / "repo-evil"))
    output = await call_error(Workspace(root), tool, **CALLS[tool](path))
    assert SECRET not in output
    assert "secret.txt" not in output.replace(path, "")
    assert outside(root) == before


@pytest.mark.parametrize("path", [path for path in ESCAPES if path and "\0" not in path])
@pytest.mark.parametrize(
    "patch",
    [
        "*** Add File: {}\n+x",
        "*** Delete File: {}",
        "*** Update File: {}\n-the secret of another folder\n+x",
        "*** Update File: own.txt\n*** Move to: {}\n-own\n+x",
    ],
)
async def test_a_patch_outside_the_workspace_is_refused(root: Path, patch: str, path: str) -> None:
    before = outside(root)
    path = path.replace("{evil}", str(root.parent / "repo-evil"))
    complete = f"*** Begin Patch\n{patch.format(path)}\n*** End Patch"
    assert SECRET not in (await call_error(Workspace(root), "apply_patch", patch=complete)).replace(
        patch, ""
    ).replace(f"-{SECRET}", "")
    assert outside(root) == before
    assert (root / "own.txt").read_text() == "own\n"


@pytest.mark.parametrize(
    "pattern",
    [
        "../*",
        "../repo-evil/*",
        "{evil}/**",
        "/etc/pass*",
        "folder/*",
        "**/../../*",
        "chain/*",
        "~/*",
    ],
)
async def test_a_pattern_outside_the_workspace_is_refused(root: Path, pattern: str) -> None:
    pattern = pattern.replace("{evil}", str(root.parent / "repo-evil"))
    workspace = Workspace(root)
    assert "secret.txt" not in await call_error(workspace, "glob", pattern=pattern)
    assert SECRET not in await call_error(workspace, "read_many_files", paths=[pattern])


async def test_several_files_can_be_read_through_links_inside(root: Path) -> None:
    (root / "alias.md").symlink_to("own.txt")
    assert "own" in await call_ok(Workspace(root), "read_many_files", paths=["*.md"])


async def test_a_search_follows_no_link_out_of_the_workspace(root: Path) -> None:
    workspace = Workspace(root)
    assert "No line" in await call_ok(workspace, "grep", pattern=SECRET)
    assert "secret" not in await call_ok(workspace, "glob", pattern="**")
    complete = await call_tool(workspace, "read_many_files", paths=["**"])
    assert "own" in complete.text
    assert SECRET not in complete.text


def test_every_tool_that_takes_a_path_is_tried_here() -> None:
    with_paths = {*all_tools()} - {"shell", "web_fetch", "apply_patch"}
    assert with_paths == set(CALLS)


@pytest.mark.parametrize("path", ["circle", "circle/x", "inner/back/circle"])
def test_links_in_a_circle_are_named(root: Path, path: str) -> None:
    with pytest.raises(ToolError, match="leads in a circle"):
        Workspace(root).resolve(path)


async def test_links_that_stay_inside_are_followed_and_stay_links(root: Path) -> None:
    (root / "alias").symlink_to("inner/back/own.txt")
    workspace = Workspace(root)
    assert "own" in await call_ok(workspace, "read_file", file_path="alias")
    await call_ok(workspace, "write_file", file_path="alias", content="changed\n")
    assert (root / "alias").is_symlink()
    assert (root / "own.txt").read_text() == "changed\n"


async def test_extra_folders_can_be_read_and_writable_ones_written(
    root: Path, tmp_path: Path
) -> None:
    evil, other = tmp_path / "repo-evil", tmp_path / "other"
    other.mkdir()
    workspace = Workspace(root, extra=[evil], writable=["../other"])
    assert SECRET in await call_ok(workspace, "read_file", file_path=str(evil / "secret.txt"))
    assert SECRET in await call_ok(workspace, "read_file", file_path="link.txt")
    for path in ("link.txt", "dangling", str(evil / "new.txt")):
        output = await call_error(workspace, "write_file", file_path=path, content="")
        assert output.endswith("may be read but not written")
    await call_ok(workspace, "write_file", file_path=str(other / "new.txt"), content="x")
    assert (other / "new.txt").read_text() == "x"


def test_a_folder_replaced_by_a_link_after_the_check_is_not_followed(root: Path) -> None:
    """What a program that runs at the same time could do between the check and the opening."""
    workspace = Workspace(root)
    (root / "inner" / "secret.txt").write_text("own")
    complete = workspace.resolve("inner/secret.txt", write=True)
    os.rename(root / "inner", root / "was")
    (root / "inner").symlink_to("../repo-evil")
    before = outside(root)
    with pytest.raises(ToolError):
        tool_files.read_text(workspace, complete)
    with pytest.raises(ToolError):
        tool_files.stage(workspace, complete, b"broken in")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        tool_files.remove(workspace, complete)
    assert outside(root) == before


def test_a_file_replaced_by_a_link_after_the_check_is_not_followed(root: Path) -> None:
    workspace = Workspace(root)
    complete = workspace.resolve("own.txt", write=True)
    (root / "own.txt").unlink()
    (root / "own.txt").symlink_to("../repo-evil/secret.txt")
    before = outside(root)
    with pytest.raises(ToolError):
        tool_files.read_text(workspace, complete)
    with pytest.raises(ToolError):
        tool_files.stage(workspace, complete, b"broken in")
    assert outside(root) == before


async def test_a_hard_link_to_a_file_outside_is_replaced_not_written(root: Path) -> None:
    os.link(root.parent / "repo-evil" / "secret.txt", root / "hard")
    before = outside(root)
    await call_ok(Workspace(root), "write_file", file_path="hard", content="own now")
    assert outside(root) == before


@pytest.mark.parametrize("tool", ["read_file", "edit_file", "write_file", "grep"])
async def test_a_pipe_never_blocks_a_tool(root: Path, tool: str) -> None:
    os.mkfifo(root / "pipe")
    output = (await call_tool(Workspace(root), tool, **CALLS[tool]("pipe"))).text
    assert output == "pipe is not a regular file"


def test_a_root_that_is_not_a_folder_is_an_error(root: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        Workspace(root / "missing")
    with pytest.raises(ConfigError, match="not a folder"):
        Workspace(root / "own.txt")
    with pytest.raises(ConfigError, match="no such folder"):
        Workspace(root, extra=["missing"])
