"""A program that serves on stdin and stdout what an MCP server has at a URL.

``python mcp_relay.py URL`` posts each line of its stdin to the URL, with the headers in the
variable ``CORRAL_MCP_HEADERS`` (JSON), and prints the replies, each as one line. Calls run at the
same time. It is for agents that speak ACP and take no servers over HTTP. It ends with its stdin.

It runs as a file, without site packages: the start of an agent waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

HEADERS = "CORRAL_MCP_HEADERS"
LOCAL = ("http://127.0.0.1:", "http://localhost:")


class Relay:
    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **headers,
        }
        # corral's own server must not be looked for behind the proxy of the user.
        handlers = [urllib.request.ProxyHandler({})] if url.startswith(LOCAL) else []
        self._opener = urllib.request.build_opener(*handlers)
        self._writing = threading.Lock()

    def pass_on(self, line: bytes) -> None:
        """Post one message, and print its reply. A failure is the reply."""
        message = json.loads(line)
        try:
            for data in self._post(line):
                self._print(data)
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            if "id" in message and "method" in message:
                failed = {"code": -32000, "message": f"the server cannot be reached: {error}"}
                reply = {"jsonrpc": "2.0", "id": message["id"], "error": failed}
                self._print(json.dumps(reply).encode())

    def _post(self, body: bytes) -> Iterator[bytes]:
        request = urllib.request.Request(self._url, body, self._headers)
        with self._opener.open(request) as response:
            if session := response.headers.get("Mcp-Session-Id"):
                self._headers["Mcp-Session-Id"] = session
            if response.headers.get_content_type() == "text/event-stream":
                for line in response:
                    if line.startswith(b"data:") and line[5:].strip():
                        yield line[5:].strip()
            elif data := response.read().strip():
                yield data

    def _print(self, data: bytes) -> None:
        reply: Any = json.loads(data)
        with contextlib.suppress(AttributeError, KeyError, TypeError):  # any other message
            self._headers["MCP-Protocol-Version"] = str(reply["result"]["protocolVersion"])
        with self._writing:
            sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
            sys.stdout.buffer.flush()


def main(url: str) -> None:
    relay = Relay(url, json.loads(os.environ.pop(HEADERS, "{}")))
    for line in sys.stdin.buffer:
        if not line.strip():
            continue
        message: Any = json.loads(line)
        if "id" in message and message.get("method") != "initialize":
            threading.Thread(target=relay.pass_on, args=(line,), daemon=True).start()
        else:
            relay.pass_on(line)


if __name__ == "__main__":
    main(sys.argv[1])
