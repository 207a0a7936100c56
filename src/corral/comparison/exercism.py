"""Exercises in the layout of exercism, as the polyglot benchmark of aider has them.

``.docs/instructions.md`` is the prompt, and ``.meta/config.json`` names the files of the solution
and of the tests. The agent gets the exercise without its tests and without ``.meta``. Then the
tests are copied back and run with the command of the language (``COMMANDS``, or ``--verify``).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from corral.comparison.task import CompareTask
from corral.errors import ConfigError
from corral.nesting import decode_json
from corral.values import as_object, as_texts

DOCS = ("introduction.md", "instructions.md", "instructions.append.md")
COMMANDS = {
    ".py": "python3 -m pytest -q .",
    ".go": "go test ./...",
    ".rs": "cargo test -- --include-ignored",
    ".js": "npm test --silent",
    ".java": "./gradlew test",
    ".cpp": "cmake -B build && cmake --build build",
}
"""The command for the tests, by the suffix of the first test file."""
HIDDEN = (".meta", ".docs")
"""Folders that the agent does not get: the first contains a solution."""
ASK = (
    "Implement the solution in: {files}. Change no other file. Names and signatures in the files"
    " stay as they are: tests that you do not have use them."
)


def read_task(path: Path) -> CompareTask | None:
    """The exercise in a folder; None if there is no exercise. Raises ``ConfigError``."""
    config_file = path / ".meta" / "config.json"
    if not (config_file.is_file() and (path / ".docs" / "instructions.md").is_file()):
        return None
    try:
        files = as_object(as_object(decode_json(config_file.read_bytes())).get("files"))
        docs = [(path / ".docs" / name) for name in DOCS]
        texts = [doc.read_text("utf-8").strip() for doc in docs if doc.is_file()]
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{config_file}: {error}") from error
    solution, tests = as_texts(files.get("solution")), as_texts(files.get("test"))
    if not solution or not tests:
        raise ConfigError(f"{config_file} names no files of the solution or of the tests")
    prompt = "\n\n".join([*texts, ASK.format(files=", ".join(solution))])
    return CompareTask(
        id=path.name,
        prompt=prompt,
        usual_verify=COMMANDS.get(Path(tests[0]).suffix, ""),
        folder=str(path),
        hidden=(*HIDDEN, *tests),
        tests=str(path),
        test_files=tuple(tests),
    )
