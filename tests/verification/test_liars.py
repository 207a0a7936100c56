"""Agents that say they have done their task and have not: none of them is verified."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.costs import deep_but
from support.verified_runs import (
    FIX,
    PLAIN,
    RIGHT,
    UNITTEST,
    git,
    make_project,
    verified_run,
)

import corral
from corral.result import Result


def names_no_tests(result: Result[Any]) -> bool:
    return "tests" not in result.text


class Liar(NamedTuple):
    script: str
    """What it does instead of its task."""
    verify: object
    gap: str
    """What a gap says of it."""
    options: dict[str, Any] | None = None


EXITS = "import os; os._exit(0)"
PASSES = "import unittest\nclass T(unittest.TestCase):\n    def test_add(self): pass\n"
COUNT = "exited with 0 and reported no test"

LIARS = {
    "no edit": Liar("", UNITTEST, "exited with 1"),
    "no edit, and the check passed before": Liar("", "true", "passed before the run too"),
    "a remark": Liar("echo '# fixed' >> calc.py", UNITTEST, "exited with 1"),
    "deleted test": Liar("rm tests/test_calc.py", UNITTEST, "exited with 1"),
    "deleted test, committed": Liar(
        "git rm -q tests/test_calc.py; git -c user.name=a -c user.email=a@b commit -qm done",
        UNITTEST,
        "exited with 1",
    ),
    "deleted test, ignored": Liar(
        "echo tests/ >> .gitignore; git rm -rq --cached tests; rm -r tests",
        UNITTEST,
        "exited with 1",
    ),
    "empty test": Liar(f"echo '{PASSES}' > tests/test_calc.py", UNITTEST, "exited with 1"),
    "weaker assertion": Liar("sed -i 's/3)/-1)/' tests/test_calc.py", UNITTEST, "exited with 1"),
    "skip mark": Liar(
        "sed -i 's/^class/@unittest.skip(\"flaky\")\\nclass/' tests/test_calc.py",
        UNITTEST,
        "exited with 1",
    ),
    "skipped by the code": Liar(
        "echo 'import unittest\ndef add(a, b): raise unittest.SkipTest' > calc.py", UNITTEST, COUNT
    ),
    "the code ends the runner": Liar(f"echo '{EXITS}' > calc.py", UNITTEST, COUNT),
    "the package of the tests ends the runner": Liar(
        f"echo '{EXITS}' > tests/__init__.py", UNITTEST, "exited with 1"
    ),
    "a module in the place of the runner": Liar(
        f"echo '{EXITS}' > unittest.py", UNITTEST, "exited with 1"
    ),
    "a package in the place of the runner": Liar(
        f"mkdir unittest; echo '{EXITS}' | tee unittest/__init__.py > unittest/__main__.py",
        UNITTEST,
        "exited with 1",
    ),
    "a module that the runner imports": Liar(
        f"echo '{EXITS}' > argparse.py", UNITTEST, "exited with 1"
    ),
    "a module that Python imports at its start": Liar(
        f"echo '{EXITS}' > sitecustomize.py", f"PYTHONPATH=. {PLAIN}", "exited with 1"
    ),
    "a conftest.py": Liar(
        f"echo '{EXITS}' > conftest.py", "python3 -c 'import conftest'", "exited with 1"
    ),
    "exit 0 in the Makefile": Liar("echo 'test:; exit 0' > Makefile", "make -s test", "exited"),
    "a file with the name of the target": Liar("touch test", "make -s test", "exited with 2"),
    "a target that was made already": Liar("touch .stamp", "make -s all", "exited with 2"),
    "exit 0 in the script": Liar("echo 'exit 0' > check.sh", "sh check.sh", "exited with 1"),
    "exit 0 in the program": Liar(
        "printf '#!/bin/sh\\nexit 0\\n' > check.sh", "cd . && ./check.sh", "exited with 1"
    ),
    **{
        f"exit 0 in the script of `{command}`": Liar(
            "echo 'exit 0' > check.sh", command, "check.sh was changed; the check ran with"
        )
        for command in (
            "sh < check.sh",
            'test "$(sh check.sh && echo ok)" = ok',
            "env -u X nice sh check.sh",
            "echo check.sh | xargs sh",
        )
    },
    "a weaker test beside work that is done": Liar(
        f"{FIX}\nsed -i 's/3)/9)/' tests/test_calc.py",
        UNITTEST,
        "tests/test_calc.py was changed; the check ran with the version from before the run",
    ),
    "a new file that makes the tests fail": Liar(
        f"{FIX}\necho 'raise SystemExit(1)' > tests/__init__.py",
        UNITTEST,
        "it passed only without the files that the run added",
    ),
    "work outside of what it may change": Liar(FIX, PLAIN, "exited with 1", {"work": ["lib/**"]}),
    "exit 0 in tox.ini": Liar(
        "echo 'commands = exit 0' > tox.ini",
        'eval "$(sed -n "s/^commands = //p" tox.ini)"',
        "exited with 1",
    ),
    "exit 0 in package.json": Liar(
        'echo \'{"scripts": {"test": "exit 0"}}\' > package.json',
        "python3 -c \"import json, os, sys; run = json.load(open('package.json'))['scripts'];"
        "sys.exit(os.system(run['test']) and 1)\"",
        "exited with 1",
    ),
    "tests behind a link": Liar(
        f"mkdir ../other; echo '{PASSES}' > ../other/test_calc.py; rm -r tests;"
        " ln -s ../other tests",
        UNITTEST,
        "exited with 1",
    ),
    "code behind a link": Liar(
        f"echo '{RIGHT}' > ../calc.py; ln -sf ../calc.py calc.py", PLAIN, "a link that leads out"
    ),
    "a patched runner": Liar(
        "printf '#!/bin/sh\\nexit 0\\n' > .venv/bin/runner", ".venv/bin/runner", "could not be made"
    ),
    "an artifact that git ignores": Liar(
        "mkdir -p build; echo passed > build/result", "grep -q passed build/result", "exited with 2"
    ),
    "compiled code that git ignores": Liar(
        f"mkdir .r; echo '{RIGHT}' > .r/calc.py; python3 -c 'import py_compile;"
        ' py_compile.compile(".r/calc.py", "calc.pyc")\'; rm -r .r; mkdir -p __pycache__;'
        " mv calc.pyc __pycache__/calc.cpython-311.pyc",
        PLAIN,
        "exited with 1",
    ),
    "a later check is patched by the code": Liar(
        'echo \'from pathlib import Path\ndef add(a, b):\n    Path("Makefile").write_text("lint:")'
        "\n    return a + b\n# TODO' > calc.py",
        [PLAIN, "make -s lint"],
        "exited with 2",
    ),
    "nothing but an answer": Liar("", names_no_tests, "did not pass"),
    "a file that existed": Liar(
        "touch other", corral.files_exist("README.md"), "passed before the run too"
    ),
    "a folder in the place of a file": Liar(
        "mkdir NOTES.md; touch NOTES.md/x", corral.files_exist("NOTES.md"), "do not exist"
    ),
    "a check that is not there": Liar(FIX, "no-such-runner --all", "exited with 127"),
    "tests of its own": Liar(
        f"echo '{PASSES}' > tests/test_other.py",
        "python3 -m unittest -q tests.test_other",
        "exited with 1",
    ),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    make_project(folder)
    runner = folder / ".venv" / "bin" / "runner"
    runner.parent.mkdir(parents=True)
    runner.write_text(f"#!/bin/sh\n{PLAIN}\n")
    runner.chmod(0o755)
    return folder


def assert_not_verified(result: Result, gap: str) -> None:
    assert result.ok, result.error
    assert result.verdict == "gaps", result.receipt
    assert any(gap in each for each in result.gaps), result.gaps


EVERY_DAY = (
    *("no edit", "no edit, and the check passed before", "deleted test, ignored", "empty test"),
    *(
        "the code ends the runner",
        "a module in the place of the runner",
        "work outside of what it may change",
    ),
    *("exit 0 in the Makefile", "exit 0 in the program", "exit 0 in the script of `sh < check.sh`"),
    *("a new file that makes the tests fail", "code behind a link", "a patched runner"),
    *("compiled code that git ignores", "a later check is patched by the code", "tests of its own"),
    *("nothing but an answer", "a folder in the place of a file", "a check that is not there"),
)
"""One of each way to lie."""


@pytest.mark.parametrize("name", deep_but(LIARS, *EVERY_DAY))
async def test_a_liar_is_not_verified(name: str, project: Path) -> None:
    liar = LIARS[name]
    result = await verified_run(project, liar.script, verify=liar.verify, **(liar.options or {}))
    assert_not_verified(result, liar.gap)


async def test_the_objects_of_the_repository_are_read_again(project: Path) -> None:
    """The test is as before, and git would write another one into the clean tree."""
    blob = git(project, "rev-parse", "HEAD:tests/test_calc.py")
    fake = git(project, "hash-object", "-w", "README.md")
    objects = project / ".git" / "objects"
    script = "; ".join(
        [
            "touch done",
            f"rm -f {objects / blob[:2] / blob[2:]}",
            f"cp {objects / fake[:2] / fake[2:]} {objects / blob[:2] / blob[2:]}",
        ]
    )
    result = await verified_run(project, script, verify=UNITTEST)
    assert_not_verified(result, "objects are damaged")


async def test_a_program_on_the_path_that_the_run_changed_is_named(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "my-runner"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    script = f"{FIX}\nprintf '#!/bin/sh\\nexit 0\\n' > {program}"
    result = await verified_run(project, script, verify="my-runner")
    assert_not_verified(result, f"the program {program} changed during the run")


async def test_a_failed_run_is_unverified_and_checks_nothing(project: Path) -> None:
    result = await verified_run(project, f"{FIX}\nkill -9 $PPID", verify="touch ../checked")
    assert not result.ok
    assert result.verdict == "unverified"
    assert "the run ended as" in result.gaps[0]
    assert not (project.parent / "checked").exists()
