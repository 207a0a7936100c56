"""The real key is sent once, in the place where the vendor expects it."""

from __future__ import annotations

import pytest

from corral._metering.proxy.client_requests import (
    AgentRequest,
    BadRequest,
    ReceivedRequest,
    RequestCheck,
)
from corral._models.registry import find_provider

DUMMY, SECOND, REAL, OTHER = "corral-1", "corral-2", "REAL-1", "REAL-2"
PLACES = {
    "gemini": ("x-goog-api-key: KEY", "Authorization: Bearer KEY", "?key=KEY"),
    "anthropic": ("x-api-key: KEY", "Authorization: Bearer KEY"),
    "openai": ("Authorization: Bearer KEY",),
    "openai-chat": ("Authorization: Bearer KEY",),
}


def checked(vendor: str, *parts: str) -> AgentRequest:
    """A request with these headers, and parameters after a question mark."""
    query = "&".join(part[1:] for part in parts if part.startswith("?"))
    headers = [part.partition(": ") for part in parts if not part.startswith("?")]
    check = RequestCheck({DUMMY: REAL, SECOND: OTHER}, [find_provider(vendor)])
    received = ReceivedRequest(
        method="GET",
        target=f"/v1/models{'?' if query else ''}{query}",
        headers=tuple((name.encode(), value.encode()) for name, _, value in headers),
        body=b"",
        keeps_open=True,
    )
    return check.check(received, "")


def sent(request: AgentRequest) -> list[str]:
    headers = [f"{name.decode()}: {value.decode()}" for name, value in request.headers]
    return [*headers, *(f"?{name}={value}" for name, value in request.target.query)]


@pytest.mark.parametrize(
    ("vendor", "place"), [(vendor, place) for vendor in PLACES for place in PLACES[vendor]]
)
def test_a_dummy_key_is_replaced_in_its_place(vendor: str, place: str) -> None:
    request = checked(vendor, "a: 1", place.replace("KEY", DUMMY), "?b=2")
    assert sorted(sent(request)) == sorted(["a: 1", place.replace("KEY", REAL), "?b=2"])
    assert request.key == REAL
    assert REAL not in repr(request)


@pytest.mark.parametrize(
    ("vendor", "place"),
    [
        ("gemini", "x-api-key: corral-1"),
        ("gemini", "x-goog-api-key: corral-1, corral-1"),
        ("gemini", "x-goog-api-key: Bearer corral-1"),
        ("gemini", "?Key=corral-1"),
        ("gemini", "?key=corral-1x"),
        ("gemini", "?a=1;key=corral-1"),
        ("anthropic", "?key=corral-1"),
        ("anthropic", "Authorization: corral-1"),
        ("anthropic", "Authorization: Basic corral-1"),
        ("anthropic", "cookie: corral-1"),
        ("openai", "Authorization: Bearer  corral-1"),
        ("openai", "Authorization: Bearer xcorral-1"),
        ("openai", "Authorization: Bearer corral-1, Bearer x"),
        ("openai-chat", "api-key: corral-1"),
        ("openai-chat", "corral-1: x"),
    ],
)
def test_a_dummy_key_elsewhere_is_no_key_and_is_not_sent(vendor: str, place: str) -> None:
    with pytest.raises(BadRequest) as failed:
        checked(vendor, place)
    assert failed.value.status == 401
    right = PLACES[vendor][0]
    request = checked(vendor, place, right.replace("KEY", DUMMY))
    assert sent(request) == [right.replace("KEY", REAL)]


def test_the_key_is_sent_once_and_other_credentials_are_not() -> None:
    first = checked(
        "gemini",
        "X-Goog-Api-Key: another",
        "X-GOOG-api-key: corral-1",
        "x-goog-api-key: corral-1",
        "Authorization: Bearer corral-1",
        "?key=corral-1",
        "?key=another",
    )
    assert sent(first) == ["X-GOOG-api-key: REAL-1"]
    scheme = checked("openai", "authorization: bearer corral-1")
    assert sent(scheme) == ["authorization: Bearer REAL-1"]


def test_two_keys_have_one_place_each() -> None:
    request = checked("anthropic", "x-api-key: corral-2", "Authorization: Bearer corral-1")
    assert sent(request) == ["x-api-key: REAL-2", "Authorization: Bearer REAL-1"]


def test_a_parameter_that_makes_another_request_is_refused() -> None:
    for name in ("$httpMethod", "%24httpHeaders", "_method", "_METHOD"):
        with pytest.raises(BadRequest, match="another request"):
            checked("gemini", "x-goog-api-key: corral-1", f"?{name}=POST")
