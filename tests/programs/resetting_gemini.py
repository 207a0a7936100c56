#!/usr/bin/env -S python3 -S -E
"""A program like the Gemini CLI that resets each model call as soon as the vendor has its request:
when the file that the prompt names has one more byte. The prompt is ``CALLS FILE``, the answer how
many calls it made."""

import json
import os
import select
import socket
import struct
import sys

if "--version" in sys.argv:
    print("0.61.0")
    sys.exit()

PATH = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
BODY = json.dumps({"contents": [{"role": "user", "parts": [{"text": "x" * 200_000}]}]}).encode()


def emit(**frame: object) -> None:
    print(json.dumps({"timestamp": "2026-11-15T00:00:00.000Z", **frame}), flush=True)


def call_and_reset(number: int, file: str) -> bool:
    """Whether the vendor got the request, and the response did not begin."""
    host, _, port = os.environ["GOOGLE_GEMINI_BASE_URL"].removeprefix("http://").partition(":")
    key = os.environ["GEMINI_API_KEY"]
    head = f"POST {PATH} HTTP/1.1\r\nx-goog-api-key: {key}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as line:
        line.sendall(head.encode() + BODY)
        while os.path.getsize(file) <= number:
            if select.select([line], [], [], 0.01)[0]:
                return False
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return True


calls, file = sys.stdin.read().split()
emit(type="init", session_id="vendor-session", model="gemini-2.5-flash")
made = 0
while made < int(calls) and call_and_reset(made, file):
    made += 1
emit(type="message", role="assistant", content=str(made), delta=True)
emit(type="result", status="success", stats={})
