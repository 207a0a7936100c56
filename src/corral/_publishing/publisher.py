"""This process among the running ones: its file, its socket, and what others ask of it.

Theory of operation
-------------------
Who calls: the code that runs something (``sessions.turn``, pipelines, batches, the worker) adds an
``LiveEntry`` for it, a second after it has started, or at once if it needs a person. So a short run
never loads this module. Entries may be added from any thread and event loop.

States of a process: *unpublished* (no file) -> *published* (file and socket, while it has an entry)
-> *unpublished*. The file is written again, atomically, at each change.

Guarantees:

- A request is answered once. The first answer wins, whether it comes through the socket or from
  the process itself (``LiveQuestion.claim``), and the error of a later answer says who was first.
- Nothing here fails or delays a run: a folder that cannot be written, a path that is too long, and
  a thread that cannot be started only make the process less visible.
- An entry holds its run weakly, through its callers' controls: a session that is dropped is ended
  as if no one could see it.

Crashes: the file and the socket stay. Readers remove them (``registry``). A fork of this process
has nothing to do with them.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from corral._core.display import shorten
from corral._core.spending import Raise
from corral._publishing import records
from corral._publishing.records import (
    Code,
    LiveError,
    LiveProcess,
    LiveReply,
    LiveRequest,
    LiveRun,
    Pending,
    Problem,
    Program,
)
from corral._system import environment, local_socket, paths, platform
from corral.errors import ConfigError, CorralError
from corral.events import AgentQuestion
from corral.values import MAX_TOKENS, MAX_USD, decode_as

if TYPE_CHECKING:
    from corral._core.question_replies import AnswerLike


_log = logging.getLogger("corral.publishing")

REACTION_TIMEOUT = 5.0
"""Seconds for an event loop to carry out what was asked."""
MANY = 20
"""Runs of one process whose every change is written at once."""
INTERVAL = 0.25
"""Seconds between two writes if there are more."""
WRITING_SHARE = 0.02
"""The share of the time that is spent on writes if there are thousands: the pause between two grows
with what one takes."""
BUSY = 0.05
"""Seconds until the thread of the socket tries again to get the lock."""
REMEMBERED = 100
"""Answered requests of a run, to tell who was first."""
LONGEST_ARGUMENT = 200

_PROGRAMS: dict[str, Program] = {
    "run": "run",
    "chat": "session",
    "batch": "batch",
    "batches": "batch",
    "compare": "batch",
    "pipeline": "pipeline",
    "worker": "worker",
}
_DAEMONS: dict[str, Program] = {
    "_sessions.warm.server": "warm",
    "_engine.agent_host.server": "agent_host",
}


class RunControls(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is controlled. The functions are called in its event loop."""

    loop: asyncio.AbstractEventLoop
    cancel: Callable[[], None] | None = None
    steer: Callable[[str], None] | None = None
    add_budget: Callable[[Raise], None] | None = None
    """Raise the limits of the budget, by USD, tokens and calls."""
    cancel_hint: str | None = None
    """What to do instead if it cannot be cancelled here."""


class LiveQuestion:
    """A request that waits for its first answer."""

    def __init__(self, pending: Pending, question: AgentQuestion | None = None) -> None:
        self.pending = pending
        self.question = question
        """None: it is a permission request."""
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[tuple[AnswerLike, str]] = self._loop.create_future()
        """The answer from outside, and who gave it."""
        self._lock = threading.Lock()
        self.winner: str | None = None
        """Who answered."""

    def claim(self, by: str) -> bool:
        """Whether this is the first answer."""
        with self._lock:
            if self.winner is not None:
                return False
            self.winner = by
            return True

    def answer_from_outside(self, given: AnswerLike, by: str) -> bool:
        """Whether this is the first answer. Called in any thread. Raises ``RuntimeError`` if the
        run's event loop is closed."""
        if not self.claim(by):
            return False

        def deliver() -> None:
            if not self.answer.done():
                self.answer.set_result((given, by))

        self._loop.call_soon_threadsafe(deliver)
        return True


class LiveEntry:
    """One run of this process, as others see it."""

    __slots__ = ("controls", "publisher", "questions", "run", "winners")

    def __init__(self, publisher: Publisher, run: LiveRun, controls: RunControls) -> None:
        self.publisher: Publisher = publisher
        self.run: LiveRun = run
        self.controls: RunControls = controls
        self.questions: Mapping[str, LiveQuestion] = {}
        self.winners: Mapping[str, str] = {}
        """Who answered a request, by its id."""

    @property
    def is_reachable(self) -> bool:
        """Whether answers can come from outside."""
        return self.publisher.is_reachable

    def update(self, run: LiveRun, controls: RunControls | None = None) -> None:
        """Show this from now on."""
        with self.publisher.lock:
            self.run, self.controls = run, controls or self.controls
            self.publisher.write()

    def set_idle(self) -> None:
        """The turn has ended, and the session is still open."""
        self.update(replace(self.run, state="idle", since=time.time(), pending=()))

    def open_question(self, question: LiveQuestion) -> None:
        with self.publisher.lock:
            self.questions = {**self.questions, question.pending.request_id: question}
            self.publisher.write()

    def close_question(self, question: LiveQuestion, by: str) -> None:
        """``by``: who answered, if no one else did before."""
        question.claim(by)
        with self.publisher.lock:
            closed = question.pending.request_id
            self.questions = {id: each for id, each in self.questions.items() if id != closed}
            winners = {**self.winners, closed: question.winner or by}
            self.winners = dict([*winners.items()][-REMEMBERED:])
            self.publisher.write()

    def close(self) -> None:
        """The run is over."""
        self.publisher.remove(self)

    def drop(self) -> None:
        """As ``close``, from a finalizer."""
        self.publisher.drop(self)

    def shown(self, *, inputs: bool) -> LiveRun:
        """``inputs``: with the arguments of pending requests."""
        pending = tuple(
            each.pending if inputs else replace(each.pending, input=None, fields=())
            for each in self.questions.values()
        )
        state = self.run.state
        if pending:
            is_permission = any(each.kind == "permission" for each in pending)
            state = "waiting_permission" if is_permission else "waiting_person"
        return replace(
            self.run,
            pending=(*self.run.pending, *pending),
            state=state,
            can_steer=self.controls.steer is not None,
        )


class Publisher:
    """The file and the socket of one process."""

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self.lock: threading.RLock = threading.RLock()
        self._entries: dict[LiveEntry, None] = {}
        """In the order in which they were added."""
        self._stays = False
        self._server: local_socket.LocalServer | None = None
        us = platform.get_process(self.pid)
        cwd = ""
        with contextlib.suppress(OSError):
            cwd = os.getcwd()
        self._facts = LiveProcess(
            pid=self.pid,
            start_time=us.start_time if us else "",
            boot=platform.boot_id(),
            pid_space=platform.pid_namespace(),
            program=_program(),
            argv=_argv(),
            cwd=cwd,
            since=time.time(),
        )
        self._file: Path | None = None
        self._last_write = 0.0
        self._write_cost = 0.0
        """CPU seconds of the last write."""
        self._due: float | None = None
        """When the file is written next, by the thread of the socket."""
        self._dropped: deque[LiveEntry] = deque()
        """Entries of sessions that were dropped without being closed."""
        self._problem = ""
        atexit.register(self.close)

    @property
    def is_reachable(self) -> bool:
        return self._server is not None and self._file is not None

    def add(self, run: LiveRun, controls: RunControls) -> LiveEntry:
        """Publish a run until its entry is closed."""
        entry = LiveEntry(self, run, controls)
        with self.lock:
            self._remove_dropped()  # also without a socket
            self._entries[entry] = None
            self._serve()
            self.write()
        return entry

    def stay(self) -> None:
        """Be visible also without a run, until the process ends: it waits for work."""
        with self.lock:
            self._stays = True
            self._serve()
            self.write()

    def remove(self, entry: LiveEntry) -> None:
        with self.lock:
            if entry not in self._entries:
                return
            del self._entries[entry]
            if self._entries or self._stays:
                self.write()
            else:
                self.close()

    def close(self) -> None:
        """Be invisible again."""
        if self.pid != os.getpid():  # a fork: the files are the parent's
            return
        with self.lock:
            self._due = None
            server, self._server = self._server, None
            if server is not None:
                server.close()
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.unlink(missing_ok=True)
                self._file = None

    def write(self) -> None:
        """Write the file again, if there is something to show. It has all runs: with many of them
        it is written at most once in ``INTERVAL`` seconds, with thousands less often, or the cost
        of each change would grow with their number. The socket always answers with what is true
        now."""
        if not self._entries and not self._stays:
            return
        pause = max(INTERVAL, self._write_cost / WRITING_SHARE)
        left = self._last_write + pause - time.monotonic()
        if len(self._entries) <= MANY or left <= 0:
            self._write_now()
        elif self._due is None and self._server is not None:
            self._due = time.monotonic() + left
            self._server.wake()
        elif self._due is None:
            self._write_now()

    def drop(self, entry: LiveEntry) -> None:
        """Remove an entry whose session was dropped without being closed. This may happen in the
        middle of anything, so the thread of the socket removes it."""
        if self.pid != os.getpid():
            return
        self._dropped.append(entry)
        if self._server is not None:
            self._server.wake()

    def _remove_dropped(self) -> None:
        while self._dropped:
            self.remove(self._dropped.popleft())

    def _tick(self) -> float | None:
        """The work of the socket's thread. Returns when it is needed next."""
        if not self.lock.acquire(blocking=False):
            return BUSY  # ``close`` waits for this thread and has the lock
        try:
            self._remove_dropped()
            left = None if self._due is None else self._due - time.monotonic()
            if left is None or left > 0:
                return left
            self._due = None
            self._write_now()
            return None
        finally:
            self.lock.release()

    def _write_now(self) -> None:
        if not self._entries and not self._stays:
            return
        started = time.thread_time()
        try:
            file = records.file_of(self._facts)
            paths.write_private(file, msgspec.json.encode(self.describe(inputs=False)))
            self._file = file
        except (OSError, CorralError) as error:
            self._report(f"this process is not visible to others: {error}")
        self._last_write, self._write_cost = time.monotonic(), time.thread_time() - started

    def describe(self, *, inputs: bool) -> LiveProcess:
        return replace(
            self._facts,
            socket=self._server.path if self._server is not None else None,
            runs=tuple(entry.shown(inputs=inputs) for entry in [*self._entries]),
        )

    def _serve(self) -> None:
        """Open the socket, if it is not open."""
        if self._server is not None:
            return
        try:
            path = records.socket_of(records.file_of(self._facts))
            if local_socket.fits(str(path)):
                paths.make_dir(path.parent)
            else:
                path = paths.temporary() / path.name
            self._server = local_socket.LocalServer(str(path), self.handle, self._tick)
        except (OSError, CorralError) as error:
            self._report(f"this process cannot be controlled by others: {error}")

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.info("%s", problem)

    # Requests, in the thread of the socket.

    def handle(self, line: bytes) -> bytes:
        """The answer to a request."""
        try:
            reply = self._reply(decode_as(line, LiveRequest))
        except LiveError as error:
            reply = LiveReply(problem=error.problem)
        except msgspec.MsgspecError as error:
            reply = LiveReply(problem=Problem("refused", f"not a request of this version: {error}"))
        except Exception as error:
            _log.warning("a request failed: %r", error)
            reply = LiveReply(problem=Problem("refused", f"{type(error).__name__}: {error}"))
        return msgspec.json.encode(reply)

    def _reply(self, request: LiveRequest) -> LiveReply:
        if request.do == "status":
            with self.lock:
                return LiveReply(process=self.describe(inputs=True))
        if request.do == "pending":
            with self.lock:
                runs = [entry.shown(inputs=True) for entry in self._entries]
            return LiveReply(
                pending=tuple(with_run(run, each) for run in runs for each in run.pending)
            )
        with self.lock:
            entry = next((each for each in self._entries if each.run.id == request.run), None)
        if entry is None:
            raise _error("not_live", f"{request.run} is not running any more")
        if request.do == "answer":
            _answer(entry, request)
        elif request.do == "cancel":
            cancel = entry.controls.cancel
            if cancel is None:
                hint = entry.controls.cancel_hint
                raise _error("refused", f"{entry.run.id} cannot be cancelled from here", hint)
            _on_loop(entry, cancel)
        elif request.do == "steer":
            steer = entry.controls.steer
            if steer is None:
                raise _error(
                    "refused",
                    f"{entry.run.agent or entry.run.id} cannot be steered while it works",
                    "Give it another prompt once it has answered.",
                )
            _on_loop(entry, lambda: steer(request.text))
        else:
            _add_budget(entry, request)
        return LiveReply()


def with_run(run: LiveRun, pending: Pending) -> Pending:
    """The request with the id of its run."""
    return replace(pending, run=run.id)


def _answer(entry: LiveEntry, request: LiveRequest) -> None:
    question = _question(entry, request.request_id)
    if request.key and request.key != question.pending.key:
        raise _error("answered", "the request was answered, and this is another one")
    given = _given(question, request)
    try:
        first = question.answer_from_outside(given, request.by or "another process")
    except RuntimeError as error:
        raise _error("not_live", f"{entry.run.id} has ended") from error
    if not first:
        raise _error("answered", f"the request was already answered: {question.winner}")


def _given(open_question: LiveQuestion, request: LiveRequest) -> AnswerLike:
    """The answer in a request. Raises ``LiveError`` if it does not fit: the question stays open."""
    from corral._core.question_replies import read_answers, read_text

    question = open_question.question
    if question is None:
        if request.decision is None:
            raise _error("refused", "a permission request is answered with a decision")
        return request.decision
    if request.decision in ("deny", "cancel"):
        return None if request.decision == "deny" else "cancel"
    if request.decision is not None:
        raise _error("refused", "a question is answered with a text, not with a decision")
    try:
        if request.answers is not None:
            return read_answers(question, request.answers)
        return read_text(question, request.text)
    except ConfigError as error:
        raise _error("refused", error.message, error.hint) from error


def _question(entry: LiveEntry, request_id: str) -> LiveQuestion:
    """The question that is meant: without an id, the only one."""
    with entry.publisher.lock:
        if request_id in entry.questions:
            return entry.questions[request_id]
        if request_id in entry.winners:
            raise _error(
                "answered", f"the request was already answered: {entry.winners[request_id]}"
            )
        if not request_id and len(entry.questions) == 1:
            return next(iter(entry.questions.values()))
        if not entry.questions:
            raise _error("unknown_request", f"{entry.run.id} is not waiting for an answer")
        ids = ", ".join(entry.questions)
        if request_id:
            raise _error("unknown_request", f"no request {request_id!r} is open", f"Open: {ids}.")
        raise _error("several", f"several requests are open: {ids}", "Name one with --request ID.")


def _add_budget(entry: LiveEntry, request: LiveRequest) -> None:
    add = entry.controls.add_budget
    if add is None:
        raise _error("refused", f"{entry.run.id} has no budget that can be raised")
    amounts = request.amounts.amounts()
    if not amounts:
        raise _error("refused", "by how much is the budget to be raised?")
    for name, amount in amounts.items():
        if not 0 < amount <= (MAX_USD if name == "max_cost" else MAX_TOKENS):
            raise _error("refused", f"a budget cannot be raised by {amount:g}")
    _on_loop(entry, lambda: add(request.amounts))


def _on_loop(entry: LiveEntry, action: Callable[[], None]) -> None:
    """Carry out an action in the run's event loop, and wait for it."""
    done: concurrent.futures.Future[None] = concurrent.futures.Future()

    def act() -> None:
        try:
            action()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    try:
        entry.controls.loop.call_soon_threadsafe(act)
    except RuntimeError as error:
        raise _error("not_live", f"{entry.run.id} has ended") from error
    try:
        done.result(REACTION_TIMEOUT)
    except TimeoutError as error:
        raise _error("busy", f"{entry.run.id} did not react in {REACTION_TIMEOUT:g} s") from error
    except CorralError as error:
        raise _error("refused", error.message, error.hint) from error


def _error(code: Code, message: str, hint: str | None = None) -> LiveError:
    return LiveError(Problem(code, message, hint))


_publisher: Publisher | None = None
_making = threading.Lock()


def current() -> Publisher:
    """The publisher of this process."""
    global _publisher  # noqa: PLW0603
    with _making:
        if _publisher is None or _publisher.pid != os.getpid():
            _publisher = Publisher()
        return _publisher


def _program() -> Program:
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    first = sys.argv[1] if len(sys.argv) > 1 else ""
    if name == "-c":
        return _DAEMONS.get(first.removeprefix("corral."), "python")
    folder = os.path.basename(os.path.dirname(sys.argv[0] if sys.argv else ""))
    if name == "corral" or (name == "__main__.py" and folder == "corral"):
        return _PROGRAMS.get(first, "run")
    return "python"


def _argv() -> tuple[str, ...]:
    """The command line, with secrets of the environment redacted, and shortened."""
    given = [each.encode("utf-8", "replace").decode() for each in sys.argv[:REMEMBERED]]
    passwords = {f"argument {number}": each for number, each in enumerate(given)}
    secrets = environment.named_secrets({**environment.variables(), **passwords})
    redactor = environment.SecretRedactor(secrets)
    return tuple(shorten(redactor.clean_text(each), LONGEST_ARGUMENT) for each in given)
