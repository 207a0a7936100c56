"""Questions of agents in durable runs.

The attempt sends its question to the run as a message (``AgentAsks``), and the run publishes it
with those of its gates. An answer is a message to the run, as for a gate; the attempt finds it in
the database. If its process dies, the question stays open, and the next attempt asks it under the
same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from corral.engine.dbos.client import Client, with_client
from corral.engine.dbos.database import Database
from corral.engine.payloads import AgentAsks, answer_key, pack, unpack
from corral.pipelines.scheduler.commands import Answer, Answered, Question
from corral.values import Json

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
"""Seconds between two looks for the answer."""


class DurablePerson:
    """Asks the person of a durable run."""

    def __init__(self, run: str, database: Database) -> None:
        self._run = run
        self._database = database

    async def ask(self, question: Question) -> Answer:
        """Publish the question, and wait for its answer. Raises ``StorageFailed``."""
        message, key = pack(AgentAsks(question=question)), f"asks {question.id}"
        await with_client(self._database, lambda client: client.send(self._run, message, key=key))
        pause = FIRST_PAUSE
        while True:
            found = await with_client(self._database, self._find(question.id))
            if found is not None:
                return unpack(found, Answered).answer
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _find(self, question: str) -> Callable[[Client], Json]:
        return lambda client: client.find_message(self._run, answer_key(question))
