"""What type checkers say about the code of users: each runs once, on ``tests/user_files``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import pyright

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "user_files"

LIMIT = 400
"""Seconds. Without the cache of an earlier run, mypy reads all of corral."""

pytestmark = [pytest.mark.whole_program, pytest.mark.timeout(LIMIT + 10)]


MISSPELLED = """\
import corral
from corral import models, pipelines


async def calls(session: corral.Session, pool: corral.Pool, opened: corral.SyncSession) -> None:
    await corral.run("gemini", "Hello", polcy="edits")  # polcy
    await corral.run("gemini", "Hello", output=list[str], timout=5)  # timout
    corral.run_sync("gemini", "Hello", modle="gemini-2.5-flash")  # modle
    corral.session("gemini", polcy="edits")  # polcy
    corral.session_sync("gemini", polcy="edits")  # polcy
    corral.pool("gemini", siez=2)  # siez
    await session.run("Hello", output=list[str], timout=5)  # timout
    session.prompt("Hello", modle="gemini-2.5-flash")  # modle
    opened.run("Hello", timout=5)  # timout
    await pool.run("Hello", chek=True)  # chek
    corral.batch(["a"], output=list[str], concurency=2)  # concurency
    corral.batch_sync(["a"], max_cots=1)  # max_cots
    corral.Prompt("Hello", ouput=list[str])  # ouput
    await models.generate("gemini:gemini-2.5-flash", "Hello", temprature=1)  # temprature
    await models.generate_object("gemini:gemini-2.5-flash", list[str], "Hello", repair=1)  # repair
    models.generate_object_sync("gemini:gemini-2.5-flash", list[str], repair=1)  # repair
    models.stream_object("gemini:gemini-2.5-flash", list[str], "Hello", repair=1)  # repair
    await pipelines.run("review.dot", simulat=True)  # simulat
    pipelines.run_sync("review.dot", simulat=True)  # simulat
    corral.compare_sync("Fix the bug", ["gemini"], repat=2)  # repat
"""
"""In each call, the keyword in the comment is misspelled."""


def expected_types() -> dict[str, str]:
    """``file:line`` → the type in the comment after ``reveal_type``."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.py")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.strip().startswith("reveal_type("):
                found[f"{path.name}:{number}"] = line.rpartition("  # ")[2]
    return found


def run(*words: str) -> str:
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture
def misspelled(tmp_path: Path) -> Path:
    path = tmp_path / "misspelled.py"
    path.write_text(MISSPELLED, "utf-8")
    return path


def expected_errors(message: str) -> list[str]:
    lines = enumerate(MISSPELLED.splitlines(), 1)
    return [
        f"{n}: {message.format(line.rpartition('  # ')[2])}" for n, line in lines if "  #" in line
    ]


@pytest.mark.deep
def test_mypy_knows_the_type_of_every_output_and_names_misspelled_keywords(
    misspelled: Path,
) -> None:
    out = run(sys.executable, "-m", "mypy", "--no-error-summary", str(FOLDER), str(misspelled))
    others = [line for line in out.splitlines() if "note: Revealed type is" not in line]
    found = [
        re.sub(r'^.*misspelled.py:(.* argument "\w+").*', r"\1", line)
        for line in others
        if not re.search(r'note: "\w+" defined in', line)
    ]
    assert found == expected_errors('error: Unexpected keyword argument "{}"')
    lines = re.findall(r'(\w+\.py):(\d+): note: Revealed type is "(.*)"', out)
    revealed = {f"{name}:{line}": re.sub(r"\w+\.(?=\w)", "", shown) for name, line, shown in lines}
    assert revealed == expected_types()


@pytest.mark.deep
def test_pyright_knows_the_type_of_every_output_and_names_misspelled_keywords(
    misspelled: Path,
) -> None:
    diagnostics = pyright.report(FOLDER, misspelled)["generalDiagnostics"]
    errors = [
        f"{diagnostic['range']['start']['line'] + 1}: {diagnostic['message']}"
        for diagnostic in diagnostics
        if diagnostic["severity"] != "information"
    ]
    assert errors == expected_errors('No parameter named "{}"')
    revealed = {
        f"{Path(diagnostic['file']).name}:{diagnostic['range']['start']['line'] + 1}": shown[1]
        for diagnostic in diagnostics
        if (shown := re.search(r'is "([^"]*)"$', diagnostic["message"]))
    }
    assert revealed == expected_types()
