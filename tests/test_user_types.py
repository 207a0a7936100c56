"""What type checkers say about the code of users: each runs once, on ``tests/user_files``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "user_files"
PYRIGHT = ROOT / "tools" / "pyright" / "node_modules" / "pyright" / "index.js"

LIMIT = 400
"""Seconds. Without the cache of an earlier run, mypy reads all of corral."""

pytestmark = [pytest.mark.whole_program, pytest.mark.timeout(LIMIT + 10)]


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


def test_mypy_knows_the_type_of_every_output() -> None:
    out = run(sys.executable, "-m", "mypy", "--no-error-summary", str(FOLDER))
    wrong = [line for line in out.splitlines() if "note: Revealed type is" not in line]
    assert wrong == []
    lines = re.findall(r'(\w+\.py):(\d+): note: Revealed type is "(.*)"', out)
    revealed = {f"{name}:{line}": re.sub(r"\w+\.(?=\w)", "", shown) for name, line, shown in lines}
    assert revealed == expected_types()


def test_pyright_knows_the_type_of_every_output() -> None:
    if not PYRIGHT.exists():
        pytest.skip("pyright is not installed: make check installs it")
    report = json.loads(run("node", str(PYRIGHT), "--outputjson", str(FOLDER)))
    found = report["generalDiagnostics"]
    assert [each for each in found if each["severity"] != "information"] == []
    revealed = {
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}": shown[1]
        for each in found
        if (shown := re.search(r'is "([^"]*)"$', each["message"]))
    }
    assert revealed == expected_types()
