"""OpenCode: what only this agent does.

It starts formatters and language servers of the repository, writes by patches with some models, and
sends documents that lie beside a file that the model reads.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.files import file_names
from support.model_scripts import sent_json, steps
from support.real_agents import RealAgent, for_agents
from support.refusing_proxy import refusing_proxy
from support.repositories import git

import corral
from corral import Policy, errors
from corral.testing import Call, Turn, say

pytestmark = pytest.mark.timeout(400)

SECRET = "words that nobody may read"


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
    files, an embedded repository, and links to the outside, to .git, and to each other."""
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


def attempts(agent: RealAgent, outside: Path) -> list[Call]:
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
        *map(agent.write, fenced),
        Call("edit", {"filePath": "link-file", "oldString": "kept", "newString": "lost"}),
        *map(agent.read, seen),
        *(Call("grep", {"pattern": "words", "path": path}) for path in folders),
        *(Call("glob", {"pattern": "*cret*", "path": path}) for path in folders),
        Call("glob", {"pattern": "../../outside/*"}),
        *map(
            agent.shell, ("id > ran.txt", "sort -o ran.txt a.txt", "uniq a.txt ran.txt", "> a.txt")
        ),
        agent.shell("find . -name a.txt -exec cp {} ran.txt \\;"),
        Call("task", {"description": "x", "prompt": "x", "subagent_type": "general"}),
        Call("skill", {"name": "customize-opencode"}),
        Call("webfetch", {"url": "http://example.org/", "format": "text"}),
        agent.read("a.txt"),
        agent.write("new.ts", "export const a = 1\n"),
    ]


@for_agents("opencode-acp", "opencode-cli")
async def test_edits_stay_in_a_hostile_workspace_and_nothing_else_is_read_run_or_called(
    agent: RealAgent, workspace: Path, inner: Path, outside: Path
) -> None:
    before, before_outside = tree(workspace), tree(outside)
    with refusing_proxy() as called:
        calls = attempts(agent, outside)
        (result,) = await agent.attempt(calls, policy="edits", env=called.env, cwd=inner)
        assert called.requests == []
    assert result.ok
    after = tree(workspace)
    assert after.pop(str(inner / "new.ts")) == b"export const a = 1\n"
    assert after == before
    assert tree(outside) == before_outside
    assert file_names(outside.parent / "loot") == []
    sent = sent_json(agent.requests)
    assert "inside Words" in sent
    assert SECRET not in sent
    assert "secret.txt:" not in sent
    assert "canary-key" not in sent
    allowed = {"edit", "glob", "grep", "read", "todowrite", "write"}
    assert {*agent.requests[0].tools} <= allowed


@for_agents("opencode-acp")
async def test_a_patch_of_several_files_is_denied_if_one_of_them_is(
    agent: RealAgent, workspace: Path, inner: Path, outside: Path
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
    # Models with this name write by patches only. opencode-cli refuses them.
    result = await agent.run(script, policy="edits", model="custom/gpt-5.2", cwd=inner)
    assert result.ok
    assert "apply_patch" in agent.requests[0].tools
    after = tree(workspace)
    assert after.pop(str(inner / "new.txt")) == b"written\n"
    assert after == before
    assert tree(outside) == before_outside


@for_agents("opencode-acp", "opencode-cli")
async def test_a_linked_document_is_refused_and_searching_works_without_links(
    agent: RealAgent, workspace: Path, outside: Path
) -> None:
    (workspace / "sub").mkdir()
    (workspace / "sub" / "a.txt").write_text("inside words\n")
    link = workspace / "sub" / "AGENTS.md"
    link.symlink_to(outside / "secret.txt")
    options = agent.options([say("never")], policy="reads")
    with pytest.raises(errors.UntrustedFolder, match=r"AGENTS\.md"):
        await corral.run(agent.name, "do it", **options)
    assert agent.requests == []
    link.unlink()
    calls = [Call("grep", {"pattern": "inside w"}), Call("glob", {"pattern": "**/*.txt"})]
    calls += [agent.write("new.txt"), agent.shell("id > ran.txt")]
    result = await agent.run(steps(*calls), policy=Policy())
    assert result.ok
    sent = sent_json(agent.requests)
    assert "Line 1: inside words" in sent
    assert f"{workspace}/sub/a.txt" in sent
    assert file_names(workspace) == ["sub/a.txt"]
    assert {*agent.requests[0].tools} == {"glob", "grep", "read", "todowrite"}


@pytest.mark.deep  # test_real_attacks.py and test_real_hostile_repository.py try more
@for_agents("opencode-acp")
async def test_a_document_beside_a_file_that_the_model_reads_is_sent(
    agent: RealAgent, workspace: Path
) -> None:
    """No option prevents this; documents in the folders above are not sent."""
    (workspace / "AGENTS.md").write_text("HIJACKED by top")
    (workspace / "sub").mkdir()
    (workspace / "sub" / "AGENTS.md").write_text("HIJACKED by sub")
    (workspace / "sub" / "file.txt").write_text("harmless\n")
    result = await agent.run(steps(agent.read("sub/file.txt")), policy="edits")
    assert result.ok
    assert "harmless" in sent_json(agent.requests)
    assert re.findall(r"HIJACKED by \w+", sent_json(agent.requests)) == ["HIJACKED by sub"]


@for_agents("opencode-cli")
async def test_an_answer_that_is_cut_by_its_length_is_an_error(agent: RealAgent) -> None:
    result = await agent.run([Turn(text="half", finish="length")])
    with pytest.raises(errors.ContextLengthExceeded):
        result.raise_for_status()
