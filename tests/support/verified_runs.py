"""Runs of a scripted agent in a small project, which are verified."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from support.scripted_agent import scripted_options

import corral
from corral.result import Result

WRONG = "def add(a, b):\n    return a - b\n"
RIGHT = "def add(a, b):\n    return a + b\n"
TEST = """\
import unittest

from calc import add


class AddTest(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""
UNITTEST = "python3 -m unittest -q tests.test_calc"
PLAIN = "python3 -c 'import calc; assert calc.add(1, 2) == 3'"
"""Faster than a test runner."""
FILES = {
    "calc.py": WRONG,
    "tests/test_calc.py": TEST,
    "check.sh": f"{PLAIN}\n",
    "Makefile": f"test:\n\t{UNITTEST}\nlint:\n\t! grep -q TODO calc.py\n"
    f"all: .stamp\n.stamp: calc.py\n\t{PLAIN}\n\ttouch .stamp\n",
    "tox.ini": f"commands = {PLAIN}\n",
    "package.json": '{"scripts": {"test": "sh check.sh"}}\n',
    "README.md": "A calculator.\n",
    ".gitignore": "__pycache__/\n.venv/\nnode_modules/\nbuild/\n*.local\n",
}
FIX = f"cat > calc.py <<'END'\n{RIGHT}END"
"""What an honest agent does."""


def make_project(folder: Path, *, repository: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (folder / "check.sh").chmod(0o755)
    if repository:
        git(folder, "init", "-q", "-b", "main")
        git(folder, "add", "--all")
        git(folder, "commit", "-q", "-m", "first")


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    words = ("git", *identity, "-C", str(folder), *words)
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def orders(script: str, answer: str = "Done. All tests pass.") -> str:
    """The prompt that makes the scripted agent run a script of the shell and write an answer."""
    lines = "; ".join(["true", *filter(None, [quoted(script)])])
    return f"init\nsh {lines}\ntext {answer}\nresult"


def quoted(script: str) -> str:
    """A script of several lines in one line."""
    data = script.encode().hex()
    program = f"import sys; sys.stdout.buffer.write(bytes.fromhex('{data}'))"
    return f'python3 -SEc "{program}" | sh -e' if script else ""


async def verified_run(folder: Path, script: str, **options: Any) -> Result:
    """A run whose agent runs the script, and what corral says of it."""
    prompt = orders(script, options.pop("answer", "Done. All tests pass."))
    usual: dict[str, Any] = {"sandbox": "off", "policy": "edits", "strict": False}
    return await corral.run(
        "gemini-cli", prompt, **scripted_options(folder, **{**usual, **options})
    )
