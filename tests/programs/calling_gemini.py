#!/usr/bin/env -S python3 -S -E
"""A program like the Gemini CLI, whose prompt says how many sub-agents it has and how many model
calls each of them makes: ``AT_ONCE ROUNDS``. Its answer is the statuses that it got."""

import json
import os
import socket
import sys
import threading

if "--version" in sys.argv:
    print("0.61.0")
    sys.exit()

PATH = "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
BODY = json.dumps({"contents": [{"role": "user", "parts": [{"text": "go " * 400}]}]}).encode()
statuses: list[str] = []


def emit(**frame: object) -> None:
    print(json.dumps({"timestamp": "2026-11-15T00:00:00.000Z", **frame}), flush=True)


def call(rounds: int) -> None:
    """A sub-agent: one call after the other."""
    host, _, port = os.environ["GOOGLE_GEMINI_BASE_URL"].removeprefix("http://").partition(":")
    key = os.environ["GEMINI_API_KEY"]
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nx-goog-api-key: {key}\r\n"
        f"Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n"
    )
    for _ in range(rounds):
        with socket.create_connection((host, int(port))) as line, line.makefile("rb") as answer:
            line.sendall(head.encode() + BODY)
            status = answer.readline().split()[1].decode()
            answer.read()
        statuses.append(status)
        if status != "200":
            return


at_once, rounds = map(int, sys.stdin.read().split())
threads = [threading.Thread(target=call, args=[rounds]) for _ in range(at_once)]
emit(type="init", session_id="vendor-session", model="gemini-2.5-flash")
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
emit(type="message", role="assistant", content=" ".join(statuses), delta=True)
emit(type="result", status="success", stats={})
sys.exit(0 if set(statuses) == {"200"} else 1)
