#!/usr/bin/env -S python3 -S -E
"""A program that speaks the Gemini CLI's lines as its prompt tells it to, a word a line."""

import json
import os
import signal
import subprocess
import sys
import time

if "--version" in sys.argv:
    print("0.61.0")
    sys.exit()


def emit(**frame: object) -> None:
    print(json.dumps({"timestamp": "2026-11-15T00:00:00.000Z", **frame}), flush=True)


SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]

for order in sys.stdin.read().splitlines():
    word, _, rest = order.partition(" ")
    match word:
        case "init":
            emit(type="init", session_id=rest or "vendor-session", model="gemini-2.5-flash")
        case "echo":
            emit(type="message", role="user", content=rest)
        case "text":
            emit(type="message", role="assistant", content=rest, delta=True)
        case "many":
            line = json.dumps({"type": "message", "role": "assistant", "content": "x" * 80})
            sys.stdout.write((line + "\n") * int(rest))
        case "use":
            tool, _, path = rest.partition(" ")
            emit(
                type="tool_use",
                tool_name=tool,
                tool_id=f"{tool}__1",
                parameters={"file_path": path},
            )
        case "used":
            emit(type="tool_result", tool_id=f"{rest}__1", status="success")
        case "result":
            stats = {"total_tokens": 30, "input_tokens": 20, "output_tokens": 8, "cached": 5}
            models = {"gemini-2.5-flash": {"output_tokens": 8}}
            emit(type="result", status=rest or "success", stats={**stats, "models": models})
        case "raw":
            print(rest, flush=True)
        case "stderr":
            print(rest, file=sys.stderr, flush=True)
        case "write":
            with open(rest, "w") as file:
                file.write("written\n")
        case "sh":
            subprocess.run(["sh", "-c", rest], check=True, stdin=subprocess.DEVNULL)
        case "argv":
            with open(rest, "w") as file:
                json.dump({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}, file)
        case "child":
            subprocess.Popen(SLEEPER)
        case "daemon":
            subprocess.Popen(SLEEPER, start_new_session=True)
        case "ignore-term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "sleep":
            time.sleep(float(rest))
        case "hang":
            time.sleep(300)
        case "die":
            os.kill(os.getpid(), int(rest))
        case "exit":
            sys.exit(int(rest))
        case _:
            pass
