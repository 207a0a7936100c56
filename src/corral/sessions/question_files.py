"""A question to a person, stored as files, so that it survives the process that asked it.

The session's folder has one folder for each turn::

    turn-1/
        prompt.md   the question, for the person to read
        answer.md   written by the person; complete once it is saved without the marker line
        .asked      the prompt as it was given, to recognize the question
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from corral.errors import StorageFailed
from corral.sessions.store import SessionRecord
from corral.system import paths

WAITING = "waiting"
"""A session's status from the question to its answer."""
UNFINISHED = "<!-- delete this line, and save, when the answer is done -->"
"""Marks a draft: people save early, and some editors save by themselves. A file that is written
or moved here in one step needs no such line."""


class AnswerSnapshot(msgspec.Struct, frozen=True):
    """An answer as read from the file, and a stamp to recognize a later version."""

    text: str
    stamp: tuple[int, int, int]


class QuestionFile:
    """One question's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prompt = folder / "prompt.md"
        self.answer = folder / "answer.md"
        self.draft = folder / "draft.md"
        """The file that the editor opens."""
        self._original_prompt = folder / ".asked"

    @property
    def original_prompt(self) -> str | None:
        """The prompt as it was given; None if the question was never asked."""
        try:
            return self._original_prompt.read_text("utf-8")
        except OSError:
            return None

    def write(self, prompt: str, shown: str) -> None:
        """Write the question. Raises ``StorageFailed``."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths.write_private(self.prompt, shown.encode())
            paths.write_private(self.answer, f"\n{UNFINISHED}\n".encode())
            paths.write_private(self._original_prompt, prompt.encode())
        except OSError as error:
            raise StorageFailed(f"the question cannot be written: {error}") from error

    def read_answer(self) -> AnswerSnapshot | None:
        """The answer, if complete. Raises ``StorageFailed`` if none can be given any more."""
        try:
            with self.answer.open("rb") as file:
                about = os.fstat(file.fileno())
                text = file.read().decode("utf-8-sig", "replace").replace("\r\n", "\n")
        except FileNotFoundError as error:
            if not self.folder.is_dir():
                raise StorageFailed(
                    f"the question's folder does not exist: {self.folder}"
                ) from error
            return None
        except OSError as error:
            raise StorageFailed(f"the answer cannot be read: {error}") from error
        if UNFINISHED in text or not text.strip():
            return None
        return AnswerSnapshot(text.rstrip("\n"), (about.st_ino, about.st_size, about.st_mtime_ns))

    def write_answer(self, text: str) -> None:
        """Write the answer in one step."""
        paths.write_private(self.answer, text.replace(UNFINISHED, "").encode())


def next_question(record: SessionRecord, prompt: str) -> tuple[QuestionFile, bool]:
    """The question for this prompt, and whether it is open already. Another open question stays
    as it is, and is not asked any more."""
    before = open_question(record)
    if before is not None and before.original_prompt == prompt:
        return before, True
    return QuestionFile(record.folder / f"turn-{_last_number(record) + 1}"), False


def open_question(record: SessionRecord) -> QuestionFile | None:
    """The last question to a person; None if it was answered and the answer was read."""
    number = _last_number(record)
    if not number or record.meta.status == "success":
        return None
    question = QuestionFile(record.folder / f"turn-{number}")
    return question if question.original_prompt is not None else None


def open_prompt(record: SessionRecord) -> str | None:
    """The prompt that still waits for its answer."""
    question = open_question(record)
    return question.original_prompt if question is not None else None


def _last_number(record: SessionRecord) -> int:
    names = (path.name.removeprefix("turn-") for path in record.folder.glob("turn-*"))
    return max((int(name) for name in names if name.isdecimal()), default=0)
