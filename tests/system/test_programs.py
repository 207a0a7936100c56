"""Finding an agent's program, with real files."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from corral import errors
from corral._agents import registry
from corral._agents.spec import AgentSpec
from corral._system import config, paths
from corral._system.programs import locate, machine, managed_program

PLAIN = Path(__file__).parents[1] / "programs" / "plain_acp.py"


@pytest.fixture
def agent() -> AgentSpec:
    return registry.find("gemini-cli")


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, with the few programs that a script needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "cat", "env"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def script(path: Path, body: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(body)
    path.chmod(mode)
    return path


def package(folder: Path, version: str, name: str = "@google/gemini-cli") -> Path:
    """An npm package with the program in it, as npm lays it out."""
    main = script(folder / "bundle" / "gemini.js", "#!/usr/bin/env -S node --x\n")
    (folder / "package.json").write_text(json.dumps({"name": name, "version": version}))
    return main


def node(bin_folder: Path) -> str:
    return str(script(bin_folder / "node", "#!/bin/sh\necho 0.99.0\n"))


def test_a_missing_agent_is_an_error_with_the_install_command(
    agent: AgentSpec, bin_folder: Path
) -> None:
    with pytest.raises(errors.NotInstalled, match="no gemini on PATH") as raised:
        locate(agent, None)
    assert "corral agents install gemini" in (raised.value.hint or "")
    assert "npm install -g @google/gemini-cli" in (raised.value.hint or "")


def test_a_node_script_is_started_with_node_and_its_version_read_from_its_package(
    agent: AgentSpec, bin_folder: Path, tmp_path: Path
) -> None:
    interpreter = node(bin_folder)
    main = package(tmp_path / "lib" / "node_modules" / "@google" / "gemini-cli", "0.61.0")
    (bin_folder / "gemini").symlink_to(main)
    found = locate(agent, None)
    assert found.path == str(bin_folder / "gemini")
    assert found.argv == (interpreter, str(main))
    assert (found.version, found.source) == ("0.61.0", "PATH")
    assert not (paths.cache() / "versions.json").exists()


def test_a_node_script_without_node_is_an_error(
    agent: AgentSpec, bin_folder: Path, tmp_path: Path
) -> None:
    (bin_folder / "gemini").symlink_to(package(tmp_path / "p", "0.61.0"))
    with pytest.raises(errors.NotInstalled, match=r"needs Node\.js 20"):
        locate(agent, None)


def test_the_version_of_another_package_is_not_used(
    agent: AgentSpec, bin_folder: Path, tmp_path: Path
) -> None:
    node(bin_folder)
    main = package(tmp_path / "p", "9.9.9", name="something-else")
    assert locate(agent, str(main)).version == "0.99.0"


def test_another_program_is_run_once_for_its_version(
    agent: AgentSpec, bin_folder: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    body = f'#!/bin/sh\necho "$@" >> {asked}\necho "gemini version 0.60.1 (x)"\n'
    program = script(bin_folder / "gemini", body)
    for _ in range(3):
        found = locate(agent, None)
        assert (found.argv, found.version) == ((str(program),), "0.60.1")
    assert asked.read_text() == "--version\n"


def test_a_changed_program_is_run_again_for_its_version(agent: AgentSpec, bin_folder: Path) -> None:
    program = script(bin_folder / "gemini", "#!/bin/sh\necho 0.60.1\n")
    assert locate(agent, None).version == "0.60.1"
    script(program, "#!/bin/sh\necho 0.60.2 \n")
    assert locate(agent, None).version == "0.60.2"


def test_a_corrupt_version_cache_is_ignored(agent: AgentSpec, bin_folder: Path) -> None:
    script(bin_folder / "gemini", "#!/bin/sh\necho 0.60.1\n")
    paths.cache().mkdir(parents=True)
    (paths.cache() / "versions.json").write_text("[not what was written")
    assert locate(agent, None).version == "0.60.1"


def test_the_version_is_asked_without_our_secrets(
    agent: AgentSpec, bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv("GEMINI_API_KEY", "canary-key")
    script(bin_folder / "gemini", f"#!/bin/sh\nenv > {seen}\necho 0.60.1\n")
    locate(agent, None)
    assert "PATH=" in seen.read_text()
    assert "canary" not in seen.read_text()


@pytest.mark.parametrize(
    ("body", "output"),
    [("echo no number", "exit 0"), ("echo 0.61.0; exit 3", "exit 3"), ("", "exit 0")],
)
def test_a_program_that_prints_no_version_is_broken(
    agent: AgentSpec, bin_folder: Path, body: str, output: str
) -> None:
    script(bin_folder / "gemini", f"#!/bin/sh\necho why not >&2\n{body}\n")
    with pytest.raises(errors.BrokenInstall, match=output) as raised:
        locate(agent, None)
    assert raised.value.stderr == "why not\n"


def test_a_program_without_its_interpreter_is_broken(agent: AgentSpec, bin_folder: Path) -> None:
    script(bin_folder / "gemini", "#!/no/such/interpreter\n")
    with pytest.raises(errors.BrokenInstall, match="--version failed"):
        locate(agent, None)


@pytest.mark.parametrize("version", ["0.57.9", "0.9.0", "0.57.99-preview.1"])
def test_a_version_that_is_too_old_is_an_error_with_the_install_command(
    agent: AgentSpec, bin_folder: Path, tmp_path: Path, version: str
) -> None:
    node(bin_folder)
    main = package(tmp_path / "p", version)
    with pytest.raises(errors.VersionTooOld, match=f"{version} at .* is too old") as raised:
        locate(agent, str(main))
    assert raised.value.agent_version == version
    assert "corral agents install gemini" in (raised.value.hint or "")


@pytest.mark.parametrize("version", ["0.58.0", "0.61.0", "0.100.0", "1.0.0", "0.61.0-nightly.2"])
def test_a_version_that_is_new_enough_is_used(
    agent: AgentSpec, bin_folder: Path, tmp_path: Path, version: str
) -> None:
    node(bin_folder)
    assert locate(agent, str(package(tmp_path / "p", version))).version == version


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.58.0", None),
        ("0.61.0-nightly.2", None),
        ("0.62.0", None),
        ("0.62.1", "Gemini CLI 0.62.1 was never tested with corral (tested: 0.58.0 to 0.62.0)"),
        ("1.0.0", "Gemini CLI 1.0.0 was never tested with corral (tested: 0.58.0 to 0.62.0)"),
        (None, None),
    ],
)
def test_a_version_newer_than_all_tested_ones_is_named(
    agent: AgentSpec, version: str | None, expected: str | None
) -> None:
    package = msgspec.structs.replace(
        agent.package, minimum="0.58.0", tested="0.61.0", newest="0.62.0"
    )
    assert msgspec.structs.replace(agent, package=package).version_warning(version) == expected


def test_any_version_of_a_command_of_ones_own_may_be_used() -> None:
    assert registry.find("any --acp").version_warning("9.9.9") is None


def test_a_program_given_by_name_is_looked_for_on_path(agent: AgentSpec, bin_folder: Path) -> None:
    script(bin_folder / "my-gemini", "#!/bin/sh\necho 0.61.0\n")
    found = locate(agent, "my-gemini")
    assert (found.path, found.source) == (str(bin_folder / "my-gemini"), "option")


def test_a_home_given_as_a_tilde_is_found(agent: AgentSpec, bin_folder: Path) -> None:
    script(Path.home() / "gemini", "#!/bin/sh\necho 0.61.0\n")
    assert locate(agent, "~/gemini").path == str(Path.home() / "gemini")


@pytest.mark.parametrize(
    ("mode", "output"), [(0o644, "is not executable"), (None, "was not found")]
)
def test_a_given_program_that_cannot_be_run_is_named_in_the_error(
    agent: AgentSpec, bin_folder: Path, tmp_path: Path, mode: int | None, output: str
) -> None:
    path = tmp_path / "gemini"
    if mode is not None:
        script(path, "#!/bin/sh\n", mode)
    with pytest.raises(errors.NotInstalled, match=output) as raised:
        locate(agent, str(path))
    assert str(path) in raised.value.message


def test_a_folder_is_not_a_program(agent: AgentSpec, bin_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(errors.NotInstalled):
        locate(agent, str(tmp_path))


def test_a_program_on_path_comes_before_the_managed_one(agent: AgentSpec, bin_folder: Path) -> None:
    script(managed_program(agent), "#!/bin/sh\necho 0.61.0\n")
    assert locate(agent, None).source == "managed"
    script(bin_folder / "gemini", "#!/bin/sh\necho 0.60.0\n")
    assert locate(agent, None).source == "PATH"


def acp_program(path: Path, *info: str) -> Path:
    """A program that speaks only ACP, and knows no ``--version``."""
    command = shlex.join([sys.executable, str(PLAIN), *info])
    return script(path, f'#!/bin/sh\necho "$#" >> {path}.asked\nexec {command}\n')


def test_a_program_that_speaks_only_acp_is_asked_by_acp_and_once(bin_folder: Path) -> None:
    agent = registry.find("claude-acp")
    program = acp_program(bin_folder / "claude-agent-acp", agent.package.name, "9.0.1")
    for _ in range(2):
        assert locate(agent, None).version == "9.0.1"
    assert Path(f"{program}.asked").read_text() == "0\n"
    acp_program(program, agent.package.name, "0.1.0 ")
    with pytest.raises(errors.VersionTooOld, match=r"0\.1\.0 at .* is too old"):
        locate(agent, None)


def test_another_program_with_the_same_name_is_named_and_used_by_its_path(
    bin_folder: Path,
) -> None:
    agent = registry.find("claude-acp")
    program = acp_program(bin_folder / "claude-agent-acp", "@other/claude-agent-acp", "0.23.1")
    with pytest.raises(errors.NotInstalled, match=r"is @other/claude-agent-acp 0\.23\.1") as raised:
        locate(agent, None)
    assert f"--agent {program}" in str(raised.value.hint)
    assert config.find_agent(str(program)).name == str(program)
    acp_program(program, agent.package.name, "9.0.1")
    assert config.find_agent(str(program)).name == "claude-acp"
    # The one that corral installed is used, if there is one.
    acp_program(program, "@other/claude-agent-acp", "0.23.1")
    managed = acp_program(managed_program(agent), agent.package.name, "9.0.2")
    found = locate(agent, None)
    assert (found.path, found.version, found.source) == (str(managed), "9.0.2", "managed")


@pytest.mark.parametrize("body", ["echo not a protocol", "cat >&2; exec sleep 1000", "exit 3"])
def test_a_program_that_does_not_answer_is_an_error(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr("corral._system.programs.VERSION_SECONDS", 0.5)
    program = script(bin_folder / "codex-acp", f"#!/bin/sh\n{body}\n")
    with pytest.raises(errors.BrokenInstall, match="did not answer initialize"):
        locate(registry.find("codex-acp"), None)
    assert config.find_agent(str(program)).name == "codex-acp"


def pypi_program(lib: Path, version: str) -> Path:
    """The program of Antigravity, as pip installs it, with its package."""
    agent = registry.find("antigravity")
    program = script(lib / agent.package.binaries[machine()], "#!/bin/sh\n")
    (lib / f"google_antigravity-{version}.dist-info").mkdir()
    return program


def test_a_program_of_a_pypi_package_is_started_by_its_bridge(tmp_path: Path) -> None:
    agent = registry.find("antigravity")
    found = locate(agent, str(pypi_program(tmp_path / "lib", "0.1.22")))
    python, *flags, bridge, lib = found.argv
    assert (python, flags, lib) == (sys.executable, ["-I", "-S"], str(tmp_path / "lib"))
    assert Path(bridge).parts[-2:] == ("antigravity", "bridge.py")
    assert (found.version, found.packaged) == ("0.1.22", True)
    with pytest.raises(errors.VersionTooOld, match=r"0\.1\.9 .* is too old"):
        locate(agent, str(pypi_program(tmp_path / "old", "0.1.9")))


def test_each_python_has_its_own_packages() -> None:
    tag = sys.implementation.cache_tag
    assert managed_program(registry.find("antigravity")).is_relative_to(
        paths.managed() / "antigravity-acp" / f"0.1.22-{tag}" / "lib"
    )
