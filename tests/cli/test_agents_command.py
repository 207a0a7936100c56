"""``corral agents list`` and ``corral agents doctor``: what is here, and what is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installed_agents import MANAGED, installed
from support.node22 import needs_node22, node22_folder

CORRAL = Path(sys.executable).parent / "corral"
KEYS = ("_API_KEY", "_TOKEN", "_BASE_URL", "_proxy", "_PROXY")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """No key, no sign-in, and no program of an agent on PATH."""
    home = tmp_path / "home"
    home.mkdir()
    left = {name: value for name, value in os.environ.items() if not name.endswith(KEYS)}
    return {**left, "HOME": str(home), "PATH": str(tmp_path), "CORRAL_CONFIG": ""}


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield listener.getsockname()[1]


def corral(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(CORRAL), "agents", *words]
    return subprocess.run(
        command, env=env, cwd=env["HOME"], capture_output=True, text=True, timeout=300, check=False
    )


def listed(env: dict[str, str]) -> dict[str, dict[str, object]]:
    done = corral(env, "list", "--json")
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)}


def columns(env: dict[str, str], agent: str) -> list[str]:
    done = corral(env, "list")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == [
        "agent",
        "installed",
        "tested",
        "proof",
        "key",
        "persistent",
        "sandbox",
        "aliases",
    ]
    return next(line for line in lines if line[0] == agent)


@pytest.mark.deep
def test_the_list_says_what_each_agent_is(env: dict[str, str]) -> None:
    env["CORRAL_HOME"] = env["HOME"]
    agents = listed(env)
    gemini = agents["gemini-acp"]
    assert (gemini["installed"], gemini["code"]) == (False, "not_installed")
    assert (gemini["persistent"], gemini["sandbox"]) == (True, "agent")
    assert agents["gemini-cli"]["persistent"] is False
    assert agents["codex-cli"]["sandbox"] == "always"
    assert agents["corral"]["installed"] is True
    row = columns(env, "gemini-acp")
    assert row == ["gemini-acp", "–", str(gemini["tested_version"]), "–", "none", "yes", "agent",
                   "gemini"]  # fmt: skip
    assert columns(env, "manual")[4] == "–"


@pytest.mark.deep
def test_the_list_marks_a_version_that_was_never_tested(env: dict[str, str]) -> None:
    program = Path(env["PATH"]) / "codex"
    program.write_text("#!/bin/sh\necho codex-cli 99.0.0\n")
    program.chmod(0o755)
    state = listed(env)["codex-cli"]
    assert (state["installed"], state["version"]) == (True, "99.0.0")
    assert "Codex 99.0.0 was never tested with corral" in str(state["version_warning"])
    assert state["proof"] == "untested"
    assert columns(env, "codex-cli")[1] == "99.0.0"


def test_the_list_names_the_key_or_the_login_that_was_found(env: dict[str, str]) -> None:
    env["GEMINI_API_KEY"] = "no-real-key"
    login = Path(env["HOME"]) / ".codex" / "auth.json"
    login.parent.mkdir()
    login.write_text("{}")
    agents = listed(env)
    assert agents["gemini-cli"]["credentials"] == ["GEMINI_API_KEY"]
    assert agents["corral"]["credentials"] == ["GEMINI_API_KEY"]
    assert agents["codex-cli"]["credentials"] == ["~/.codex/auth.json"]
    assert agents["claude-cli"]["credentials"] == []


def test_the_doctor_says_which_key_is_missing(env: dict[str, str]) -> None:
    done = corral(env, "doctor", "corral")
    assert done.returncode == 6, done.stdout + done.stderr
    assert "there is no API key for Gemini" in done.stdout
    assert "Set GEMINI_API_KEY or GOOGLE_API_KEY." in done.stdout
    assert "corral works here, but cannot be used yet" in done.stdout


def test_the_doctor_does_not_condemn_an_agent_that_it_cannot_test(
    env: dict[str, str], tmp_path: Path
) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[agents.mine]\ncommand = "cat"\ntransport = "stream"\nstrict = false\n')
    own_env = {**env, "CORRAL_CONFIG": str(own), "PATH": os.environ["PATH"]}
    done = corral(own_env, "doctor", "mine")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "corral agents check mine runs it with its own model." in done.stdout
    assert done.stdout.rstrip().endswith("mine was found, but not tested")


def test_the_doctor_takes_the_name_of_a_model(env: dict[str, str]) -> None:
    report = json.loads(corral(env, "doctor", "anthropic:claude-sonnet-5", "--json").stdout)
    assert report["accepts"] == ["ANTHROPIC_API_KEY"]
    assert (report["usable"], report["hint"]) == (False, "Set ANTHROPIC_API_KEY.")


def test_the_doctor_is_content_with_a_key_and_a_network(
    env: dict[str, str], listening: int
) -> None:
    env |= {
        "GEMINI_API_KEY": "no-real-key",
        "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{listening}",
    }
    done = corral(env, "doctor", "corral")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("corral works here")
    assert "GEMINI_API_KEY" in done.stdout


@pytest.mark.deep
@pytest.mark.gemini_cli
@pytest.mark.parametrize("name", ["gemini-acp", "gemini-cli"])
def test_the_doctor_is_content_with_the_real_gemini(
    env: dict[str, str], listening: int, name: str
) -> None:
    installed(name)
    env |= {
        "CORRAL_HOME": MANAGED,
        "PATH": os.environ["PATH"],
        "GEMINI_API_KEY": "no-real-key",
        "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{listening}",
    }
    done = corral(env, "doctor", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith(f"{name} works here")


def test_what_is_shown_about_an_agent_leaves_out_what_is_not_known(env: dict[str, str]) -> None:
    done = corral(env, "show", "corral")
    assert re.search(r"^installed +yes$", done.stdout, re.MULTILINE), done.stdout
    assert not re.search(r" (None|True|False)$", done.stdout, re.MULTILINE)


def test_a_probe_without_a_name_is_of_the_default_agent(env: dict[str, str]) -> None:
    done = corral(env | {"CORRAL_AGENT": "goose"}, "probe")
    assert done.returncode == 12
    assert "corral agents install goose" in done.stderr


@pytest.mark.gemini_cli
@pytest.mark.deep
def test_an_installation_names_the_doctor(env: dict[str, str]) -> None:
    installed("gemini-cli")
    env |= {"CORRAL_HOME": MANAGED, "PATH": os.environ["PATH"]}
    done = corral(env, "install", "gemini")
    assert done.returncode == 0, done.stderr
    assert "corral agents doctor gemini says what is missing to use it.\n" in done.stderr
    assert corral(env, "install", "gemini", "--quiet").stderr == ""
    several = corral(env, "install", "gemini", "gemini-acp", "--quiet")
    assert (len(several.stdout.splitlines()), several.stderr) == (2, "")
    refused = corral(env, "install", "gemini", "corral")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "there is nothing to install" in refused.stderr


def test_the_doctor_reports_a_service_that_cannot_be_reached(env: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        env |= {
            "GEMINI_API_KEY": "no-real-key",
            "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}",
        }
        done = corral(env, "doctor", "corral")
    assert done.returncode == 1
    assert f"127.0.0.1:{port}: Connection refused" in done.stdout
    assert "cannot be used yet" in done.stdout


@pytest.mark.deep
@needs_node22
@pytest.mark.gemini_cli
@pytest.mark.timeout(600)
def test_install_fills_the_compile_cache_and_doctor_reports_it(
    env: dict[str, str], tmp_path: Path
) -> None:
    """Of a copy of the installed agent: hard links take no time."""
    program = Path(installed("gemini-cli"))
    version = program.parents[2]
    copy = tmp_path / "corral" / "agents" / "gemini" / version.name
    shutil.copytree(version, copy, symlinks=True, copy_function=os.link)
    shutil.rmtree(copy / "compile-cache", ignore_errors=True)
    path = f"{node22_folder()}{os.pathsep}{os.environ['PATH']}"
    home = str(tmp_path / "corral")
    env |= {"CORRAL_HOME": home, "PATH": path, "GEMINI_API_KEY": "none"}
    done = corral(env, "install", "gemini")
    assert done.returncode == 0, done.stderr
    assert "compile cache" in done.stderr
    assert "not used" not in done.stderr
    assert len([*copy.glob("compile-cache/*/entries/*/*")]) > 10
    report = corral(env, "doctor", "gemini-cli", "--json").stdout
    assert json.loads(report)["compile_cache"].startswith("on (Node 22.")
    assert json.loads(report)["works"]
    assert "compile cache" not in corral(env, "install", "gemini").stderr
