"""The interface between a turn and an agent, for every transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from corral.errors import CorralError
from corral.protocol.ndjson import RawEvent
from corral.sessions.event_normalizer import EventNormalizer
from corral.sessions.prepared_run import PreparedRun

if TYPE_CHECKING:
    from corral.sessions.permissions import Asker
    from corral.sessions.store import SessionRecord
    from corral.sessions.tools.tools import GivenTools
    from corral.system.environment import SecretRedactor

Fail: TypeAlias = Callable[[CorralError], None]
"""How a backend ends its turn from outside of a call."""


class Backend(Protocol):
    """One turn of an agent: ``prepare``, ``begin``, ``receive`` until None, ``finish``."""

    notes: tuple[str, ...]
    """What was chosen on the caller's behalf, once prepared."""

    @property
    def session_id(self) -> str | None:
        """The agent's session id, if it is known before the agent reports it."""
        ...

    @property
    def stays_open(self) -> bool:
        """Whether the next backend of the session continues the same conversation, also after a
        turn that failed, without loading it."""
        ...

    @property
    def started(self) -> bool:
        """Whether the agent runs: from then on a failure is an event, not an exception."""
        ...

    async def prepare(self) -> None:
        """Everything before the moment from which the agent may change the workspace."""
        ...

    async def begin(self, fail: Fail) -> None:
        """Send the prompt. ``fail`` is held weakly, or until the turn ends."""
        ...

    async def receive(self) -> list[RawEvent] | None:
        """The next items, possibly none; None when there are no more."""
        ...

    def end_soon(self) -> None:
        """Start to end the turn; ``receive`` soon returns None."""
        ...

    async def finish(self) -> list[RawEvent]:
        """After None: end what still runs, and return the last items."""
        ...

    async def close(self) -> None:
        """End the turn in any state; nothing of it is left running."""
        ...

    def explain(self, normalizer: EventNormalizer, *, lingered: bool) -> CorralError | None:
        """After ``finish``: None for a success."""
        ...

    def add_facts(self, error: CorralError) -> None:
        """Add the known facts to an error."""
        ...


@runtime_checkable
class Steerable(Protocol):
    """A driver whose agent takes texts while it works."""

    def steer(self, text: str) -> None: ...

    def follow_up(self, text: str) -> None: ...


@runtime_checkable
class HasService(Protocol):
    """A backend of an agent whose model is a service on the network."""

    @property
    def service_url(self) -> str | None:
        """Where the service is, once prepared; None if it is not known."""
        ...

    def emit(self, item: RawEvent) -> None:
        """Add an item of corral's own, which ``receive`` returns at once."""
        ...


@runtime_checkable
class HasStderr(Protocol):
    """A backend whose agent is a program with stderr."""

    @property
    def stderr(self) -> str:
        """The end of stderr, redacted."""
        ...


class DriverFactory(Protocol):
    """Creates the driver of an in-process agent; an agent's spec names it."""

    def __call__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        redactor: SecretRedactor,
        ask: Asker | None,
        tools: GivenTools,
        /,
    ) -> AgentDriver: ...


class AgentDriver(Protocol):
    """A session with an agent that runs in this process: what its turns share."""

    def turn(self, prompt: str, prepared: PreparedRun) -> Backend:
        """The backend of the next turn. ``prepared`` may differ from the session's in the
        options of one prompt."""
        ...

    async def close(self) -> None:
        """End all that outlives a turn."""
        ...
