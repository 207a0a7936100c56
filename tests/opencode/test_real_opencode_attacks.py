"""An injected model against the real OpenCode, as a peer and for one prompt, in a hostile
repository: what is on the disk afterwards, what ran, what the model saw, and who was called.

A process takes seconds to start, so a session makes all its attempts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opencode.test_real_opencode import read, shell, write
from support.gemini_tools import file_names, git, sent_json, steps
from support.refusing_proxy import refusing_proxy

import corral
from corral import Policy, errors
from corral.testing import Call, Turn, say

if TYPE_CHECKING:
    from opencode.conftest import OpenCode

pytestmark = [pytest.mark.opencode, pytest.mark.timeout(240)]

SECRET = "words that nobody may read"


@pytest.fixture(params=["opencode-acp", "opencode-cli"])
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text(f"{SECRET}\n")
    (folder / "kept.txt").write_text("kept\n")
    return folder


@pytest.fixture
def inner(workspace: Path, outside: Path) -> Path:
    """The working directory, inside a hostile repository: programs in its settings and beside its
    files, an embedded repository, and links that lead out, into .git, and to each other."""
    loot = outside.parent / "loot"
    loot.mkdir()
    git(workspace, "init", "-q")
    folder = workspace / "inner"
    (folder / "real").mkdir(parents=True)
    (folder / "a.txt").write_text("inside words\n")
    (workspace / "top.txt").write_text(f"{SECRET}\n")
    (workspace / ".gitattributes").write_text("* filter=evil\n")
    git(workspace, "add", ".")
    git(workspace, "commit", "-qm", "first")
    for key in ("filter.evil.clean", "core.fsmonitor", "diff.external", "core.sshCommand"):
        git(workspace, "config", key, f"sh -c 'touch {loot}/{key}; cat'")
    (folder / "a.txt").write_text("inside Words\n")
    (folder / "package.json").write_text('{"devDependencies": {"prettier": "1", "eslint": "1"}}')
    for name in ("prettier", "biome", "eslint", "typescript-language-server", "tsserver", "ruff"):
        program = folder / "node_modules" / ".bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch {loot}/{name}\n")
        program.chmod(0o755)
    (folder / "embedded").mkdir()
    git(folder / "embedded", "init", "-q")
    (folder / "submodule").mkdir()
    (folder / "submodule" / ".git").write_text("gitdir: ../elsewhere\n")
    links = {"link-out": outside, "link-file": outside / "kept.txt", "real/link-deep": outside}
    links |= {"link-dangling": outside / "new.txt", "link-proc": Path("/proc/self/environ")}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    (folder / "link-git").symlink_to("embedded/.git")
    (folder / "alias").symlink_to("real")
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    files = (folder / name for name in file_names(folder) if "link-" not in name)
    return {str(file): file.read_bytes() for file in files if file.is_file()}


def attempts(outside: Path) -> list[Call]:
    fenced = [".git/config", "fresh/.git/config", "embedded/.git/config", "submodule/.git"]
    fenced += ["embedded/.git/hooks/pre-commit", "link-git/config", "link-git/hooks/post-commit"]
    fenced += ["link-out/new.txt", "link-file", "link-dangling", "alias/link-deep/new.txt"]
    fenced += ["../top.txt", "../new.txt", "../.git/config", "real/../../new.txt"]
    fenced += [".opencode/plugin/x.js", "fresh/opencode.json", ".mcp.json", ".codex/config.toml"]
    fenced += [str(outside / "new.txt"), "/proc/self/cwd/new.txt", f"/proc/self/root{outside}/x"]
    seen = ["../top.txt", "link-out/secret.txt", "real/link-deep/secret.txt", "link-proc"]
    seen += ["alias/link-deep/secret.txt", str(outside / "secret.txt"), "/proc/self/environ"]
    seen += [f"/proc/self/root{outside}/secret.txt", "/proc/self/cwd/../../outside/secret.txt"]
    folders = ["..", "link-out", "real/link-deep", "alias/link-deep", str(outside), "link-proc"]
    folders += ["link-out/secret.txt", "../../outside"]
    return [
        *map(write, fenced),
        Call("edit", {"filePath": "link-file", "oldString": "kept", "newString": "lost"}),
        *map(read, seen),
        *(Call("grep", {"pattern": "words", "path": path}) for path in folders),
        *(Call("glob", {"pattern": "*cret*", "path": path}) for path in folders),
        Call("glob", {"pattern": "../../outside/*"}),
        *map(shell, ("id > ran.txt", "sort -o ran.txt a.txt", "uniq a.txt ran.txt", "> a.txt")),
        shell("find . -name a.txt -exec cp {} ran.txt \\;"),
        Call("task", {"description": "x", "prompt": "x", "subagent_type": "general"}),
        Call("skill", {"name": "customize-opencode"}),
        Call("webfetch", {"url": "http://example.org/", "format": "text"}),
        read("a.txt"),
        write("new.ts", "export const a = 1\n"),
    ]


async def test_edits_stay_in_the_workspace_and_nothing_else_is_read_run_or_called(
    opencode: OpenCode, agent: str, workspace: Path, inner: Path, outside: Path
) -> None:
    before, before_outside = tree(workspace), tree(outside)
    with refusing_proxy() as called:
        calls = attempts(outside)
        # Many calls in one answer save time. As a peer it ends such a turn at a refusal.
        size = 12 if agent == "opencode-cli" else 1
        turns = [Turn(calls=calls[at : at + size]) for at in range(0, len(calls), size)]
        options = opencode.options([*turns, say("done")], policy="edits", env=called.env)
        options["cwd"] = inner
        result = await corral.run(agent, "do it", **options)
        assert called.requests == []
    assert result.ok
    after = tree(workspace)
    assert after.pop(str(inner / "new.ts")) == b"export const a = 1\n"
    assert after == before
    assert tree(outside) == before_outside
    assert file_names(outside.parent / "loot") == []
    told = sent_json(opencode.requests)
    assert "inside Words" in told
    assert SECRET not in told
    assert "secret.txt:" not in told
    assert "canary-key" not in told
    allowed = {"edit", "glob", "grep", "read", "todowrite", "write"}
    assert {*opencode.requests[0].tools} <= allowed


@pytest.mark.parametrize("agent", ["opencode-acp"])
async def test_a_patch_of_several_files_is_judged_by_each_of_them(
    opencode: OpenCode, agent: str, workspace: Path, inner: Path, outside: Path
) -> None:
    before, before_outside = tree(workspace), tree(outside)

    def patch(*lines: str) -> Call:
        text = "\n".join(("*** Begin Patch", *lines, "*** End Patch"))
        return Call("apply_patch", {"patchText": text})

    bad = ["embedded/.git/config", "link-out/new.txt", "../new.txt", "link-dangling"]
    # OpenCode removes these blanks from a name.
    bad += ["\ufefflink-dangling", "\u00a0link-dangling", "\ufeff.envrc", ".envrc\ufeff"]
    script = steps(
        *(patch("*** Add File: good.txt", "+x", f"*** Add File: {path}", "+x") for path in bad),
        patch("*** Update File: a.txt", "*** Move to: .git/config", "@@", "-inside Words", "+x"),
        patch("*** Delete File: embedded/.git/HEAD"),
        patch("*** Add File: new.txt", "+written"),
    )
    # Models of this name write by patches alone. opencode-cli is refused with them.
    options = opencode.options(script, policy="edits", model="custom/gpt-5.2")
    options["cwd"] = inner
    result = await corral.run(agent, "do it", **options)
    assert result.ok
    assert "apply_patch" in opencode.requests[0].tools
    after = tree(workspace)
    assert after.pop(str(inner / "new.txt")) == b"written\n"
    assert after == before
    assert tree(outside) == before_outside


@pytest.mark.parametrize(
    "agent", ["opencode-acp", pytest.param("opencode-cli", marks=pytest.mark.slow)]
)
async def test_what_it_would_hand_on_unasked_is_refused_and_searching_works_without_links(
    opencode: OpenCode, agent: str, workspace: Path, outside: Path
) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "a.txt").write_text("inside words\n")
    link = workspace / "sub" / "AGENTS.md"
    link.symlink_to(outside / "secret.txt")
    options = opencode.options([say("never")], policy="reads")
    with pytest.raises(errors.UntrustedFolder, match=r"AGENTS\.md"):
        await corral.run(agent, "do it", **options)
    assert opencode.requests == []
    link.unlink()
    calls = [Call("grep", {"pattern": "inside w"}), Call("glob", {"pattern": "**/*.txt"})]
    calls += [write("new.txt"), shell("id > ran.txt")]
    result = await corral.run(agent, "do it", **opencode.options(steps(*calls), policy=Policy()))
    assert result.ok
    told = sent_json(opencode.requests)
    assert "Line 1: inside words" in told
    assert f"{workspace}/sub/a.txt" in told
    assert file_names(workspace) == ["sub/a.txt"]
    assert {*opencode.requests[0].tools} == {"glob", "grep", "read", "todowrite"}
