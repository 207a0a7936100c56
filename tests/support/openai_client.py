"""The openai SDK's Responses against a scripted server."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from openai import OpenAI
from openai.types.responses import Response

from corral.testing import Lane, ModelServer, Turn

MODEL = "gpt-5.5"
SEALED = ["reasoning.encrypted_content"]


@contextmanager
def client(at: ModelServer | Lane, key: str = "k") -> Generator[OpenAI, None, None]:
    url = at.env["OPENAI_BASE_URL"]
    with OpenAI(base_url=url, api_key=key, max_retries=0, timeout=10) as sdk:
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
    """What the last event says, which must be all that the ones before it said."""
    told = events(at, input, **more)
    last: Response = told[-1].response
    done = [event.item for event in told if event.type == "response.output_item.done"]
    assert [item.to_dict() for item in done] == [item.to_dict() for item in last.output]
    texts = [event.delta for event in told if event.type == "response.output_text.delta"]
    assert "".join(texts) == last.output_text
    return last


def ask_both_ways(turn: Turn, **more: Any) -> Response:
    """The answer, after seeing that it is the same streamed and whole."""
    with ModelServer([turn] * 2) as server:
        whole, streamed = ask(server, **more), stream(server, **more)
        assert server.failures == []
    # Ids are of the request, which says whether to stream.
    assert without_ids(streamed) == without_ids(whole)
    return whole


def without_ids(response: Response) -> dict[str, Any]:
    told: dict[str, Any] = response.to_dict()
    return told | {"id": "", "output": [item | {"id": ""} for item in told["output"]]}
