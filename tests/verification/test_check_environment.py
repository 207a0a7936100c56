"""What the commands of checks find in their variables: nothing that the agent wrote."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.sandbox import needs_sandbox
from support.verified_runs import FIX, PLAIN, UNITTEST, git, make_project, verified_run

import corral
from corral._verification.check_environment import TreePlaces

ROOT = "/work/space"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    make_project(folder)
    return folder


@pytest.fixture
def places(tmp_path: Path) -> TreePlaces:
    """Of a workspace whose clean tree has ``src`` and ``tools``, and can read ``.venv``."""
    workspace, tree = tmp_path / "space", tmp_path / "own" / "tree"
    for name in ("src", "tools", "build", ".venv/bin"):
        (workspace / name).mkdir(parents=True)
    for name in ("src", "tools", ".venv"):
        (tree / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(workspace)
    (workspace / "out").symlink_to(tmp_path)
    return TreePlaces(
        workspace=str(workspace),
        inside="src",
        tree=ROOT,
        outside_tree=str(tree),
        provided=(".venv",),
        new_programs=frozenset(("tools",)),
    )


def test_no_variable_leads_into_the_workspace(places: TreePlaces, tmp_path: Path) -> None:
    """Every folder, in every spelling, in any order, in every variable."""
    moved = {
        "src": f"{ROOT}/src",
        ".venv/bin": f"{ROOT}/.venv/bin",
        "build": None,  # the tree has none
        "not-there": None,
        "out": None,
        "tools": f"{ROOT}/tools",
    }
    spellings = (str(tmp_path / "space"), str(tmp_path / "link"), f"{tmp_path}/x/../space/./")
    entries = [(os.path.join(top, name), new) for top in spellings for name, new in moved.items()]
    entries += [("/usr/bin", "/usr/bin"), ("", ""), (str(tmp_path), str(tmp_path))]
    for chosen in itertools.permutations(entries, 2):
        value = os.pathsep.join(path for path, _ in chosen)
        for name in ("PYTHONPATH", "NODE_PATH", "VIRTUAL_ENV", "ANY"):
            kept = [new for _, new in chosen if new is not None]
            expected = {name: os.pathsep.join(kept)} if kept else {}
            assert places.moved({name: value}) == expected, value


def test_a_folder_of_path_with_new_programs_is_left_out_and_a_gap(
    places: TreePlaces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = (f"{tmp_path}/link/tools", "../tools", "/usr/bin", f"{tmp_path}/space/src", ".")
    path = os.pathsep.join(folders)
    assert places.moved({"PATH": path}) == {"PATH": f"/usr/bin:{ROOT}/src:."}
    monkeypatch.setenv("PATH", path)
    gaps = places.gaps()
    assert [folder in gap for folder, gap in zip(folders, gaps, strict=False)] == [True, True]


def test_a_command_that_names_the_workspace_gets_the_tree(
    places: TreePlaces, tmp_path: Path
) -> None:
    top = tmp_path / "space"
    text = f"cd {top} && python '{top}/check.py' -I{top}/src --x={top}; ls {top}-2 {top}.d a{top}"
    expected = (
        f"cd {ROOT} && python '{ROOT}/check.py' -I{top}/src --x={ROOT}; ls {top}-2 {top}.d a{top}"
    )
    assert places.in_text(text) == expected


class Case(NamedTuple):
    variable: str
    value: str
    """Of the variable, in the project."""
    files: dict[str, str]
    """What is there before the run."""
    script: str
    """What the agent writes in the place of its task."""
    verify: str
    is_ignored: bool = True


LIAR = "printf '#!/bin/sh\\nexit 0\\n'"
SITE = f".venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
EXITS = "import os; os._exit(0)"
CASES = {
    "an environment that changed": Case(
        "VIRTUAL_ENV", ".venv", {".venv/x": ""}, f"{FIX}\necho > .venv/x.pth", PLAIN
    ),
    "an environment that was not there": Case(
        "PATH",
        ".venv/bin",
        {},
        f"mkdir -p .venv/bin; {LIAR} > .venv/bin/python3; chmod +x .venv/bin/python3",
        PLAIN,
    ),
    "a program beside a script": Case(
        "PATH", "tools", {"tools/x": ""}, f"{LIAR} > tools/python3; chmod +x tools/python3", PLAIN
    ),
    "a module that Python loads first": Case(
        "PYTHONPATH", "build", {}, f"mkdir build; echo '{EXITS}' > build/sitecustomize.py", PLAIN
    ),
    "a module in an environment that git knows": Case(
        "PYTHONPATH",
        SITE,
        {".venv/pyvenv.cfg": "home = /usr/bin\n", f"{SITE}/helper.py": "def run(): return 1\n"},
        f"echo 'def run(): return 0' > {SITE}/helper.py",
        "python3 -c 'import helper, sys; sys.exit(helper.run())'",
        is_ignored=False,
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_what_the_agent_wrote_where_a_variable_leads_verifies_nothing(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    for file, text in case.files.items():
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text(text)
        (project / file).chmod(0o755)
    if not case.is_ignored:
        (project / ".gitignore").write_text("")
        git(project, "add", "--all")
        git(project, "commit", "-q", "-m", "second")
    # The agent's own program must start as before.
    rest = f"{os.environ['PATH']}{os.pathsep}" if case.variable == "PATH" else ""
    value = f"{project / case.value}{os.pathsep}{rest}" if rest else str(project / case.value)
    options: dict[str, Any] = {"env": {case.variable: value}}
    monkeypatch.setenv(case.variable, value)
    script = f"echo >> README.md\n{case.script}"  # something that counts as a change
    result = await verified_run(project, script, verify=case.verify, **options)
    assert result.ok, result.error
    assert result.verdict == "gaps", result.receipt


@needs_sandbox
async def test_in_the_sandbox_too_the_runner_must_report_a_test(project: Path) -> None:
    """There the clean tree has the name of the workspace."""
    script = "echo 'import os; os._exit(0)' > calc.py"
    result = await verified_run(project, script, verify=UNITTEST, sandbox="require")
    assert any("reported no test" in gap for gap in result.gaps), result.receipt


@pytest.mark.parametrize("is_changed", [True, False])
async def test_a_writable_folder_that_a_check_may_read_is_a_gap_if_it_changed(
    project: Path, tmp_path: Path, is_changed: bool
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "state").write_text("bad")
    policy = corral.Policy(read="allow", write="allow", writable=(str(outside),))
    script = f"{FIX}\n" + (f"echo good > {outside}/state" if is_changed else "")
    result = await verified_run(project, script, verify=PLAIN, policy=policy)
    assert result.verdict == ("gaps" if is_changed else "verified"), result.gaps
    assert not is_changed or str(outside) in result.gaps[0]


async def test_a_command_with_the_path_of_the_workspace_runs_in_the_tree(project: Path) -> None:
    """There is nothing that git ignores."""
    verify = f"cd {project} && ! test -e {project}/build && {PLAIN}"
    result = await verified_run(project, f"{FIX}\nmkdir build; touch build/x", verify=verify)
    assert result.verdict == "verified", result.receipt
