"""A tool server on stdio that records each use of it: ``canary_server.py FOLDER``."""

import json
import subprocess
import sys
from pathlib import Path

TEXT: dict[str, object] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}
TOOLS: list[dict[str, object]] = [
    {"name": "keep", "description": "Keeps a note.", "inputSchema": TEXT},
    {
        "name": "peek",
        "description": "Looks for a note.",
        "inputSchema": TEXT,
        "annotations": {"readOnlyHint": True, "destructiveHint": False},
    },
    {"name": "run", "description": "Runs a command.", "inputSchema": TEXT},
]


def note(name: str) -> None:
    Path(sys.argv[1], "".join(c for c in name if c.isalnum())).touch()


def answer(method: str, params: dict[str, object]) -> dict[str, object] | None:
    """The result; None for a method that this server does not have, such as ``server/discover``, by
    which a client finds out whether the server is of the newest protocol."""
    match method:
        case "ping":
            return {}
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": {"name": "canary", "version": "1"},
            }
        case "tools/list":
            return {"tools": TOOLS}
        case "resources/list":
            return {"resources": [{"uri": "canary://one", "name": "one"}]}
        case "tools/call" if params["name"] == "run":
            arguments: dict[str, str] = json.loads(json.dumps(params["arguments"]))
            done = subprocess.run(
                ["sh", "-c", arguments["text"]], capture_output=True, timeout=20, check=False
            )
            return {"content": [{"type": "text", "text": done.stdout.decode("latin-1") or "-"}]}
        case "tools/call":
            note(json.dumps(params["arguments"]).removeprefix('{"text":'))
            return {"content": [{"type": "text", "text": "kept"}]}
        case "resources/read":
            uri = str(params["uri"])
            note(uri.removeprefix("canary://"))
            return {"contents": [{"uri": uri, "text": "read"}]}
        case _:
            return None


def main() -> None:
    for line in sys.stdin:
        call = json.loads(line)
        if "id" in call:
            result = answer(call["method"], call.get("params") or {})
            unknown = {"error": {"code": -32601, "message": "no such method"}}
            reply = unknown if result is None else {"result": result}
            print(json.dumps({"jsonrpc": "2.0", "id": call["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
