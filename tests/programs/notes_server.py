"""An MCP server on stdio without a library: one tool that writes a note into the given folder.

    notes_server.py FOLDER

On start it creates ``started`` there. Its answer contains the variable NOTES_TOKEN, so that a test
can see what the server received. It ends when it is to keep the note ``crash``.
"""

import json
import os
import sys
from pathlib import Path

folder = Path(sys.argv[1])
(folder / "started").touch()

TOOL = {
    "name": "keep",
    "description": "Keeps a note.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
}

for line in sys.stdin:
    call = json.loads(line)
    if "id" not in call:
        continue
    answer: dict[str, object] | None = {}
    match call["method"]:
        case "initialize":
            answer = {
                "protocolVersion": call["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "notes", "version": "1"},
            }
        case "tools/list":
            answer = {"tools": [TOOL]}
        case "tools/call" if call["params"]["arguments"]["text"] == "crash":
            sys.exit("the disk is full")
        case "tools/call":
            (folder / "note.txt").write_text(call["params"]["arguments"]["text"])
            token = os.environ.get("NOTES_TOKEN")
            answer = {"content": [{"type": "text", "text": f"kept, with token {token}"}]}
        case "ping":
            pass
        case _:
            answer = None
    unknown = {"error": {"code": -32601, "message": "no such method"}}
    reply = unknown if answer is None else {"result": answer}
    print(json.dumps({"jsonrpc": "2.0", "id": call["id"], **reply}), flush=True)
