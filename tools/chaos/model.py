"""The scripted model of the real Gemini CLI, in its own process.

    python -m chaos.model

It prints its address. A prompt that says ``write work-1`` gets a call that writes that file.
"""

from __future__ import annotations

import re
import sys

from corral.testing import Call, ModelServer, Request, Turn, say


def answer(request: Request) -> Turn:
    found = re.findall(r"write (work-\d+)", "\n".join(request.texts))
    if not found or request.history[-1].results:
        return say("done")
    return Turn(calls=[Call("write_file", {"path": found[-1], "content": "written\n"})])


def main() -> None:
    with ModelServer(answer) as server:
        print(server.url, flush=True)
        sys.stdin.read()  # until the program that started it ends


if __name__ == "__main__":
    main()
