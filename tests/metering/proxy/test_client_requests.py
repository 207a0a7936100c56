"""The target of a request has one meaning, or is refused."""

from __future__ import annotations

import pytest

from corral._metering.proxy.client_requests import (
    LARGEST_TARGET,
    BadTarget,
    RequestTarget,
    parse_target,
)


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/v1/messages", "/v1/messages"),
        ("/v1/messages?beta=true", "/v1/messages?beta=true"),
        ("/v1beta/models/a%3AcountTokens", "/v1beta/models/a:countTokens"),
        ("/v1/%6dessages", "/v1/messages"),
        ("/v1/messages?%6bey=a%2Bb+c%26d&alt", "/v1/messages?key=a%2Bb%20c%26d&alt="),
        ("/v1/messages?a=1;b=2", "/v1/messages?a=1%3Bb%3D2"),
        ("/v1/messages?&&", "/v1/messages"),
    ],
)
def test_a_target_is_sent_as_it_was_read(target: str, sent: str) -> None:
    read = parse_target(target, "")
    assert read.encode() == sent
    assert parse_target(sent, "") == read


@pytest.mark.parametrize(
    "target",
    [
        "",
        "*",
        "/",
        "v1/messages",
        "http://other.test/v1/messages",
        "/v1/messages#/count_tokens",
        "/v1/messages?a=1#b",
        "/v1/./messages",
        "/v1/models/../files",
        "/v1/models/%2e%2E/files",
        "/v1/models/.%2e/files",
        "/v1//messages",
        "/v1/messages/",
        "/v1\\messages",
        "/v1/messages;a=b",
        "/v1/messages%3Ba=b",
        "/v1%2Fmessages",
        "/v1%5Cmessages",
        "/v1/messages%23",
        "/v1/messages%3Fa=1",
        "/v1/%256dessages",
        "/v1/messages%00",
        "/v1/messages%0a",
        "/v1/messages%20",
        "/v1/messages%c3%a9",
        "/v1/messages%ff",
        "/v1/messages%",
        "/v1/messages%4",
        "/v1/messages?a=%zz",
        "/v1/messages?a=%ff",
        "/v1/messages?a=%0d%0ab",
        "/v1/messages?a=\\",
        '/v1/messages?a="',
        "/" + "a" * LARGEST_TARGET,
    ],
)
def test_a_target_that_can_be_read_in_several_ways_is_refused(target: str) -> None:
    with pytest.raises(BadTarget):
        parse_target(target, "")


def test_a_target_is_below_the_base_url() -> None:
    assert parse_target("/a%2Fb/v1/messages", "/a%2Fb") == RequestTarget("/v1/messages")
    for other in ("/v1/messages", "/a%2Fbc/v1/messages", "/A%2fb/v1/messages", "/a%2Fb"):
        with pytest.raises(BadTarget, match="not below"):
            parse_target(other, "/a%2Fb")
