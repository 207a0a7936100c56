"""The provider for a person."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from corral._sessions import store
from corral.providers import ProviderError, ProviderResult, ResponseProviderFactory

create = ResponseProviderFactory.create


class Reader(logging.Handler):
    """A person who reads the log of the engine and answers."""

    def __init__(self, answer: str, workspace: Path) -> None:
        super().__init__()
        self._answer = answer
        self._workspace = workspace
        self.prompts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        _, _, path = record.getMessage().partition("awaited in: ")
        if path:
            answer = Path(path)
            self.prompts.append(answer.with_name("prompt.md").read_text())
            threading.Thread(target=self._work, args=(answer,)).start()

    def _work(self, answer: Path) -> None:
        (self._workspace / "old.txt").unlink()
        (self._workspace / "new.txt").write_text("new")
        answer.write_text(self._answer)


def test_the_answer_of_a_person_is_the_response(workspace: Path) -> None:
    log = logging.getLogger("corral.providers")
    (workspace / "old.txt").write_text("old")
    reader = Reader("by hand", workspace)
    log.addHandler(reader)
    try:
        provider = create("manual", {"working_dir": str(workspace)})
        provider.validate()
        result = provider.generate("What now?", system_prompt="Be kind.")
    finally:
        log.removeHandler(reader)
    assert result == ProviderResult("by hand", {str(workspace / "new.txt"): None})
    assert reader.prompts[0].startswith("Be kind.\n\nWhat now?")


def test_an_engine_that_asks_again_gets_the_answer_that_was_given_meanwhile(
    workspace: Path,
) -> None:
    provider = create("manual", {"working_dir": str(workspace), "timeout": 0.3})
    with pytest.raises(ProviderError, match=r"timed out after 0\.3s"):
        provider.generate("What now?")
    [record] = store.all_sessions()
    (record.folder / "turn-1" / "answer.md").write_text("Meanwhile.")
    second = create("manual", {"working_dir": str(workspace)})
    assert second.generate("What now?").response == "Meanwhile."
