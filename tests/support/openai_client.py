"""The openai SDK's Responses against a scripted server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from corral.testing import Lane, ModelServer, Turn

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.responses import Response

MODEL = "gpt-5.5"
SEALED = ["reasoning.encrypted_content"]


@contextmanager
def client(at: ModelServer | Lane, key: str = "k") -> Generator[OpenAI, None, None]:
    from openai import OpenAI

    url = at.env["OPENAI_BASE_URL"]
    with OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60) as sdk:
        yield sdk


def ask(at: ModelServer | Lane, input: Any = "hello", **more: Any) -> Response:
    with client(at) as sdk:
        return cast("Response", sdk.responses.create(model=MODEL, input=input, **more))


def events(at: ModelServer | Lane, input: Any = "hello", **more: Any) -> list[Any]:
    """As the SDK reads them."""
    with client(at) as sdk:
        given: dict[str, Any] = {"model": MODEL, "input": input, "stream": True}
        return list(cast("Any", sdk.responses.create(**given, **more)))


def stream(at: ModelServer | Lane, input: Any = "hello", **more: Any) -> Response:
    """The response in the last event, after a check that it equals the events before it."""
    sent = events(at, input, **more)
    last: Response = sent[-1].response
    done = [event.item for event in sent if event.type == "response.output_item.done"]
    assert [item.to_dict() for item in done] == [item.to_dict() for item in last.output]
    texts = [event.delta for event in sent if event.type == "response.output_text.delta"]
    assert "".join(texts) == last.output_text
    return last


def ask_both_ways(turn: Turn, **more: Any) -> Response:
    """The response, after a check that the streamed and the unstreamed one are equal."""
    with ModelServer([turn] * 2) as server:
        unstreamed, streamed = ask(server, **more), stream(server, **more)
        assert server.failures == []
    # The ids differ: they belong to two requests.
    assert without_ids(streamed) == without_ids(unstreamed)
    return unstreamed


def without_ids(response: Response) -> dict[str, Any]:
    fields: dict[str, Any] = response.to_dict()
    return fields | {"id": "", "output": [item | {"id": ""} for item in fields["output"]]}
