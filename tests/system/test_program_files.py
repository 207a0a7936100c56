"""The digest of a program's files, with real files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from corral import errors
from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._system import paths, program_files
from corral._system.program_files import digest, known_digest
from corral._system.programs import FoundProgram


@pytest.fixture
def agent() -> AgentSpec:
    return registry.find("codex-cli")


def found(path: Path) -> FoundProgram:
    return FoundProgram(str(path), (str(path),), "1.2.3", "PATH")


def package(folder: Path) -> Path:
    """An npm package as of Codex: a launcher, and the package with the program beside it."""
    modules = folder / "node_modules"
    launcher = modules / "@openai" / "codex" / "bin" / "codex.js"
    launcher.parent.mkdir(parents=True)
    launcher.write_text("start()")
    about = {"name": "@openai/codex", "version": "1.2.3"}
    (modules / "@openai" / "codex" / "package.json").write_text(json.dumps(about))
    binary = modules / "@openai" / "codex-linux-x64" / "vendor" / "codex"
    binary.parent.mkdir(parents=True)
    binary.write_text("the program")
    for name in ("dependency", "@scope/dependency"):
        nested = modules / "@openai" / "codex" / "node_modules" / name
        nested.mkdir(parents=True)
        (nested / "package.json").write_text("{}")
        (nested / "index.js").write_text("code")
    return launcher


def test_the_digest_does_not_depend_on_the_place(agent: AgentSpec, tmp_path: Path) -> None:
    digests = {digest(agent, found(package(tmp_path / name))) for name in ("a", "b")}
    assert len(digests) == 1


@pytest.mark.parametrize(
    "name",
    [
        "codex/bin/codex.js",
        "codex/package.json",
        "codex-linux-x64/vendor/codex",
        "codex/node_modules/dependency/package.json",
        "codex/node_modules/@scope/dependency/package.json",
    ],
)
def test_each_file_that_decides_how_it_behaves_changes_the_digest(
    agent: AgentSpec, tmp_path: Path, name: str
) -> None:
    program = found(package(tmp_path))
    before = digest(agent, program)
    path = tmp_path / "node_modules" / "@openai" / name
    stored = path.stat()
    path.write_text(path.read_text().upper().replace("{}", "[]"))
    os.utime(path, ns=(stored.st_atime_ns, stored.st_mtime_ns))  # as an archive restores it
    assert digest(agent, program) != before


def linked(folder: Path) -> tuple[FoundProgram, Path]:
    """A package in which ``bin/lib`` is a link to a folder elsewhere, with a file."""
    launcher, elsewhere = package(folder), folder / "elsewhere"
    (elsewhere / "below").mkdir(parents=True)
    (elsewhere / "below" / "code.js").write_text("code")
    (launcher.parent / "lib").symlink_to(elsewhere)
    return found(launcher), elsewhere


def test_what_a_linked_folder_has_changes_the_digest(agent: AgentSpec, tmp_path: Path) -> None:
    program, elsewhere = linked(tmp_path / "a")
    before = digest(agent, program)
    assert digest(agent, linked(tmp_path / "b")[0]) == before
    (elsewhere / "below" / "code.js").write_text("other")
    changed = digest(agent, program)
    (elsewhere / "below" / "new.js").write_text("")
    assert len({before, changed, digest(agent, program)}) == 3


def test_links_that_lead_back_are_counted_by_their_place(agent: AgentSpec, tmp_path: Path) -> None:
    program, elsewhere = linked(tmp_path)
    (elsewhere / "below" / "two").mkdir()
    top = Path(program.argv[-1]).parents[1]
    digests = {digest(agent, program)}
    link = elsewhere / "below" / "link"
    targets = (top, top / "bin", elsewhere, elsewhere / "below", elsewhere / "below" / "two")
    for target in targets:
        link.symlink_to(target)
        digests.add(digest(agent, program))
        link.unlink()
    assert len(digests) == 1 + len(targets)


def test_a_link_to_a_large_folder_is_an_error(
    agent: AgentSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, elsewhere = linked(tmp_path)
    own = len([path for path in package(tmp_path / "b").parents[4].rglob("*") if path.is_file()])
    monkeypatch.setattr(program_files, "MOST_FILES", own + 10)
    assert digest(agent, program)
    for number in range(20):
        (elsewhere / str(number)).touch()
    assert known_digest(agent, program) is None
    with pytest.raises(errors.BrokenInstall, match=r"over .* files"):
        digest(agent, program)


def test_a_file_that_is_not_its_own_does_not_change_the_digest(
    agent: AgentSpec, tmp_path: Path
) -> None:
    program = found(package(tmp_path))
    before = digest(agent, program)
    (tmp_path / "node_modules" / "other").write_text("x")
    assert digest(agent, program) == before


def test_of_npms_list_of_packages_only_versions_and_hashes_count(
    agent: AgentSpec, tmp_path: Path
) -> None:
    program = found(package(tmp_path))
    lock = tmp_path / "node_modules" / ".package-lock.json"
    digests: list[str] = []
    for version, other in (("1.0", "MIT"), ("1.0", "BSD"), ("1.1", "BSD")):
        entry = {"version": version, "integrity": "sha512-abc", "license": other}
        lock.write_text(json.dumps({"packages": {"node_modules/dependency": entry}}))
        digests.append(digest(agent, program))
    assert digests[0] == digests[1] != digests[2]


def test_a_program_outside_of_the_package_is_one_file(agent: AgentSpec, tmp_path: Path) -> None:
    program = tmp_path / "codex"
    program.write_text("#!/bin/sh\n")
    (tmp_path / "other").write_text("x")
    before = digest(agent, found(program))
    (tmp_path / "other").write_text("y")
    assert digest(agent, found(program)) == before
    program.write_text("#!/bin/sh\n# changed\n")
    assert digest(agent, found(program)) != before


def test_a_digest_is_computed_once(agent: AgentSpec, tmp_path: Path) -> None:
    program = found(package(tmp_path))
    assert known_digest(agent, program) is None
    value = digest(agent, program)
    assert known_digest(agent, program) == value
    known = json.loads((paths.cache() / "program-files.json").read_text())
    (paths.cache() / "program-files.json").write_text(
        json.dumps(dict.fromkeys(known, "from the cache"))
    )
    assert digest(agent, program) == "from the cache"


def test_a_program_that_disappears_is_an_error(agent: AgentSpec, tmp_path: Path) -> None:
    with pytest.raises(errors.BrokenInstall, match="cannot be read"):
        digest(agent, found(tmp_path / "codex"))
