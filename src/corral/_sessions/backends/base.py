"""The interface between a turn and an agent, for every transport, and the program of an agent."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from msgspec.structs import replace

from corral._agents.spec import Launch
from corral._protocol.ndjson import RawEvent
from corral._sessions.event_normalizer import EventNormalizer
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.sinks import warning
from corral._sessions.store import SessionRecord, write_private_home
from corral._system import paths
from corral._system.environment import SecretRedactor
from corral._system.process.process import Exit, Process, ProcessSpec
from corral._system.process.streams import StderrLines
from corral._system.process.tree import shared_registry
from corral.errors import CorralError, ProcessFailed
from corral.values import weak_callback

if TYPE_CHECKING:
    from corral._sessions.meter import Meter
    from corral._sessions.permissions import Asker
    from corral._sessions.tools.tools import GivenTools
    from corral._system.hook_socket import HookSocket
    from corral._system.sandbox.repository_guard import GitNotice

_log = logging.getLogger("corral.sessions")

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
    def agent_version(self) -> str | None:
        """The version that the agent itself reported, once prepared."""
        return None

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


class AgentProgram:
    """The program of an agent, for one turn or for several: the proxy that counts its model calls,
    how it is launched, its process, and what it writes to stderr."""

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        redactor: SecretRedactor,
        on_item: Callable[[RawEvent], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """``on_item`` gets the events for lines of stderr, ``on_fatal`` a line that says that the
        agent did not take the policy. Both are methods of what owns this object, and held
        weakly."""
        self.prepared: PreparedRun = prepared
        """What the program is started with."""
        self._record = record
        self._redactor = redactor
        self._on_item, self._on_fatal = weak_callback(on_item), weak_callback(on_fatal)
        self._stderr_lines = StderrLines(self._on_stderr_line)
        self._notices: list[GitNotice] = []
        """About repositories: see ``Sandbox.report``."""
        self.meter: Meter | None = None
        """Counts the model calls of the program."""
        self.launch: Launch | None = None
        self.argv: tuple[str, ...] = ()
        self.process: Process | None = None

    @property
    def home(self) -> Path:
        """The private home."""
        return self._record.home

    async def prepare(
        self,
        prompt: str = "",
        resume: str | None = None,
        hook: HookSocket | None = None,
    ) -> Launch:
        """Open the proxy and the hook, and write the agent's private home."""
        prepared, record = self.prepared, self._record
        if prepared.meter is not None:
            from corral._sessions.meter import Meter

            self.meter = await Meter.open(prepared)
            self.prepared = prepared = self.meter.prepared
        context = prepared.launch_context(record.folder, await prepared.find_links())
        if hook is not None:
            await hook.open()
            context = replace(context, hook_command=hook.command)
        forks = prepared.run.fork and resume == record.meta.forked_from
        launch = replace(prepared, run=replace(prepared.run, fork=forks)).launch(
            context, prompt, resume
        )
        if self.meter is not None:
            launch = self.meter.described(launch)
        write_private_home(launch, prepared, record)
        self.launch = launch
        self.argv = tuple(self._redactor.clean_text(argument) for argument in launch.argv)
        return launch

    async def start(
        self,
        *,
        stdin: bytes = b"",
        keep_stdin_open: bool = True,
        stdout: Literal["pipe", "file"] = "pipe",
        hook: HookSocket | None = None,
    ) -> Process:
        """Start the process, in the sandbox if the run has one."""
        launch, prepared, record = self.launch, self.prepared, self._record
        if launch is None:
            raise RuntimeError("prepare first")
        _log.debug("command line: %s", " ".join(self.argv))
        sandbox = None
        if prepared.sandbox is not None:
            from corral._sessions.sandbox import agent_sandbox  # most runs need none

            sandbox = agent_sandbox(prepared, launch, record.folder, hook, self._notices.append)
        spec = ProcessSpec(
            launch.argv,
            cwd=launch.cwd or prepared.cwd,
            env=prepared.env(launch, record.next_run_id),
            stdin=stdin,
            keep_stdin_open=keep_stdin_open,
            stdout=stdout,
            scratch=record.tmp,
            registry=shared_registry(paths.process_registry(), prepared.agent.name),
            on_stderr=self._stderr_lines.feed,
            sandbox=sandbox,
        )
        if prepared.recording is not None:
            from corral._sessions.recording import recorded

            spec = recorded(prepared, prepared.recording, spec)
        self.process = await Process.start(spec)
        # What the agent has got is not held while it works: its files alone may be many kB.
        self.launch = replace(launch, files={}, env={}, stdin=b"")
        return self.process

    @property
    def stderr(self) -> str:
        """The end of stderr, redacted."""
        if (process := self.process) is None:
            return ""
        return self._redactor.clean_text_part(process.stderr, begin_cut=process.stderr_is_cut)

    def add_facts(self, error: CorralError) -> None:
        """Add the command and the end of stderr, without what the agent always writes."""
        noise = self.prepared.agent.ignored_stderr
        lines = [line for line in self.stderr.splitlines() if not line.startswith(noise)]
        error.stderr, error.argv = "\n".join(lines)[-4000:], self.argv

    def take_warnings(self) -> list[RawEvent]:
        """About what the agent has done to repositories since the last turn, and about a recording
        that is not complete."""
        notices = self.take_notices()
        items: list[RawEvent] = [warning(notice.code, notice.message) for notice in notices]
        failure = None if self.process is None else self.process.recording_failure
        if failure is not None:
            items.append(
                warning(
                    "recording_lost",
                    f"the recording {self.prepared.run.record_to} is not complete:"
                    f" {failure.strerror or failure}: free some space, and record it again",
                )
            )
        return items

    def take_notices(self) -> list[GitNotice]:
        """About what the agent has done to repositories, each once."""
        notices, self._notices[:] = self._notices[:], []
        return notices

    async def end(self, grace: float) -> Exit:
        """End the process with all that it started, and the proxy."""
        try:
            return Exit(None, None) if self.process is None else await self.process.end(grace)
        finally:
            self._stderr_lines.end()
            if self.meter is not None:
                await self.meter.close()

    def _on_stderr_line(self, line: str) -> None:
        agent, line = self.prepared.agent, self._redactor.clean_text(line)
        if any(sign in line for sign in agent.fatal_stderr):
            self._on_fatal(line)
        item = agent.read_stderr(line) if agent.read_stderr else None
        if item is not None:
            self._on_item(item)


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
