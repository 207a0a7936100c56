"""Responses of the model server as raw text, before an SDK decodes them."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from corral.testing import Lane, ModelServer


def post(at: ModelServer | Lane, path: str, body: object) -> str:
    """The text of the answer; the key is one that every wire takes."""
    url = urlsplit(at.url)
    connection = HTTPConnection(url.netloc, timeout=60)
    try:
        text = body if isinstance(body, str) else json.dumps(body)
        connection.request("POST", url.path + path, text, {"Authorization": "Bearer k"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


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
