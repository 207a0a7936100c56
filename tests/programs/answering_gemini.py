#!/usr/bin/env -S python3 -S -E
"""A program like the Gemini CLI, with and without ``--acp``: it sends each prompt to the model and
reports the answer. It has no tools. It starts in a fraction of the time of the CLI."""

import http.client
import json
import os
import sys
from urllib.parse import urlsplit

MODEL = "gemini-2.5-flash"

if "--version" in sys.argv:
    print("0.61.0")
    sys.exit()


def ask(prompt: str) -> str:
    """The answer of the model."""
    base = urlsplit(os.environ["GOOGLE_GEMINI_BASE_URL"])
    line = http.client.HTTPConnection(base.netloc)
    body = json.dumps({"contents": [{"role": "user", "parts": [{"text": prompt}]}]})
    path = f"{base.path}/v1beta/models/{MODEL}:streamGenerateContent?alt=sse"
    headers = {"x-goog-api-key": os.environ["GEMINI_API_KEY"], "Content-Type": "application/json"}
    line.request("POST", path, body, headers)
    answer = line.getresponse()
    assert answer.status == 200, answer.read()
    frames = [json.loads(each[6:]) for each in answer.read().splitlines() if each[:6] == b"data: "]
    parts = [part for each in frames for part in each["candidates"][0]["content"]["parts"]]
    return "".join(part["text"] for part in parts)


def send(**frame: object) -> None:
    print(json.dumps(frame), flush=True)


def answer_one_prompt() -> None:
    prompt = sys.stdin.read()
    send(type="init", session_id="vendor-session", model=MODEL)
    send(type="message", role="assistant", content=ask(prompt), delta=True)
    send(type="result", status="success", stats={})


def serve() -> None:
    """Answer requests of the Agent Client Protocol."""
    results: dict[str, object] = {
        "initialize": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}},
        "session/prompt": {"stopReason": "end_turn"},
    }
    opened = 0
    for line in sys.stdin:
        request = json.loads(line)
        method, given = request.get("method"), request.get("params", {})
        if method == "session/new":
            opened += 1
            results[method] = {"sessionId": f"s{opened}"}
        if method == "session/prompt":
            text = ask("".join(part.get("text", "") for part in given["prompt"]))
            content = {"type": "text", "text": text}
            update = {"sessionUpdate": "agent_message_chunk", "content": content}
            params = {"sessionId": given["sessionId"], "update": update}
            send(jsonrpc="2.0", method="session/update", params=params)
        if "id" in request:
            send(jsonrpc="2.0", id=request["id"], result=results.get(method, {}))


if "--acp" in sys.argv:
    serve()
else:
    answer_one_prompt()
