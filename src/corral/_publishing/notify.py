"""Tell somebody elsewhere: a command or a webhook gets a message when a person is needed, or when a
run ends.

The target is a URL (``http://`` or ``https://``), which gets a POST with a JSON body, or a command
line, which gets the JSON on stdin. A command is started without a shell, unless it uses the
shell's own characters (``|``, ``>``, ``$`` …): then it is given to ``sh -c`` as it was written.

With ``CORRAL_NOTIFY_SECRET`` set, a webhook can check who sent the message: the header
``X-Corral-Signature`` is ``sha256=`` and the HMAC of ``X-Corral-Timestamp``, a dot and the body.

A message is sent again if it fails, with growing pauses. A target that fails costs nothing but the
message: the run does not wait for it, except that at its end it waits ``END_TIMEOUT`` seconds at
most for messages that are still on their way.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import shlex
import warnings
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from corral._core.durations import backoff_delay
from corral._core.terminal_text import one_line
from corral._publishing import tokens
from corral._publishing.records import Kind
from corral._system import clock
from corral._system.environment import variable, variables
from corral._system.process.process import Process, ProcessSpec
from corral.errors import ConfigError, CorralError
from corral.values import Json

_log = logging.getLogger("corral.publishing")

ATTEMPTS = 5
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds between two attempts."""
ATTEMPT_TIMEOUT = 15.0
"""Seconds for one attempt."""
END_TIMEOUT = 20.0
"""Seconds to wait, at the end of a run, for messages on their way."""
GRACE = 1.0
"""Seconds for a command to end when its time is over."""
SIGNED_WITH = "CORRAL_NOTIFY_SECRET"
_SHELL = re.compile(r"[|&;<>()$`*?\[\]{}~#\n!]")
"""Characters that mean something to a shell outside of quotes."""

Happened = Literal["permission", "question", "end"]


class RunFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which run a message is about."""

    kind: Kind
    id: str
    title: str = ""
    agent: str = ""
    cwd: str = ""
    label: str | None = None
    db: str | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person is asked."""

    request_id: str = ""
    key: str = msgspec.field(default_factory=tokens.new_key)
    text: str = ""
    input: Json = None
    choices: tuple[str, ...] = ()
    deadline: float | None = None


class AnswerLink(msgspec.Struct, frozen=True, kw_only=True):
    """How it is answered from elsewhere."""

    token: str
    """For ``corral runs answer --token`` and ``POST /api/answers/TOKEN`` of ``corral view``."""
    expires: float
    command: str


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended."""

    status: str
    text: str = ""
    error: str = ""
    seconds: float | None = None
    cost_usd: float | None = None
    tokens: int | None = None


class RunMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON that is sent."""

    version: int  # without a default, so that it is sent
    event: Happened
    time: float
    run: RunFacts
    asked: Asked | None = None
    answer: AnswerLink | None = None
    ended: RunEnd | None = None


def wants(on: object, event: Happened) -> bool:
    """Whether this event is to be sent, by the option ``notify_on``."""
    return on not in ("person", "end") or (on == "end") == (event == "end")


def is_url(target: str) -> bool:
    return target.lower().startswith(("http://", "https://"))


def check(target: str) -> None:
    """Raises ``ConfigError`` for a target that can never work."""
    if is_url(target):
        from corral._system.http.request import parse_url

        parse_url(target)
        return
    try:
        empty = not shlex.split(target)
    except ValueError as error:
        raise ConfigError(f"notify: {error}: {target}") from error
    if empty:
        raise ConfigError("notify is empty", hint="Give a command or a URL.")


def asked_message(run: RunFacts, event: Happened, asked: Asked) -> RunMessage:
    """The message that a person is needed, with a token to answer."""
    answer: AnswerLink | None = None
    expires = asked.deadline or clock.now() + tokens.LIFETIME
    says = tokens.Token(
        kind=run.kind,
        run=run.id,
        request_id=asked.request_id,
        expires=expires,
        key=asked.key,
        db=run.db,
    )
    try:
        token = tokens.make(says)
    except (OSError, CorralError) as error:
        _log.warning("no token could be made: %s", error)
    else:
        given = "--allow" if event == "permission" else "TEXT"
        command = f"corral runs answer --token {token} {given}"
        answer = AnswerLink(token=token, expires=expires, command=command)
    return RunMessage(version=1, event=event, time=clock.now(), run=run, asked=asked, answer=answer)


def end_message(run: RunFacts, ended: RunEnd) -> RunMessage:
    return RunMessage(version=1, event="end", time=clock.now(), run=run, ended=ended)


class Notifier:
    """Sends the messages of one run. ``on_failure`` gets the reason if one could not be sent."""

    def __init__(self, target: str, on_failure: Callable[[str], None]) -> None:
        self._target = target
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, message: RunMessage) -> None:
        """Start to send; the run goes on."""

        async def send() -> None:
            problem = await deliver(self._target, message)
            if problem is not None:
                self._on_failure(problem)

        task = asyncio.get_running_loop().create_task(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def is_sending(self) -> bool:
        """Whether messages are on their way."""
        return bool(self._tasks)

    async def finish(self) -> None:
        """Wait for messages on their way, for a bounded time."""
        if not self._tasks:
            return
        tasks = [*self._tasks]
        try:
            await asyncio.wait(tasks, timeout=END_TIMEOUT)
        finally:
            late = [task for task in tasks if not task.done()]
            for task in late:
                task.cancel()
            if late:
                self._on_failure(f"{_shown(self._target)} took longer than {END_TIMEOUT:g} s")
                await asyncio.wait(late, timeout=1.0)


async def deliver(target: str, message: RunMessage) -> str | None:
    """Send a message, with all attempts. Returns why it failed; None if it arrived."""
    body = msgspec.json.encode(message)
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(
                backoff_delay(
                    attempt - 1,
                    first=FIRST_PAUSE,
                    longest=LONGEST_PAUSE,
                    jitter=clock.random_fraction(),
                )
            )
        try:
            sent = await (_post(target, body) if is_url(target) else _run(target, body))
        except TimeoutError:
            problem = f"no answer in {ATTEMPT_TIMEOUT:g} s"
        except (OSError, CorralError, ValueError) as error:
            problem = error.message if isinstance(error, CorralError) else str(error)
        else:
            if sent is None:
                return None
            problem, may_help = sent
            if not may_help:
                break
    return f"{_shown(target)}: {problem}"


async def _post(url: str, body: bytes) -> tuple[str, bool] | None:
    """None, or why it was refused and whether another attempt may help. Raises ``TimeoutError``."""
    from corral._system.http.client import Http

    headers = {"X-Corral-Timestamp": str(int(clock.now()))}
    if secret := variable(SIGNED_WITH):
        signed = f"{headers['X-Corral-Timestamp']}.".encode() + body
        digest = hmac.digest(secret.encode(), signed, "sha256").hex()
        headers["X-Corral-Signature"] = f"sha256={digest}"
    async with (
        asyncio.timeout(ATTEMPT_TIMEOUT),
        Http(connect_timeout=ATTEMPT_TIMEOUT, read_timeout=ATTEMPT_TIMEOUT) as http,
    ):
        response = await http.post(url, body, headers)
        status = response.status
    if 200 <= status < 300:
        return None
    return f"HTTP status {status}", status >= 500 or status in (408, 425, 429)


async def _run(command: str, body: bytes) -> tuple[str, bool] | None:
    """None, or how the command failed. It is not tried again: it may have done its work. What it
    started ends with it."""
    words = ["sh", "-c", command] if _SHELL.search(command) else shlex.split(command)
    try:
        process = await Process.start(ProcessSpec(argv=words, cwd=".", env=variables(), stdin=body))
    except CorralError as error:
        return error.message, False
    try:
        async with asyncio.timeout(ATTEMPT_TIMEOUT):
            while await process.read():
                pass
            ended = await process.wait()
    except TimeoutError:
        return f"it did not end within {ATTEMPT_TIMEOUT:g} s", False
    finally:
        await process.end(GRACE)
    if ended.code == 0:
        return None
    how = f"signal {ended.signal}" if ended.code is None else f"exit code {ended.code}"
    lines = process.stderr.strip().splitlines()
    return f"{how}{f': {one_line(lines[-1][:200])}' if lines else ''}", False


def _shown(target: str) -> str:
    """The target without what may be secret: of a URL only the server, of a command its name."""
    if is_url(target):
        from urllib.parse import urlsplit

        parts = urlsplit(target)
        return f"{parts.scheme}://{parts.hostname or ''}"
    return shlex.split(target)[0]


async def send_messages(target: str, on: object, messages: Iterable[RunMessage]) -> None:
    """Send those messages of a pipeline or batch that ``notify_on`` wants; the agents of its nodes
    send their own when they need a person. Never raises, and takes a bounded time."""
    notifier = Notifier(
        target, lambda problem: warnings.warn(f"not notified: {problem}", stacklevel=2)
    )
    for message in messages:
        if wants(on, message.event):
            notifier.send(message)
    await notifier.finish()
