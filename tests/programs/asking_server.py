"""An MCP server on stdio without a library: one tool that asks the user for a color.

    asking_server.py

The tool's result is the reply that the client gave to the elicitation.
"""

import json
import sys
from typing import Any

TOOL: dict[str, Any] = {
    "name": "paint",
    "description": "Paints the wall. It asks the user for the color.",
    "inputSchema": {"type": "object", "properties": {}},
}
FORM = {
    "type": "object",
    "properties": {
        "color": {
            "type": "string",
            "title": "The color",
            "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}],
        },
        "coats": {"type": "integer", "description": "How many coats?", "default": 2},
    },
    "required": ["color"],
}


def send(message: dict[str, object]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


call_id: object = None
for line in sys.stdin:
    call = json.loads(line)
    if "method" not in call:  # the reply to the elicitation
        reply = json.dumps(call.get("result", call.get("error")))
        send({"id": call_id, "result": {"content": [{"type": "text", "text": reply}]}})
    elif call["method"] == "tools/call":
        call_id = call["id"]
        params = {"mode": "form", "message": "Which paint?", "requestedSchema": FORM}
        send({"id": "ask-1", "method": "elicitation/create", "params": params})
    elif "id" in call:
        answer: dict[str, object] = {}
        if call["method"] == "initialize":
            answer = {
                "protocolVersion": call["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "walls", "version": "1"},
            }
        elif call["method"] == "tools/list":
            answer = {"tools": [TOOL]}
        send({"id": call["id"], "result": answer})
