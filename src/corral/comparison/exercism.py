"""Exercises in the layout of exercism, as the polyglot benchmark of aider has them.

``.docs/instructions.md`` is the prompt, and ``.meta/config.json`` names the files of the solution
and of the tests. The agent gets the exercise without its tests and without ``.meta``. Then the
tests are copied back and run with the command of the language (``COMMANDS``, or ``--verify``).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from corral.comparison import task_files
from corral.comparison.task import CompareTask
from corral.core.nesting import decode_json
from corral.errors import ConfigError
from corral.values import as_object, as_texts

CONFIG = ".meta/config.json"
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
    name = path.name
    config = task_files.read_file(name, path, CONFIG)
    if config is None or task_files.kind_of(name, path, ".docs/instructions.md") != "file":
        return None
    try:
        files = as_object(as_object(decode_json(config)).get("files"))
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path / CONFIG}: {error}") from error
    texts = [task_files.read_text(name, path, f".docs/{doc}") for doc in DOCS]
    solution, tests = as_texts(files.get("solution")), as_texts(files.get("test"))
    if not solution or not tests:
        raise ConfigError(f"{path / CONFIG} names no files of the solution or of the tests")
    for file in solution:
        task_files.check_path(name, file)
    for file in tests:
        if task_files.kind_of(name, path, file) is None:
            raise ConfigError(f"task {name!r}: there is no {path / file}")
    ask = ASK.format(files=", ".join(solution))
    return CompareTask(
        id=name,
        prompt="\n\n".join([*(text.strip() for text in texts if text is not None), ask]),
        usual_verify=COMMANDS.get(Path(tests[0]).suffix, ""),
        folder=str(path),
        hidden=(*HIDDEN, *tests),
        tests=str(path),
        test_files=tuple(tests),
    )
