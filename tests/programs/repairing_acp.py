"""An agent that repairs branches in a merge queue, over ACP. It keeps both sides of a conflict, and
gives a file of ``ids/`` with an id that occurs twice another id. ``write NAME TEXT`` writes a file,
as the task of a batch. Each prompt is a line of the file
that it is called with: the session, the folder, and the first line of the prompt. With a second
argument it does something else: ``nothing``; ``markers`` leaves conflict markers; ``moves`` also
moves the branch to ``main``, in the repository beside the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LOG = Path(sys.argv[1])
HOW = sys.argv[2] if len(sys.argv) > 2 else "repairs"
folders: dict[str, str] = {}


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def keep_both(path: Path) -> None:
    lines = path.read_text().splitlines()
    if any(line.startswith("<<<<<<< ") for line in lines):
        signs = ("<<<<<<< ", "=======", ">>>>>>> ")
        kept = sorted({line for line in lines if not line.startswith(signs)})
        path.write_text("".join(f"{line}\n" for line in kept))


def repair(folder: Path, prompt: str) -> None:
    if HOW == "nothing":
        return
    if prompt.startswith("write "):
        _, name, text = prompt.split(maxsplit=2)
        (folder / name).write_text(text.splitlines()[0] + "\n")
        return
    if HOW == "markers":
        (folder / "more").write_text("more\n")
        return
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            keep_both(path)
    branch = prompt.split()[2]
    if HOW == "moves":
        words = ("git", "-C", LOG.parent / "repo", "update-ref", f"refs/heads/{branch}", "main")
        subprocess.run(words, check=True)
    own = folder / "ids" / branch.rpartition("/")[2]
    if own.exists():
        own.write_text(f"{branch}\n")


for line in sys.stdin:
    request = json.loads(line)
    params, result = request.get("params", {}), dict[str, Any]()
    match request.get("method"):
        case "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
        case "session/new":
            name = f"s{os.getpid()}"
            folders[name] = params["cwd"]
            result = {"sessionId": name}
        case "session/load":
            folders[params["sessionId"]] = params["cwd"]
        case "session/prompt":
            session, text = params["sessionId"], params["prompt"][0]["text"]
            text = text[max(0, text.find("write ")) :]  # after what a pipeline has put before it
            with LOG.open("a") as log:
                log.write(f"{session} {folders[session]} {text.splitlines()[0]}\n")
            repair(Path(folders[session]), text)
            chunk: dict[str, Any] = {"sessionUpdate": "agent_message_chunk"}
            chunk["content"] = {"type": "text", "text": "repaired"}
            send(method="session/update", params={"sessionId": session, "update": chunk})
            result = {"stopReason": "end_turn"}
        case _:
            pass
    if "id" in request:
        send(id=request["id"], result=result)
