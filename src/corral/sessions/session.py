"""The driver: a session with an agent, a context manager that yields events.

::

    async with corral.session("gemini-cli", policy="edits") as session:
        async for event in session.prompt("Fix the failing test"):
            ...

Leaving the block, breaking out of the loop, an exception, a cancellation or
mere garbage collection: the agent and all it started are gone.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from corral.errors import ConfigError, ResumeLost
from corral.io.environment import Eraser
from corral.result import Result
from corral.sessions import store
from corral.sessions.prepare import Prepared, prepare, the_prompt
from corral.sessions.store import Kept
from corral.sessions.stream_backend import StreamBackend
from corral.sessions.turn import Turn


class Session:
    """One agent, one conversation. Not for several tasks at once."""

    def __init__(self, agent: str, options: dict[str, Any]) -> None:
        self._agent = agent
        self._options = options
        self._prepared: Prepared | None = None
        self._kept: Kept | None = None
        self._turn: Turn | None = None

    @property
    def id(self) -> str:
        """Ours; what ``resume`` takes."""
        return self._open()[1].meta.id

    @property
    def prepared(self) -> Prepared:
        """What was found and decided before anything starts."""
        return self._open()[0]

    async def __aenter__(self) -> Session:
        if self._prepared is not None:
            raise RuntimeError("the session is open already")
        prepared = prepare(self._agent, self._options)
        kept = _resumed(prepared) if prepared.run.resume is not None else None
        self._prepared = prepared
        self._kept = kept or store.create(prepared.agent.name, prepared.cwd)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        turn, self._turn = self._turn, None
        try:
            if turn is not None:
                await turn.close()
        finally:
            if self._kept is not None and self._prepared is not None:
                keep = self._prepared.run.keep and self._kept.meta.turns > 0
                self._kept.close(keep=keep or self._prepared.run.resume is not None)
            self._prepared = self._kept = None

    def prompt(self, text: str | None = None) -> Turn:
        """The next turn. It starts when its events are first asked for; one that was
        not read to its end is ended then."""
        prepared, kept = self._open()
        whole = the_prompt(prepared, text)
        eraser = Eraser(prepared.environment.secrets)
        backend = StreamBackend(prepared, kept, whole, eraser)
        self._turn = Turn(prepared, kept, whole, backend, eraser=eraser, before=self._turn)
        return self._turn

    async def run(self, text: str | None = None) -> Result:
        """The next turn, to its end."""
        return await self.prompt(text).collect()

    def _open(self) -> tuple[Prepared, Kept]:
        if self._prepared is None or self._kept is None:
            raise RuntimeError("open the session first: async with corral.session(...) as s")
        return self._prepared, self._kept


def _resumed(prepared: Prepared) -> Kept:
    kept = store.find(prepared.run.resume or "last")
    meta = kept.meta
    if meta.agent != prepared.agent.name:
        raise ConfigError(f"session {meta.id} is of {meta.agent}, not of {prepared.agent.name}")
    if meta.session_id is None:
        raise ResumeLost(f"session {meta.id} never came to the end of a turn")
    if meta.cwd != prepared.cwd:
        raise ResumeLost(
            f"session {meta.id} began in another folder",
            hint=f"Resume it with cwd={meta.cwd} (--cwd).",
        )
    return kept
