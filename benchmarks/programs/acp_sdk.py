"""Read many updates through the official SDK: ``acp_sdk.py FILE``.

The figure is the CPU time of this process, from the first update to the end of the agent.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

acp = import_module("acp")

AGENT = Path(__file__).with_name("acp_file_agent.py")


class Client:
    """Counts the pieces of text; the SDK calls it for each."""

    def __init__(self, expected: int) -> None:
        self.count, self.begin = 0, 0.0
        self.all = asyncio.Event()
        self._expected = expected

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.begin = self.begin or spent()
        self.count += bool(update.content.text)
        if self.count == self._expected:
            self.all.set()

    def on_connect(self, connection: Any) -> None:
        pass


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def main() -> None:
    file = sys.argv[1]
    client = Client(Path(file).read_bytes().count(b"\n"))
    argv = [sys.executable, "-S", "-E", str(AGENT), "--acp", file]
    async with acp.spawn_agent_process(client, *argv) as (connection, _):
        await connection.initialize(protocol_version=1)
        session = await connection.new_session(cwd=os.getcwd(), mcp_servers=[])
        text = [acp.text_block("go")]
        await connection.prompt(session_id=session.session_id, prompt=text)
        await asyncio.wait_for(client.all.wait(), 60)
    print(json.dumps({"cpu": spent() - client.begin, "count": client.count}))


asyncio.run(main())
