"""Dependencies beside a clean tree without a sandbox: nothing in them leads back to what the agent
left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.verified_runs import FIX, PLAIN, RIGHT, WRONG, git, make_project, verified_run

from corral._verification.check_environment import TreePlaces
from corral._verification.clean_tree import make_linked

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
CHECK = ".venv/bin/python -c 'import calc; assert calc.add(1, 2) == 3'"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package in ``src`` that is installed in place."""
    folder = tmp_path / "project"
    make_project(folder)
    (folder / "src").mkdir()
    (folder / "src" / "calc.py").write_text(WRONG)
    (folder / "calc.py").unlink()
    environment = folder / ".venv"
    (environment / SITE).mkdir(parents=True)
    (environment / "bin").mkdir()
    python = Path(sys.executable).resolve()
    (environment / "bin" / "python").symlink_to(python)
    (environment / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    (environment / SITE / "calc.pth").write_text(f"{folder}/src\n")
    tool = environment / "bin" / "tool"
    tool.write_text(f"#!{environment}/bin/python\nimport calc\nassert calc.add(1, 2) == 3\n")
    tool.chmod(0o755)
    git(folder, "add", "--all")
    git(folder, "commit", "-qm", "second")
    return folder


@pytest.mark.parametrize("check", [CHECK, ".venv/bin/tool"])
@pytest.mark.deep_but_first
async def test_a_package_that_is_installed_in_place_is_that_of_the_tree(
    project: Path, check: str
) -> None:
    fix = FIX.replace("calc.py", "src/calc.py")
    more = "echo > tests/test_new.py"
    result = await verified_run(project, f"{fix}\n{more}", verify=check)
    assert result.verdict == "verified", result.gaps


@pytest.mark.parametrize(
    "lie",
    [
        "echo 'import os; os._exit(0)' > src/sitecustomize.py",
        f"mkdir b; cat > b/calc.py <<'END'\n{RIGHT}END\nmkdir src/__pycache__; python3 -c '"
        "import py_compile as p, sys;"
        'p.compile("b/calc.py", f"src/__pycache__/calc.{sys.implementation.cache_tag}.pyc",'
        "invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)'; rm -r b",
    ],
)
@pytest.mark.deep_but_first
async def test_what_the_tree_has_not_is_not_found_through_it(project: Path, lie: str) -> None:
    result = await verified_run(project, f"echo >> README.md\n{lie}", verify=CHECK)
    assert "the check did not pass: exited with 1" in result.gaps[0]


async def test_what_a_check_changes_there_is_put_back(project: Path) -> None:
    name = f".venv/{SITE}/calc.pth"
    checks = [f"test -e {name} && echo /nowhere > {name}", "rm -r .venv; mkdir .venv"]
    fix = FIX.replace("calc.py", "src/calc.py")
    result = await verified_run(project, fix, verify=[*checks, CHECK])
    assert result.verdict == "verified", result.gaps


@pytest.mark.deep
async def test_a_package_of_the_workspace_is_that_of_the_tree(project: Path) -> None:
    """As in the workspaces of npm: what is below it and git ignores is not there."""
    (project / "packages" / "x").mkdir(parents=True)
    (project / "packages" / "x" / "x.py").write_text("")
    git(project, "add", "--all")
    git(project, "commit", "-qm", "third")
    (project / "node_modules" / "@a").mkdir(parents=True)
    (project / "node_modules" / "@a" / "x").symlink_to("../../packages/x")
    script = f"mkdir packages/x/build; touch packages/x/build/ok; sed -i s/x/x/ README.md\n{FIX}"
    check = f"test -e node_modules/@a/x/x.py && ! test -e node_modules/@a/x/build/ok && {PLAIN}"
    result = await verified_run(project, script, verify=check)
    assert result.verdict == "verified", result.gaps


def test_a_folder_that_leads_nowhere_is_one_link(tmp_path: Path) -> None:
    source, place = tmp_path / "space" / "node_modules", tmp_path / "place"
    (source / ".bin").mkdir(parents=True)
    (source / "x").mkdir()
    (source / "x" / "cli.js").touch()
    (source / ".bin" / "x").symlink_to("../x/cli.js")
    places = TreePlaces(
        workspace=str(tmp_path / "space"), inside="", tree="/tree", outside_tree="/tree"
    )
    make_linked(str(source), str(place), places)
    assert os.readlink(place) == str(source)
