"""Assigns the model calls of an agent's process to the prompts that it serves.

A process of a pool may serve several prompts at the same time, and its requests do not say which
one they are for. A request belongs to the prompt whose session id it contains, or else whose text:
the history of a conversation begins with it. If that is not exactly one prompt, as with sub-agents
or with two prompts of the same text, the call is in no prompt's events, and the prompts of that
time get the usage that the agent reports (``calls_not_assigned``).
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from corral._metering.budget_gate import paused_event
from corral._metering.calls import MeteredCall
from corral._metering.proxy.open_calls import ABANDONED
from corral._protocol.ndjson import RawEvent
from corral.errors import CorralError, RateLimited
from corral.events import CALLS_NOT_ASSIGNED, Error, ModelCall

LATE_CALL_SECONDS = 2.0
"""Seconds in which a model call may end after the prompt that made it."""
UNMISTAKABLE = 24
"""Characters. A shorter prompt must be a complete string of a request, or any word might be it."""

Emit = Callable[[RawEvent], None]


class PromptCalls:
    """A prompt that makes model calls. It is held weakly: the event loop holds the log, and a
    dropped session must end its agent."""

    def __init__(self, emit: Emit, session_id: str, text: str) -> None:
        self.emit: weakref.WeakMethod[Emit] = weakref.WeakMethod(emit)
        self.session_id: bytes = session_id.encode()
        quoted = msgspec.json.encode(text)
        self.text: bytes = quoted[1:-1] if len(text) >= UNMISTAKABLE else quoted
        self.is_uncertain = False
        """A call was made that may be its own."""
        self.open_calls = 0


class CallLog:
    """Passes each model call on to the prompt that it belongs to."""

    def __init__(self) -> None:
        self._prompts: list[PromptCalls] = []
        self._ended = asyncio.Event()
        """A call has ended."""
        self.unreachable: str | None = None
        """Why the last call got no response from the vendor."""
        self.limit: RateLimited | None = None
        """The rate limit that the last call met."""

    def add(self, emit: Emit, session_id: str = "", text: str = "") -> None:
        self._prompts.append(PromptCalls(emit, session_id, text))

    def remove(self, emit: Emit) -> None:
        self._prompts = [each for each in self._prompts if each.emit() not in (None, emit)]

    def on_start(self, request: Sequence[bytes]) -> PromptCalls | None:
        """The prompt that a request, in parts, belongs to. Its call begins now."""
        prompts = self._active()
        found = prompts[0] if len(prompts) == 1 else _owner(prompts, request)
        if found is not None:
            found.open_calls += 1
            return found
        for prompt in prompts:
            if not prompt.is_uncertain and (emit := prompt.emit()) is not None:
                prompt.is_uncertain = True
                emit(
                    Error(
                        CALLS_NOT_ASSIGNED,
                        "the process serves several prompts, and it is not certain to which of them"
                        " a model call belongs: the usage is what the agent reports",
                        recoverable=True,
                        level="warning",
                        phase="response",
                    )
                )
        return None

    def on_call(self, call: MeteredCall) -> None:
        has_response = call.status is not None or call.error == ABANDONED
        self.unreachable = None if has_response else call.error
        prompt = call.owner
        if isinstance(prompt, PromptCalls):
            prompt.open_calls -= 1
            self._ended.set()
            emit = prompt.emit()
            if emit is not None and prompt in self._prompts:
                cost, first_byte = call.cost, call.first_byte
                event = ModelCall(
                    model=call.model,
                    usage=call.usage,
                    cost=replace(cost, source="metered") if cost.source == "computed" else cost,
                    side=not call.request.tools,
                    partial=call.is_partial,
                    status=call.status,
                    first_byte_ms=None if first_byte is None else round(first_byte * 1000),
                    duration_ms=round(call.duration * 1000),
                    error=call.error,
                )
                emit(event)

    async def wait_for_calls(self, emit: Emit) -> None:
        """Wait until the calls of a prompt have ended. An agent may end its turn when it has seen
        the last event of a response, before the response has ended."""
        prompt = next((each for each in self._prompts if each.emit() == emit), None)
        if prompt is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATE_CALL_SECONDS):
                while prompt.open_calls:
                    self._ended.clear()
                    await self._ended.wait()

    def on_limit(self, error: CorralError | None) -> None:
        self.limit = error if isinstance(error, RateLimited) else None

    def on_key(self, owner: object) -> None:
        """A response contained the real key. Without an owner, all prompts report it."""
        warning = Error(
            "key_in_response",
            "a response of the model's service contained the API key: it was cut before the agent"
            " got the key",
            recoverable=True,
            level="warning",
            hint="Find out which service repeats the key, and replace the key if others see its"
            " logs.",
            phase="response",
        )
        for prompt in [owner] if isinstance(owner, PromptCalls) else self._active():
            if (emit := prompt.emit()) is not None:
                emit(warning)

    def on_wait(self, text: str) -> None:
        """A model call waits until the budget is raised."""
        for prompt in self._active():
            if (emit := prompt.emit()) is not None:
                emit(paused_event(text))

    def _active(self) -> list[PromptCalls]:
        return [each for each in self._prompts if each.emit() is not None]


def _owner(prompts: Sequence[PromptCalls], request: Sequence[bytes]) -> PromptCalls | None:
    """The only prompt that the request can belong to."""

    def has(mark: bytes) -> bool:
        return any(mark in part for part in request)

    named = [each for each in prompts if each.session_id and has(each.session_id)]
    if len(named) == 1:
        return named[0]
    found = sorted((each for each in prompts if has(each.text)), key=lambda p: len(p.text))
    # A request that contains one prompt contains those that are a part of it.
    is_longest = all(
        each.text != found[-1].text and each.text in found[-1].text for each in found[:-1]
    )
    return found[-1] if found and is_longest else None
