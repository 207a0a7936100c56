"""Helpers for tests of batches: a model that counts requests, and a reader of results."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.real_agents import KEY

from corral.testing import ModelServer, Request, Turn, say

MODEL = "gemini:gemini-2.5-flash"


class CountingModel:
    """Answers ``task 7`` with ``did 7``, and counts how often it was asked for each."""

    def __init__(self, server: ModelServer, name: str) -> None:
        self.counts: Counter[str] = Counter()
        self.special: Callable[[str, Request], Turn | None] = lambda _task, _request: None
        self._lock = threading.Lock()
        self._lane = server.lane(re.sub(r"[^A-Za-z0-9]+", "-", name), self._answer)

    @property
    def env(self) -> dict[str, str]:
        return {"GOOGLE_GEMINI_BASE_URL": self._lane.url, "GEMINI_API_KEY": KEY}

    def _answer(self, request: Request) -> Turn:
        found = re.findall(r"task ([a-z]?\d+|[a-z])\b", "\n".join(request.texts))
        task = found[0] if found else "?"
        with self._lock:
            self.counts[task] += 1
        special = self.special(task, request)
        return special or say(f"did {task}")


def results_of(path: Path) -> dict[str, dict[str, Any]]:
    """The results by id. Fails unless every line is complete and each id occurs once."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len({line["id"] for line in lines}) == len(lines), "a task has two lines"
    return {line["id"]: line for line in lines}
