"""A hostile agent on stdio that calls the client's file methods: ``acp_agent.py PLAN RESULTS``.

PLAN is a JSON list of steps: ``key``, ``method``, ``params``; ``ask``: request permission to edit
this path first, and make the call whatever the answer is; ``session``: a session id other than the
real one; ``late``: after the response to the prompt. Each step waits for its response. RESULTS gets
one JSON line for each step: its key and the response. It needs only the standard library.
"""

import json
import sys
from pathlib import Path
from typing import Required, TypedDict

SESSION = "attack-session"
OPTIONS = [
    {"optionId": "yes", "name": "Allow", "kind": "allow_once"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]
ANSWERS: dict[str, dict[str, object]] = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}},
    "session/new": {"sessionId": SESSION},
}


class PlannedCall(TypedDict, total=False):
    key: Required[int]
    method: Required[str]
    params: Required[dict[str, object]]
    ask: str
    session: str
    late: str


class Agent:
    def __init__(self, plan: str, results: str) -> None:
        self._steps: list[PlannedCall] = json.loads(Path(plan).read_text())
        self._results = results
        self._waiting: list[dict[str, object]] = []
        self._calls = 0

    def serve(self) -> None:
        while (message := self._next()) is not None:
            method = message.get("method")
            if method == "session/prompt":
                self._prompt(message["id"])
            elif isinstance(method, str) and "id" in message:
                _send(id=message["id"], result=ANSWERS.get(method, {}))

    def _next(self) -> dict[str, object] | None:
        if self._waiting:
            return self._waiting.pop(0)
        line = sys.stdin.readline()
        message: dict[str, object] | None = json.loads(line) if line else None
        return message

    def _prompt(self, request: object) -> None:
        steps, self._steps = self._steps, []
        for step in steps:
            if not step.get("late"):
                self._make(step)
        text = {"type": "text", "text": "Done."}
        update = {"sessionUpdate": "agent_message_chunk", "content": text}
        _send(method="session/update", params={"sessionId": SESSION, "update": update})
        _send(id=request, result={"stopReason": "end_turn"})
        for step in steps:
            if step.get("late"):
                self._make(step)

    def _make(self, step: PlannedCall) -> None:
        session = step.get("session", SESSION)
        if "ask" in step:
            call = {
                "toolCallId": f"call-{self._calls}",
                "title": "write_file",
                "kind": "edit",
                "status": "pending",
                "locations": [{"path": step["ask"]}],
                "rawInput": {"file_path": step["ask"]},
            }
            params: dict[str, object] = {
                "sessionId": session,
                "toolCall": call,
                "options": OPTIONS,
            }
            self._call("session/request_permission", params)
        response = self._call(step["method"], {"sessionId": session, **step["params"]})
        with open(self._results, "a") as file:
            file.write(json.dumps({"key": step["key"], "response": response}) + "\n")

    def _call(self, method: str, params: dict[str, object]) -> dict[str, object]:
        self._calls += 1
        mine = f"attack-{self._calls}"
        _send(id=mine, method=method, params=params)
        while line := sys.stdin.readline():
            message: dict[str, object] = json.loads(line)
            if message.get("id") == mine and "method" not in message:
                return message
            self._waiting.append(message)
        return {}


def _send(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    Agent(*sys.argv[1:3]).serve()
