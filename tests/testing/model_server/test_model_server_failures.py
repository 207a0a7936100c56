"""Failures of a scripted model, as the vendors' SDKs raise them: the same for each wire."""

# The SDKs are typed in part only.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from support.anthropic_client import HELLO
from support.anthropic_client import MODEL as CLAUDE
from support.anthropic_client import client as anthropic_client
from support.openai_client import MODEL as GPT
from support.openai_client import client as openai_client
from support.raw_answers import post, send

from corral.testing import Lane, ModelServer, Turn, fail, hang, say

pytestmark = pytest.mark.usefixtures("anthropic_sdk")
GEMINI = "gemini-2.5-flash"


@contextmanager
def connected(wire: str, server: ModelServer | Lane, key: str = "k") -> Iterator[Any]:
    """The vendor's SDK."""
    if wire == "gemini":
        with closing(gemini_client(server.url, key)) as sdk:
            yield sdk
    else:
        with (anthropic_client if wire == "messages" else openai_client)(server, key) as sdk:
            yield sdk


def gemini_client(url: str, key: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own source warns when it is first compiled
        from google.genai import Client, types
    return Client(api_key=key, http_options=types.HttpOptions(base_url=url))


def pieces(wire: str, sdk: Any) -> Iterator[str]:
    """The texts that the SDK reads from a stream."""
    if wire == "gemini":
        for chunk in sdk.models.generate_content_stream(model=GEMINI, contents="hi"):
            yield chunk.text
    elif wire == "messages":
        with sdk.messages.stream(model=CLAUDE, max_tokens=9, messages=HELLO) as events:
            yield from events.text_stream
    elif wire == "responses":
        for event in sdk.responses.create(model=GPT, input="hello", stream=True):
            if event.type == "response.output_text.delta":
                yield event.delta
    else:
        for part in sdk.chat.completions.create(model=GPT, messages=HELLO, stream=True):
            yield from (choice.delta.content or "" for choice in part.choices)


def ask(wire: str, sdk: Any) -> Any:
    """The text that the SDK reads from an answer in one piece."""
    if wire == "gemini":
        return sdk.models.generate_content(model=GEMINI, contents="hi").text
    if wire == "messages":
        made = sdk.messages.create(model=CLAUDE, max_tokens=9, messages=HELLO)
        return "".join(block.text for block in made.content)
    if wire == "responses":
        return sdk.responses.create(model=GPT, input="hello").output_text
    return sdk.chat.completions.create(model=GPT, messages=HELLO).choices[0].message.content


def raised_in_both_ways(wire: str, sdk: Any) -> Iterator[Exception]:
    """What the SDK raises for an answer in one piece, and then for a stream."""
    with pytest.raises(Exception, match="no") as caught:
        ask(wire, sdk)
    yield caught.value
    _, error = output(wire, sdk)
    assert error is not None
    yield error


def output(wire: str, sdk: Any) -> tuple[list[str], Exception | None]:
    """The text that came before the SDK raised, and what it raised."""
    texts: list[str] = []
    try:
        texts.extend(pieces(wire, sdk))  # keeps what came
    except Exception as error:
        return texts, error
    return texts, None


def is_a(error: BaseException | None, name: str) -> bool:
    return name in [kind.__name__ for kind in type(error).__mro__]


def facts(wire: str, error: Any) -> tuple[int, dict[str, Any]]:
    """The status and the vendor's description of an error."""
    if wire == "gemini":
        return error.code, error.details["error"]
    assert error.request_id is not None
    if wire == "messages":
        assert error.body.keys() == {"type", "error", "request_id"}
        assert (error.body["type"], error.body["request_id"]) == ("error", error.request_id)
        return error.status_code, error.body["error"]
    return error.status_code, error.body


WIRES = ("gemini", "messages", "responses", "chat")
every_wire = pytest.mark.parametrize("wire", WIRES)
PATHS = {
    "gemini": f"/v1beta/models/{GEMINI}:generateContent",
    "messages": "/v1/messages?beta=true",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
}


TURNS = {
    "quota": fail(429, "no", quota_id="day"),
    "odd": Turn(status=400, message="no", error_status="odd"),
}

# The class of the SDKs, Anthropic's type, OpenAI's type and code, Google's status.
ERRORS = """
400 BadRequestError invalid_request_error invalid_request_error - INVALID_ARGUMENT
401 AuthenticationError authentication_error authentication_error invalid_api_key UNAUTHENTICATED
403 PermissionDeniedError permission_error permission_error - PERMISSION_DENIED
404 NotFoundError not_found_error invalid_request_error model_not_found NOT_FOUND
413 APIStatusError request_too_large invalid_request_error - UNKNOWN
429 RateLimitError rate_limit_error rate_limit_error rate_limit_exceeded RESOURCE_EXHAUSTED
quota RateLimitError billing_error insufficient_quota insufficient_quota RESOURCE_EXHAUSTED
500 InternalServerError api_error server_error - INTERNAL
503 InternalServerError api_error server_error - UNAVAILABLE
529 InternalServerError overloaded_error server_error - UNKNOWN
odd BadRequestError odd invalid_request_error odd odd
"""


@every_wire
def test_an_error_is_the_sdks_own(wire: str) -> None:
    rows = [row.split() for row in ERRORS.strip().splitlines()]
    turns = [TURNS.get(row[0]) or fail(int(row[0]), "no") for row in rows]
    script = [turn for turn in turns for _ in range(2)]
    with ModelServer(script) as server, connected(wire, server) as sdk:
        for turn, (_, kind, anthropic, openai, code, google) in zip(turns, rows, strict=True):
            for error in raised_in_both_ways(wire, sdk):
                status, described = facts(wire, error)
                assert status == turn.status
                if wire == "gemini":
                    assert is_a(error, "ClientError" if status < 500 else "ServerError")
                    shown = {"code": status, "message": "no", "status": google}
                    assert described.items() >= shown.items()
                    continue
                assert is_a(error, kind), kind
                code_or_none = None if code == "-" else code
                assert described == (
                    {"type": anthropic, "message": "no"}
                    if wire == "messages"
                    else {"message": "no", "type": openai, "param": None, "code": code_or_none}
                )


@pytest.mark.parametrize(
    ("wire", "limited", "good"),
    [
        (
            "messages",
            {"anthropic-ratelimit-requests-remaining": "0"},
            ("request-id", "anthropic-ratelimit-requests-reset"),
        ),
        (
            "responses",
            {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.5s"},
            ("x-request-id", "x-ratelimit-remaining-tokens"),
        ),
        (
            "chat",
            {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.5s"},
            ("x-request-id", "x-ratelimit-remaining-tokens"),
        ),
        ("gemini", {}, ()),
    ],
)
def test_a_rate_limit_says_when_to_retry(
    wire: str, limited: dict[str, str], good: tuple[str, ...]
) -> None:
    body = {"model": "m", "messages": HELLO, "input": "hi", "max_tokens": 9, "contents": []}
    with ModelServer([fail(429, retry_after=1.5), say("a")]) as server:
        status, headers, _ = send(server, PATHS[wire], body)
        assert status == 429
        assert headers.items() >= {"retry-after": "2", **limited}.items()
        status, headers, _ = send(server, PATHS[wire], body)
    assert status == 200
    assert all(headers[name] != "0" for name in good), headers


@pytest.mark.parametrize(
    ("wire", "status", "kind", "shown", "later"),
    [
        ("gemini", 503, "ServerError", "Slow down.", "ServerError"),
        ("messages", 529, "APIStatusError", "overloaded_error", "InternalServerError"),
        ("responses", 429, "APIError", "rate_limit_exceeded", "RateLimitError"),
        ("chat", 500, "APIError", "server_error", "InternalServerError"),
    ],
)
def test_a_late_error_is_an_event_of_the_stream(
    wire: str, status: int, kind: str, shown: str, later: str
) -> None:
    turn = Turn(text=("one", "two"), status=status, late=True, message="Slow down.")
    with ModelServer([turn] * 2) as server, connected(wire, server) as sdk:
        texts, error = output(wire, sdk)
        assert texts == ["one", "two"]
        assert is_a(error, kind)
        assert shown in str(getattr(error, "body", error))
        assert "Slow down." in str(error)
        with pytest.raises(Exception, match=r"Slow down\.") as caught:
            ask(wire, sdk)
        assert is_a(caught.value, later)


@pytest.mark.parametrize(
    ("wire", "headers"),
    [
        ("gemini", {"x-goog-api-key": "right"}),
        ("messages", {"x-api-key": "right"}),
        ("messages", {"authorization": "Bearer right"}),
        ("responses", {"authorization": "Bearer right"}),
        ("responses", {"api-key": "right"}),
        ("chat", {"authorization": "Bearer right"}),
        ("chat", {"api-key": "right"}),
    ],
)
def test_a_key_is_accepted_in_the_headers_of_the_vendor(wire: str, headers: dict[str, str]) -> None:
    body = {"model": "m", "messages": HELLO}
    with ModelServer([say("a")], key="right") as server:
        assert send(server, PATHS[wire], body, headers={})[0] == 401
        assert send(server, PATHS[wire], body, headers=headers)[0] == 200


@pytest.mark.parametrize(
    ("wire", "kind", "status", "message"),
    [
        ("gemini", "ClientError", 400, "API key not valid"),
        ("messages", "AuthenticationError", 401, "invalid x-api-key"),
        ("responses", "AuthenticationError", 401, "Incorrect API key"),
        ("chat", "AuthenticationError", 401, "Incorrect API key"),
    ],
)
def test_a_wrong_key_is_refused_in_the_vendors_form(
    wire: str, kind: str, status: int, message: str
) -> None:
    with ModelServer([say("a")], key="right") as server:
        with (
            connected(wire, server, "wrong") as sdk,
            pytest.raises(Exception, match=message) as caught,
        ):
            ask(wire, sdk)
        assert is_a(caught.value, kind)
        assert facts(wire, caught.value)[0] == status
        with connected(wire, server, "right") as sdk:
            assert ask(wire, sdk) == "a"


@pytest.mark.parametrize(
    ("wire", "body", "message"),
    [
        ("messages", "{", "not valid JSON"),
        ("messages", "[]", "not an object"),
        ("messages", {}, "model: Field"),
        ("responses", "{", "could not parse"),
        ("responses", "[]", "not an object"),
        ("responses", {}, "'model'"),
        ("chat", "{", "could not parse"),
        ("chat", "[]", "not an object"),
        ("chat", {"messages": HELLO}, "a model"),
    ],
)
def test_invalid_requests_are_refused_and_recorded(wire: str, body: object, message: str) -> None:
    with ModelServer([say("a")]) as server:
        refused = json.loads(post(server, PATHS[wire], body))
        assert message in refused["error"]["message"]
        assert refused.get("type") == ("error" if wire == "messages" else None)
        assert len(server.failures) == 1
        assert send(server, PATHS[wire], verb="GET")[0] == 405


@every_wire
def test_an_exhausted_script_is_an_error_of_the_wire(wire: str) -> None:
    message = r"exhausted after 0 turns; add one, or set restart \(lane mine\)"
    with ModelServer([]) as server, connected(wire, server.lane("mine")) as sdk:
        with pytest.raises(Exception, match=message) as caught:
            ask(wire, sdk)
        assert is_a(caught.value, "ClientError" if wire == "gemini" else "BadRequestError")


@pytest.mark.parametrize(
    ("wire", "kind", "malformed", "size", "nonsense"),
    [
        ("gemini", "RemoteProtocolError", "UnknownApiResponseError", 250, b"data: x\n\n"),
        (
            "messages",
            "RemoteProtocolError",
            "JSONDecodeError",
            650,
            b"event: content_block_delta\ndata: x\n\n",
        ),
        (
            "responses",
            "APIConnectionError",
            "JSONDecodeError",
            1900,
            b"event: response.output_text.delta\ndata: x\n\n",
        ),
        ("chat", "APIConnectionError", "JSONDecodeError", 400, b"data: x\n\n"),
    ],
)
def test_a_broken_or_malformed_stream_makes_the_sdk_raise(
    wire: str, kind: str, malformed: str, size: int, nonsense: bytes
) -> None:
    turns = [
        Turn(text=("one", "two"), cut=1),
        Turn(text=("one", "two"), cut_bytes=size),
        Turn(text="one", malformed="json"),
        Turn(text="one", malformed=nonsense),
    ]
    with ModelServer(turns) as server, connected(wire, server) as sdk:
        ends = [output(wire, sdk) for _ in turns]
    assert [texts for texts, _ in ends] == [["one"]] * 4
    for (_, error), wanted in zip(ends, [kind, kind, malformed, malformed], strict=True):
        assert is_a(error, wanted), error


@every_wire
def test_a_broken_unstreamed_answer_makes_the_sdk_raise(wire: str) -> None:
    kinds = {
        "RemoteProtocolError" if wire == "gemini" else "APIConnectionError": [
            Turn(cut=0),
            Turn(text="whole", cut=1),
        ],
        "JSONDecodeError": [Turn(malformed="json")],
    }
    for kind, turns in kinds.items():
        with ModelServer(turns) as server, connected(wire, server) as sdk:
            for _ in turns:
                with pytest.raises(Exception, match=r".") as caught:
                    ask(wire, sdk)
                assert is_a(caught.value, kind)


@every_wire
def test_an_html_page_of_a_proxy_is_not_a_stream(wire: str) -> None:
    with ModelServer([Turn(malformed="html")]) as server, connected(wire, server) as sdk:
        texts, error = output(wire, sdk)
    assert texts == []
    assert is_a(error, "UnknownApiResponseError" if wire == "gemini" else "NoneType")


@every_wire
def test_a_hang_after_the_first_text(wire: str) -> None:
    with (
        ThreadPoolExecutor() as pool,
        ModelServer([hang("first")]) as server,
        connected(wire, server) as sdk,
    ):
        texts = pieces(wire, sdk)
        assert pool.submit(next, texts).result(60) == "first"
        with pytest.raises(TimeoutError):
            pool.submit(next, texts).result(0.3)
