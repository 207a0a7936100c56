"""The rounds of ``until=verified(…)``, and which of their states is kept.

Each round is judged as ``verify`` judges a run, and its files are stored. At the end the best state
is in the folder: if the last one is worse, or its turn failed, the best one is put back. What was
there then is stored with the session, too: nothing is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from corral._sessions.prepared_run import PreparedRun
from corral._sessions.run_verifier import with_judging
from corral._verification.scenarios.counts import out_of_reach
from corral._verification.verified import complaint, score
from corral.errors import CorralError
from corral.events import Error
from corral.receipt import Receipt
from corral.result import Result
from corral.values import FileChanged, path_from_printable


class VerifiedSession(Protocol):
    """The session whose rounds are judged."""

    @property
    def prepared(self) -> PreparedRun: ...

    async def judge(self, result: Result) -> Receipt: ...

    async def restore(self, receipt: Receipt) -> frozenset[str]: ...

    async def verify(self, result: Result) -> Result: ...

    def keep_receipt(self, receipt: Receipt) -> Receipt: ...


class Round(msgspec.Struct, frozen=True):
    number: int
    receipt: Receipt
    score: float
    files: tuple[FileChanged, ...]
    """What was changed up to its end."""


class Converge:
    """Of one run. ``on_judged`` is called with the number and the receipt of each round."""

    def __init__(
        self, session: VerifiedSession, on_judged: Callable[[int, Receipt], None] | None = None
    ) -> None:
        self._session = session
        self._on_judged = on_judged
        self._best: Round | None = None
        self._last: Round | None = None
        self._judged: list[Receipt] = []
        self.rounds: int = 0
        """Rounds that were started."""
        self.problem: str | None = None
        """Why no further round can verify the work."""

    async def check(self, result: Result) -> str | None:
        """For ``until``: what the agent must do yet; None if the work is verified, or if no round
        can change that it is not (``problem``)."""
        receipt = await self._session.judge(result)
        self._judged.append(receipt)
        self._last = last = Round(self.rounds, receipt, score(receipt), result.files)
        is_verified = receipt.verdict == "verified"
        if self._best is None or is_verified or last.score >= self._best.score:
            self._best = last
        if self._on_judged is not None:
            self._on_judged(last.number, receipt)
        scenarios = (each for each in receipt.evidence if each.kind == "scenarios")
        self.problem = next(filter(None, map(out_of_reach, scenarios)), None)
        return None if is_verified or self.problem else complaint(receipt)

    async def finish(self, result: Result) -> Result:
        """The result, with the receipt of the state that is in the folder."""
        result = msgspec.structs.replace(with_judging(result, self._judged), rounds=self.rounds)
        best, last = self._best, self._last
        if best is None or last is None:
            return await self._session.verify(result)
        is_judged = last.number == self.rounds
        if not is_judged and best.score == 0:
            return await self._session.verify(result)  # no state is worth more than the last one
        if best is not last or not is_judged:
            try:
                undone = await self._session.restore(best.receipt)
            except CorralError as error:
                note = f"round {best.number} was better, and its files could not be put back"
                result = _with_note(result, f"{note}: {error.message}")
                return await self._session.verify(result)
            files = _files_after(result.files, best.files, undone, self._session.prepared.cwd)
            result = msgspec.structs.replace(result, files=files)
            result = _with_note(result, f"the files are those of round {best.number}, the best")
        receipt = self._session.keep_receipt(best.receipt)
        return msgspec.structs.replace(result, receipt=receipt, kept_round=best.number)


def _files_after(
    now: Iterable[FileChanged], best: Iterable[FileChanged], undone: Iterable[str], cwd: str
) -> tuple[FileChanged, ...]:
    """The changed files when those of the best round were put back: its own, and those that the
    repository does not know."""
    paths = {os.path.normpath(os.path.join(cwd, path)) for path in undone}
    files = {file.path: file for file in best}
    for file in now:
        if path_from_printable(file.path) not in paths:
            files.setdefault(file.path, file)
    return tuple(files.values())


def _with_note(result: Result, note: str) -> Result:
    """A result whose error says what became of the files."""
    error = result.error
    if error is None:
        return result
    noted: Error = msgspec.structs.replace(error, message=f"{error.message}; {note}")
    return msgspec.structs.replace(result, error=noted)
