"""Agents that have done their task: each is verified, with evidence that a person can read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from support.costs import deep_but
from support.sandbox import needs_sandbox
from support.scripted_agent import scripted_options
from support.verified_runs import (
    FIX,
    PLAIN,
    RIGHT,
    TEST,
    UNITTEST,
    git,
    make_project,
    orders,
    verified_run,
)

import corral
from corral import Policy
from corral.receipt import receipt_hash
from corral.result import Result


def names_tests(result: Result[Any]) -> bool:
    return "tests" in result.text


class Honest(NamedTuple):
    script: str
    verify: object
    options: dict[str, Any] | None = None


NEW_TEST = f"cat > tests/test_new.py <<'END'\n{TEST}END"
DEPENDENCY = ".venv/bin/runner"
HONEST = {
    "unittest": Honest(FIX, UNITTEST),
    "a plain command": Honest(FIX, PLAIN),
    "a list of words": Honest(FIX, [["python3", "-c", "import calc; assert calc.add(1, 2) == 3"]]),
    "several commands": Honest(FIX, [PLAIN, "make -s lint", "sh check.sh"]),
    "make": Honest(FIX, "make -s test"),
    "a target with a stamp": Honest(FIX, "make -s all"),
    "a script": Honest(FIX, "./check.sh"),
    "npm's script": Honest(FIX, 'sh -c "$(sed -n \'s/.*test": "\\(.*\\)"}}/\\1/p\' package.json)"'),
    "a change of folder": Honest(FIX, "cd tests/.. && sh check.sh"),
    "a commit": Honest(f"{FIX}\ngit -c user.name=a -c user.email=a@b commit -qam fix", UNITTEST),
    "more tests beside": Honest(f"{FIX}\n{NEW_TEST}", UNITTEST),
    "its own tests, if they are allowed": Honest(
        f"{FIX}\n{NEW_TEST}", "python3 -m unittest -q tests.test_new", {"verify_from": "after"}
    ),
    "a file that does not judge after all": Honest(
        "echo 'commands = true' > tox.ini", "grep -q true tox.ini", {"judge_files": ["!tox.ini"]}
    ),
    "a new package": Honest(
        f"mkdir lib; {FIX.replace('calc.py', 'lib/sums.py')}\n echo 'from lib.sums import *'"
        " > calc.py",
        PLAIN,
    ),
    "a program that a command names, if it is the work": Honest(
        "printf '#!/bin/sh\\n' > check.sh", "./check.sh", {"work": ["check.sh"]}
    ),
    "a test that is put back": Honest(
        f"{FIX}\nrm tests/test_calc.py", UNITTEST, {"put_back": True}
    ),
    "a deleted file": Honest("rm README.md", "! test -e README.md", {"work": ["README.md"]}),
    "a moved file": Honest("mv README.md NOTES.md", "test -f NOTES.md"),
    "names of all kinds": Honest(
        f"{FIX}\necho > 'a b'; echo > 'ä'; echo > \"$(printf 'x\\377')\"; echo > '-n'", PLAIN
    ),
    "an executable": Honest("printf '#!/bin/sh\\n' > go; chmod +x go", "./go"),
    "a link inside": Honest(f"{FIX}\nln -s calc.py other.py", "python3 -c 'import other'"),
    "a dependency": Honest(FIX, DEPENDENCY),
    "a dependency that it has compiled": Honest(
        f"{FIX}\nmkdir -p .venv/__pycache__; touch .venv/__pycache__/x.pyc", DEPENDENCY
    ),
    "an ignored file that is needed": Honest(
        FIX, f"grep -q yes settings.local && {PLAIN}", {"verify_with": ["*.local"]}
    ),
    "an ignored folder that it made": Honest(f"{FIX}\nmkdir build; echo > build/x", PLAIN),
    "a check that writes": Honest(FIX, f"echo > output; mkdir build; {PLAIN}"),
    "a check that formats": Honest(FIX, ["echo >> calc.py", PLAIN], {"work": ["*.py"]}),
    "a check that leaves processes": Honest(FIX, f"sleep 60 & {PLAIN}"),
    "a check with much output": Honest(FIX, f"yes | head -c 5000000; {PLAIN}"),
    "a variable": Honest(FIX, f'test "$MODE" = strict && {PLAIN}', {"env": {"MODE": "strict"}}),
    "a new file": Honest("echo > NOTES.md", corral.files_exist("NOTES.md")),
    "a changed file": Honest("echo >> README.md", corral.files_exist("README.md", "calc.py")),
    "an ignored file": Honest("mkdir build; echo > build/x", corral.files_exist("build/x")),
    "a function": Honest("", names_tests),
    "a command and a file": Honest(FIX, [PLAIN, corral.files_exist("calc.py")]),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    make_project(folder)
    runner = folder / ".venv" / "bin" / "runner"
    runner.parent.mkdir(parents=True)
    runner.write_text(f"#!/bin/sh\n{PLAIN}\n")
    runner.chmod(0o755)
    (folder / "settings.local").write_text("yes\n")
    return folder


def assert_verified(result: Result) -> None:
    assert result.ok, result.error
    assert result.verdict == "verified", (result.gaps, result.receipt)
    assert result.gaps == ()


def files_of(folder: Path) -> dict[str, bytes | None]:
    return {
        os.path.relpath(path, folder): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


EVERY_DAY = (
    *("unittest", "several commands", "a commit", "a file that does not judge after all"),
    *("its own tests, if they are allowed", "a program that a command names, if it is the work"),
    *("a test that is put back", "names of all kinds", "a dependency", "a check that formats"),
    *("an ignored file that is needed", "a check that leaves processes", "an ignored file"),
    "a function",
)
"""One of each kind of work and check."""


@pytest.mark.parametrize("name", deep_but(HONEST, *EVERY_DAY))
async def test_honest_work_is_verified(name: str, project: Path) -> None:
    case = HONEST[name]
    result = await verified_run(project, case.script, verify=case.verify, **(case.options or {}))
    assert_verified(result)


async def test_a_check_leaves_the_workspace_and_the_repository_alone(project: Path) -> None:
    before = files_of(project)
    check = f"echo > calc.py; rm -rf tests; mkdir new; ! echo > .git/x; echo > .venv/x; {PLAIN}"
    result = await verified_run(project, "echo > NOTES.md", verify=check)
    assert result.verdict == "gaps"
    after = files_of(project)
    assert after.pop("NOTES.md") == b"\n"
    assert any(".venv" in gap and "only to read" in gap for gap in result.gaps)
    assert after.pop(".venv/x") is not None  # without a sandbox it is found, not prevented
    assert after == before


@pytest.mark.parametrize("kind", ["no repository", "no commit", "uncommitted", "below"])
async def test_every_kind_of_folder(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "project"
    make_project(folder, repository=kind not in ("no repository", "no commit"))
    if kind == "no commit":
        git(folder, "init", "-q")
    if kind == "uncommitted":
        (folder / "tests" / "test_calc.py").write_text(TEST.replace("(1, 2), 3", "(2, 2), 4"))
        (folder / "new.py").write_text("x = 1\n")
    cwd = folder / "tests" if kind == "below" else folder
    script = f"cd {folder}\nrm tests/test_calc.py\necho > conftest.py\n{FIX}"
    verify = f"cd .. && {UNITTEST}" if kind == "below" else UNITTEST
    result = await verified_run(cwd, script, verify=verify, put_back=True)
    assert_verified(result)
    assert (folder / "tests" / "test_calc.py").exists()
    assert not (folder / "conftest.py").exists()
    receipt = result.receipt
    assert receipt is not None
    assert receipt.folder == ("folder" if kind == "no repository" else "repository")
    assert receipt.clean is not None
    assert receipt.clean.restored == ("tests/test_calc.py",)
    assert [each.path for each in receipt.clean.left_out] == ["conftest.py"]
    changed = [file.path for file in receipt.before.uncommitted] if receipt.before else []
    assert changed == (["new.py", "tests/test_calc.py"] if kind == "uncommitted" else [])


@needs_sandbox
async def test_in_the_sandbox_the_tree_stands_where_the_workspace_is(project: Path) -> None:
    policy = Policy(read="allow", write="allow", shell="allow", network="deny")
    checks = [
        f"test $(pwd) = {project} && {PLAIN}",
        "! echo > .venv/x && .venv/bin/runner",
        "! test -e .git && echo > calc.py",
        "! cat ~/.ssh/id_rsa && echo > $TMPDIR/x",
    ]
    options: dict[str, Any] = {
        "sandbox": "require",
        "policy": policy,
        "strict": True,
        "work": ["*"],
    }
    result = await verified_run(project, FIX, verify=checks, **options)
    assert_verified(result)
    assert (project / "calc.py").read_text() == RIGHT
    assert not (project / ".venv" / "x").exists()
    offline = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 2)'"
    result = await verified_run(project, "touch x", verify=offline, **options)
    assert result.verdict == "gaps"
    assert "(it ran in a sandbox without a network)" in result.gaps[0]


async def test_the_receipt_says_what_was_run_and_by_whom(project: Path) -> None:
    events: list[corral.Event] = []
    async with corral.session("gemini-cli", **scripted_options(project, verify=PLAIN)) as session:
        result = await session.run(orders(FIX), on_event=events.append)
        folder = session._record.folder if session._record else Path()  # pyright: ignore[reportPrivateUsage]
        stored = (folder / "receipts" / "1.json").read_bytes()
    assert_verified(result)
    receipt = result.receipt
    assert receipt is not None
    assert corral.result_from_events(events).receipt == receipt
    assert msgspec.json.decode(stored, type=type(receipt)) == receipt
    assert receipt.hash == receipt_hash(msgspec.json.decode(stored))
    run = receipt.run
    assert (run.run_id, run.agent, run.agent_version) == (result.run_id, "gemini-cli", "0.61.0")
    assert run.usage == result.usage
    assert run.model == "gemini-2.5-flash"
    assert run.prompt_hash.startswith("sha256:")
    assert {str(row["capability"]) for row in run.policy} >= {"read", "write", "shell", "network"}
    (evidence,) = receipt.evidence
    assert evidence.exit_code == 0
    assert evidence.seconds > 0
    empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert evidence.output_hash == evidence.errors_hash == empty
    assert [file.path for file in receipt.changed] == ["calc.py"]
    assert receipt.after is not None
    tree = git(project, "write-tree")
    assert receipt.before is not None
    assert receipt.before.tree == tree
    assert receipt.before.commit == git(project, "rev-parse", "HEAD")


async def test_a_typed_answer_is_evidence_and_a_correction_is_part_of_the_run(
    project: Path,
) -> None:
    fixed = orders(FIX, "7")

    def check(result: Result[int]) -> bool:
        return result.output == 7

    result = await corral.run(
        "gemini-cli",
        fixed,
        output=int,
        **scripted_options(project, verify=[PLAIN, check]),
    )
    assert_verified(result)
    assert result.receipt is not None
    assert [each.kind for each in result.receipt.evidence] == ["command", "function", "schema"]


@pytest.mark.deep
async def test_a_run_of_several_rounds_is_verified_once_from_its_beginning(project: Path) -> None:
    """The first round deletes the test; the state before it counts."""
    first = orders("rm tests/test_calc.py", "no")
    second = orders(FIX, "yes")
    result = await corral.run(
        "gemini-cli",
        first,
        until=lambda result: None if result.final_text == "yes" else f"go on:\n{second}",
        **scripted_options(project, verify=UNITTEST, put_back=True),
    )
    assert_verified(result)
    assert result.receipt is not None
    assert result.receipt.clean is not None
    assert result.receipt.clean.restored == ("tests/test_calc.py",)
    assert [file.path for file in result.receipt.changed] == ["calc.py"]


async def test_secrets_are_not_in_the_receipt(project: Path) -> None:
    env = {"API_TOKEN": "hunter2-hunter2-hunter2"}
    result = await verified_run(
        project,
        FIX,
        verify=[f"echo $API_TOKEN; {PLAIN}", f": {env['API_TOKEN']}; {PLAIN}"],
        env=env,
    )
    assert_verified(result)
    assert b"hunter2" not in msgspec.json.encode(result.receipt)


def test_nothing_is_left_of_the_checks() -> None:
    home = os.environ.get("CORRAL_HOME", "")
    found = subprocess.run(["find", home, "-path", "*/checks/run-*"], capture_output=True)
    assert not home or found.stdout == b""
