"""The interface between a turn and an agent, for every transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from corral.errors import CorralError, ProcessFailed
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


class Backend(ABC):
    """One turn of an agent: ``prepare``, ``begin``, ``receive`` until None, ``finish``."""

    notes: tuple[str, ...] = ()
    """What was chosen on the caller's behalf, once prepared."""

    @property
    @abstractmethod
    def session_id(self) -> str | None:
        """The agent's session id, if it is known before the agent reports it."""

    @property
    def stays_open(self) -> bool:
        """Whether the next backend of the session continues the same conversation, also after a
        turn that failed, without loading it."""
        return False

    @property
    @abstractmethod
    def started(self) -> bool:
        """Whether the agent runs: from then on a failure is an event, not an exception."""

    @property
    def service_url(self) -> str | None:
        """Where the service of the agent's model is, once prepared; None if it has none, or it is
        not known."""
        return None

    @property
    def stderr(self) -> str:
        """The end of stderr, redacted; empty if the agent is not a program."""
        return ""

    @abstractmethod
    async def prepare(self) -> None:
        """Everything before the moment from which the agent may change the workspace."""

    @abstractmethod
    async def begin(self, fail: Fail) -> None:
        """Send the prompt. ``fail`` is held weakly, or until the turn ends."""

    @abstractmethod
    async def receive(self) -> list[RawEvent] | None:
        """The next items, possibly none; None when there are no more."""

    def emit(self, item: RawEvent) -> None:
        """Add an item of corral's own, which ``receive`` returns at once. Only agents with a
        service of a model need it."""
        raise TypeError(f"{type(self).__name__} takes no items of corral: {item}")

    @abstractmethod
    def end_soon(self) -> None:
        """Start to end the turn; ``receive`` soon returns None."""

    @abstractmethod
    async def finish(self) -> list[RawEvent]:
        """After None: end what still runs, and return the last items."""

    @abstractmethod
    async def close(self) -> None:
        """End the turn in any state; nothing of it is left running."""

    @abstractmethod
    def explain(self, normalizer: EventNormalizer, *, lingered: bool) -> CorralError | None:
        """After ``finish``: None for a success."""

    @abstractmethod
    def add_facts(self, error: CorralError) -> None:
        """Add the known facts to an error."""


def unclean_exit(code: int | None, signal: int | None) -> ProcessFailed | None:
    """The error of an agent that gave its answer, and then crashed; None for a clean exit."""
    if not (code or signal):
        return None
    how = f"exit code {code}" if code else f"signal {signal}"
    error = ProcessFailed(
        f"the agent gave its answer but then ended with {how}",
        hint="The answer may be incomplete: see the agent's stderr, and try again.",
    )
    error.exit_code, error.signal = code, signal
    return error


def shown_stderr(stderr: str, prepared: PreparedRun) -> str:
    """The end of stderr for the facts of an error, without what the agent always writes."""
    noise = prepared.agent.ignored_stderr
    lines = [line for line in stderr.splitlines() if not line.startswith(noise)]
    return "\n".join(lines)[-4000:]


@runtime_checkable
class Steerable(Protocol):
    """A driver whose agent takes texts while it works."""

    def steer(self, text: str) -> None: ...

    def follow_up(self, text: str) -> None: ...


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
