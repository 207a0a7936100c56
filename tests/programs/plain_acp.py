"""The least that is an agent: it shakes hands, opens sessions, and answers hello. With two
arguments it reports them as its name and version."""

from __future__ import annotations

import json
import sys
from typing import Any

UPDATE = {
    "sessionId": "s",
    "update": {
        "sessionUpdate": "agent_message_chunk",
        "content": {"type": "text", "text": "hello"},
    },
}
ANSWERS: dict[str, Any] = {
    "initialize": {"protocolVersion": 1, "agentCapabilities": {}},
    "session/new": {"sessionId": "s"},
    "session/prompt": {"stopReason": "end_turn"},
}
if len(sys.argv) == 3:
    ANSWERS["initialize"]["agentInfo"] = dict(zip(("name", "version"), sys.argv[1:], strict=True))


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    request = json.loads(line)
    if request.get("method") == "session/prompt":
        send(method="session/update", params=UPDATE)
    if "id" in request:
        send(id=request["id"], result=ANSWERS.get(request["method"], {}))
