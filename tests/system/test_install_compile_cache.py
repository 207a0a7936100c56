"""Node's compile cache: a small agent as npm installs it, and the real Node 22."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.node22 import needs_node22, node22_folder
from support.sandbox import needs_sandbox

import corral
from corral import Policy, errors
from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._system import install, paths, programs
from corral.values import JsonObject

pytestmark = needs_node22

SCRIPT = """#!/usr/bin/env node
import { fork } from "node:child_process";
import { getCompileCacheDir } from "node:module";
import { part } from "./part.mjs";

if (process.env.EXTRA) await import(process.env.EXTRA);
const facts = { part, cache: getCompileCacheDir() ?? null, arguments: process.execArgv,
                variable: process.env.NODE_COMPILE_CACHE ?? null };
if (process.argv[2] === "child") {
  process.send(facts);
} else if (process.argv[2] === "fork") {
  fork(process.argv[1], ["child"]).on("message", (child) => console.log(JSON.stringify(child)));
} else if (process.argv.includes("stream-json")) {
  const at = { timestamp: "2026-11-15T00:00:00.000Z" };
  console.log(JSON.stringify({ type: "init", ...at, session_id: "s", model: "none" }));
  console.log(JSON.stringify({ type: "message", ...at, role: "assistant",
                               content: JSON.stringify(facts) }));
  console.log(JSON.stringify({ type: "result", ...at, status: "success" }));
} else {
  console.log(JSON.stringify(facts));
}
"""


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> AgentSpec:
    """An agent that corral installed; Node 22 is on PATH."""
    monkeypatch.setenv("PATH", f"{node22_folder()}{os.pathsep}{os.environ['PATH']}")
    found = registry.find("gemini-cli")
    package = programs.managed_folder(found) / "node_modules" / "@google" / "gemini-cli"
    write_package(package, found)
    program = programs.managed_program(found)
    program.parent.mkdir()
    program.symlink_to(package / "gemini.mjs")
    return found


def write_package(folder: Path, agent: AgentSpec) -> None:
    folder.mkdir(parents=True)
    known = {"name": agent.package.name, "version": agent.package.tested}
    (folder / "package.json").write_text(json.dumps(known))
    (folder / "part.mjs").write_text('export const part = "loaded";\n')
    (folder / "gemini.mjs").write_text(SCRIPT)
    (folder / "gemini.mjs").chmod(0o755)


def located(agent: AgentSpec) -> programs.FoundProgram:
    return programs.locate(agent, str(programs.managed_program(agent)))


def filled(agent: AgentSpec) -> Path:
    """The entries of the cache, after a run that filled it."""
    found = located(agent)
    with install.filling_compile_cache(agent, found) as program:
        call((program,))
    folder = programs.compile_cache(found.argv[-1], found.argv[0])
    assert folder is not None
    return Path(folder) / "entries"


def call(argv: tuple[str, ...], *words: str, **env: str) -> JsonObject:
    done = subprocess.run(
        [*argv, *words], env={**os.environ, **env}, check=True, capture_output=True
    )
    assert done.stderr == b""
    facts: JsonObject = json.loads(done.stdout)
    return facts


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def state(agent: AgentSpec) -> str:
    cache = install.find_compile_cache(located(agent))
    assert cache is not None
    return cache.state


def test_a_filled_cache_is_used_and_only_its_owner_can_read_it(agent: AgentSpec) -> None:
    assert state(agent) == "not filled"
    assert call(located(agent).argv)["cache"] is None
    entries = filled(agent)
    assert len(contents(entries)) == 2
    assert [file.name for file in entries.parent.iterdir() if file != entries] == ["enable.cjs"]
    assert {each.stat().st_mode & 0o077 for each in (entries.parent.parent, entries.parent)} == {0}
    assert state(agent) == "on"
    debug = {**os.environ, "NODE_DEBUG_NATIVE": "COMPILE_CACHE"}
    done = subprocess.run(located(agent).argv, env=debug, check=True, capture_output=True)
    assert done.stderr.count(b"was accepted, keeping the in-memory entry") == 2


def test_no_run_writes_the_cache_also_if_it_could(agent: AgentSpec, tmp_path: Path) -> None:
    entries = filled(agent)
    before = contents(entries.parent)
    (extra := tmp_path / "extra.mjs").write_text("export const extra = 1;\n")
    (temporary := tmp_path / "tmp").mkdir()
    facts = call(located(agent).argv, EXTRA=str(extra), TMPDIR=str(temporary))
    assert str(facts["cache"]).startswith(str(temporary))
    assert contents(entries.parent) == before
    assert list(temporary.iterdir()) == []


def test_programs_that_the_agent_starts_do_not_get_the_cache(agent: AgentSpec) -> None:
    filled(agent)
    assert call(located(agent).argv, "fork") == {
        "part": "loaded",
        "cache": None,
        "arguments": [],
        "variable": None,
    }


@needs_sandbox
async def test_in_the_sandbox_the_cache_is_read_only(agent: AgentSpec, tmp_path: Path) -> None:
    entries = filled(agent)
    before = contents(entries.parent)
    (workspace := tmp_path / "work").mkdir()
    (workspace / "extra.mjs").write_text("export const extra = 1;\n")
    result = await corral.run(
        agent.name,
        "go",
        cwd=workspace,
        program=str(programs.managed_program(agent)),
        policy=Policy.edits(),
        sandbox="require",
        env={"GEMINI_API_KEY": "none", "EXTRA": str(workspace / "extra.mjs")},
        keep=False,
        meter=False,
        check=True,
    )
    facts = json.loads(result.text)
    # Node gets the folder itself, not a private one: it could not be written.
    assert os.path.dirname(facts["cache"]) == str(entries)
    assert contents(entries.parent) == before


@pytest.mark.parametrize("harm", ["damaged", "empty", "missing"])
def test_a_damaged_or_missing_cache_does_no_harm(agent: AgentSpec, harm: str) -> None:
    entries = filled(agent)
    for file in contents(entries):
        content = Path(file).read_bytes()
        Path(file).write_bytes(b"" if harm == "empty" else content[:40] + b"x" * len(content))
    if harm == "missing":
        shutil.rmtree(entries)
    assert call(located(agent).argv)["part"] == "loaded"


def test_a_run_that_fails_leaves_no_cache(agent: AgentSpec) -> None:
    with (
        pytest.raises(errors.BrokenInstall, match="wrote no compile cache"),
        install.filling_compile_cache(agent, located(agent)),
    ):
        pass
    assert not (programs.managed_folder(agent) / "compile-cache").exists()
    assert state(agent) == "not filled"


def test_another_node_has_another_cache(
    agent: AgentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = filled(agent)
    (other := tmp_path / "bin").mkdir()
    shutil.copyfile(os.path.join(node22_folder(), "node"), other / "node")
    (other / "node").chmod(0o755)
    monkeypatch.setenv("PATH", f"{other}{os.pathsep}{os.environ['PATH']}")
    assert state(agent) == "not filled"
    second = filled(agent)
    assert state(agent) == "on"
    assert second.exists()
    assert not first.exists()


def test_an_older_node_is_started_as_before(
    agent: AgentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(agent)
    (old := tmp_path / "bin").mkdir()
    (old / "node").write_text("#!/bin/sh\necho v20.20.2\n")
    (old / "node").chmod(0o755)
    monkeypatch.setenv("PATH", f"{old}{os.pathsep}{os.environ['PATH']}")
    found = located(agent)
    assert found.argv == (str(old / "node"), os.path.realpath(found.path))
    cache = install.find_compile_cache(found)
    assert cache is not None
    assert cache.describe() == "off: Node 22.1 or newer is needed (Node 20.20.2)"


def test_a_cache_beside_a_program_of_the_user_is_never_used(
    agent: AgentSpec, tmp_path: Path
) -> None:
    """A repository can bring ``node_modules`` and such a folder."""
    entries = filled(agent)
    package = tmp_path / "repository" / "node_modules" / "gemini-cli"
    write_package(package, agent)
    planted = package.parents[1] / "compile-cache"
    shutil.copytree(entries.parent.parent, planted)
    found = programs.locate(agent, str(package / "gemini.mjs"))
    assert "--require" not in found.argv
    cache = install.find_compile_cache(found)
    assert cache is not None
    assert cache.state == "not installed by corral"
    assert not str(package).startswith(str(paths.managed()))
