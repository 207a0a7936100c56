"""A real ``corral view`` process, and sessions for it to show."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from corral import events
from corral._sessions import store
from corral.events import Event, to_json
from corral.values import Cost, FileChanged, Usage

WAIT = 60.0


class ViewServer:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], address: str, home: Path) -> None:
        self.process = process
        self.home = home
        self.address = address.strip()
        """With the token."""
        found = re.fullmatch(r"http://(\S+?):(\d+)/\?token=(\S+)", address.strip())
        assert found, address
        self.host, self.port, self.token = found[1], int(found[2]), found[3]
        self.base = f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def get(self, path: str, **params: str | int) -> Any:
        """The decoded response to a request with the token."""
        async with (
            aiohttp.ClientSession(headers=self.headers) as client,
            client.get(self.base + path, params=params) as response,
        ):
            data = await response.read()
            assert response.status == 200, (response.status, data)
            return msgspec.json.decode(data)

    async def post(self, path: str, body: object, **params: str) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession(headers=self.headers) as client,
            client.post(self.base + path, json=body, params=params) as response,
        ):
            return response.status, msgspec.json.decode(await response.read())


@contextmanager
def running_view(home: Path, *options: str) -> Generator[ViewServer]:
    """``corral view`` in its own process, ended as by Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "corral", "view", "--no-open", *options],
        env={**os.environ, "CORRAL_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield ViewServer(process, process.stdout.readline(), home)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT)


class Transcript:
    """The log of a session, written event by event."""

    def __init__(self, home: Path, id: str) -> None:
        self.id = id
        self.folder = home / "sessions" / id
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / store.EVENTS
        self._seq = 0
        self._turn = 0

    def add(self, *found: Event) -> None:
        """Append events, with their envelopes."""
        with self.path.open("ab") as file:
            for event in found:
                if isinstance(event, events.Init):
                    self._turn, self._seq = self._turn + 1, 0
                self._seq += 1
                full = msgspec.structs.replace(
                    event,
                    agent="gemini-cli",
                    seq=self._seq,
                    run_id=f"{self.id}.{self._turn}",
                    ts=event.ts or time.time(),
                )
                file.write(to_json(full) + b"\n")

    def begin(self, prompt: str = "Fix the bug") -> None:
        """The first events of a turn."""
        self.add(
            events.Init(model="gemini-3-pro", cwd="/work/project", agent_version="1.0"),
            events.Vendor("prompt", prompt),
            events.Vendor(
                "run_facts",
                {"policy": [{"capability": "write", "verdict": "deny", "enforcer": "native"}]},
            ),
        )

    def end(self, status: events.Status = "success") -> None:
        """The last event of a turn."""
        self.add(
            events.Done(
                status,
                model="gemini-3-pro",
                usage=Usage(100, 20),
                cost=Cost(0.5, "computed"),
                duration_ms=1500,
                files=(FileChanged("/work/project/a.py", "modified", 1, 1),),
            )
        )

    def save(self, title: str = "Fix the bug", status: str = "success") -> None:
        """The metadata."""
        meta = store.Meta(self.id, "gemini-cli", "/work/project", time.time(), time.time())
        meta.title, meta.status, meta.turns = title, status, self._turn
        meta.session_id = "theirs"
        store.SessionRecord(self.folder, meta).save()

    def write(self, found: Sequence[Event], prompt: str = "Fix the bug") -> None:
        """A complete session of one turn."""
        self.begin(prompt)
        self.add(*found)
        self.end()
        self.save(title=prompt[:80])


def tool_call(number: int, output: str = "done") -> list[Event]:
    """A call of a tool, and its result."""
    return [
        events.ToolUse(
            f"call-{number}", "shell", kind="execute", title="ls", input={"command": "ls"}
        ),
        events.ToolResult(f"call-{number}", "success", output=output, duration_ms=5),
    ]
