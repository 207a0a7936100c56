"""The rounds of ``until=verified(…)``, and which of their states is kept.

Each round is judged as ``verify`` judges a run, and its files are stored. At the end the best state
is in the folder: if the last one is worse, or its turn failed, the best one is put back. What was
there then is stored with the session, too: nothing is lost.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from corral._verification.verified import complaint, score
from corral.errors import CorralError
from corral.events import Error
from corral.receipt import Receipt
from corral.result import Result


class VerifiedSession(Protocol):
    """The session whose rounds are judged."""

    async def judge(self, result: Result) -> Receipt: ...

    async def restore(self, receipt: Receipt) -> None: ...

    async def verify(self, result: Result) -> Result: ...

    def keep_receipt(self, receipt: Receipt) -> Receipt: ...


class Round(msgspec.Struct, frozen=True):
    number: int
    receipt: Receipt
    score: float


class Converge:
    """Of one run."""

    def __init__(self, session: VerifiedSession) -> None:
        self._session = session
        self._best: Round | None = None
        self._last: Round | None = None
        self.turns: int = 0
        """Turns that were started."""

    async def check(self, result: Result) -> str | None:
        """For ``until``: what the agent must do yet; None if the work is verified."""
        receipt = await self._session.judge(result)
        self._last = last = Round(self.turns, receipt, score(receipt))
        is_verified = receipt.verdict == "verified"
        if self._best is None or is_verified or last.score >= self._best.score:
            self._best = last
        return None if is_verified else complaint(receipt)

    async def finish(self, result: Result) -> Result:
        """The result, with the receipt of the state that is in the folder."""
        best, last = self._best, self._last
        if best is None or last is None:
            return await self._session.verify(result)
        is_judged = last.number == self.turns
        if best is not last or (not is_judged and best.score > 0):
            try:
                await self._session.restore(best.receipt)
            except CorralError as error:
                return _with_note(result, f"round {best.number} was better, and its files could"
                                  f" not be put back: {error.message}")  # fmt: skip
            result = _with_note(result, f"the files are those of round {best.number}, the best")
        receipt = self._session.keep_receipt(best.receipt)
        return msgspec.structs.replace(result, receipt=receipt)


def _with_note(result: Result, note: str) -> Result:
    """A result whose error says what became of the files."""
    error = result.error
    if error is None:
        return result
    noted: Error = msgspec.structs.replace(error, message=f"{error.message}; {note}")
    return msgspec.structs.replace(result, error=noted)
