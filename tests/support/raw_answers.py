"""Responses of the model server as raw text, before an SDK decodes them."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from corral.testing import Lane, ModelServer


def send(
    at: ModelServer | Lane,
    path: str,
    body: object = None,
    *,
    verb: str = "POST",
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], str]:
    """The status, the headers and the text of the answer; without ``headers``, the key is one that
    every wire takes."""
    url = urlsplit(at.url)
    connection = HTTPConnection(url.netloc, timeout=60)
    sent = {"Authorization": "Bearer k"} if headers is None else headers
    try:
        text = body if isinstance(body, str) else json.dumps(body)
        connection.request(verb, url.path + path, None if verb == "GET" else text, sent)
        answer = connection.getresponse()
        reported = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, reported, answer.read().decode()
    finally:
        connection.close()


def post(at: ModelServer | Lane, path: str, body: object) -> str:
    return send(at, path, body)[2]


def events(text: str) -> list[Any]:
    """The data of each event of a stream, which must be named for its type."""
    *frames, rest = text.split("\n\n")
    assert rest == ""
    received: list[Any] = []
    for frame in frames:
        name, data = frame.removeprefix("event: ").split("\ndata: ")
        received.append(json.loads(data))
        assert received[-1]["type"] == name
    return received
