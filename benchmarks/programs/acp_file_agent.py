#!/usr/bin/env -S python3 -S -E
"""An ACP agent that answers each prompt with the bytes of a file: ``acp_file_agent.py --acp FILE``.

The file has the updates of a session ``s``. For another session its name is put in their place.
"""

import json
import sys
from pathlib import Path
from typing import Any

BLOCK = Path(sys.argv[2]).read_bytes()


def main() -> None:
    out, opened = sys.stdout.buffer, 0
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method = message.get("method")
        result: dict[str, Any] = {}
        if method == "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}
        elif method == "session/new":
            result = {"sessionId": f"s{opened}" if opened else "s"}
            opened += 1
        elif method == "session/prompt":
            name = json.dumps(message["params"]["sessionId"]).encode()
            own = b'"sessionId":' + name
            out.write(BLOCK if name == b'"s"' else BLOCK.replace(b'"sessionId":"s"', own))
            result = {"stopReason": "end_turn"}
        if "id" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            out.write(json.dumps(reply).encode() + b"\n")
            out.flush()


main()
