"""The anthropic SDK against a scripted server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from corral.testing import Lane, ModelServer, Turn

if TYPE_CHECKING:
    from anthropic import Anthropic
    from anthropic.types import Message, MessageParam

MODEL = "claude-opus-5"
HELLO: list[MessageParam] = [{"role": "user", "content": "hello"}]


@contextmanager
def client(at: ModelServer | Lane, key: str = "k") -> Generator[Anthropic, None, None]:
    from anthropic import Anthropic

    with Anthropic(base_url=at.url, api_key=key, max_retries=0, timeout=60) as sdk:
        yield sdk


def ask(at: ModelServer | Lane, messages: list[MessageParam] = HELLO, **more: Any) -> Message:
    with client(at) as sdk:
        given: dict[str, Any] = {"model": MODEL, "max_tokens": 1000, "messages": messages}
        return cast("Message", sdk.messages.create(**given, **more))


def stream(at: ModelServer | Lane, messages: list[MessageParam] = HELLO, **more: Any) -> Message:
    """What the SDK makes of the events."""
    with (
        client(at) as sdk,
        sdk.messages.stream(model=MODEL, max_tokens=1000, messages=messages, **more) as events,
    ):
        return events.get_final_message()


def ask_both_ways(turn: Turn, **more: Any) -> Message:
    """The response, after a check that the streamed and the unstreamed one are equal."""
    with ModelServer([turn] * 2) as server:
        unstreamed, streamed = ask(server, **more), stream(server, **more)
        assert server.failures == []
    # The ids differ: they belong to two requests.
    assert streamed.to_dict() | {"id": unstreamed.id} == unstreamed.to_dict()
    return unstreamed
