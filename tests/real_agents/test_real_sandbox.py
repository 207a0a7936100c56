"""Every agent in corral's sandbox, with a model that tries to get out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from support.real_agents import RealAgent, for_agents
from support.sandbox import needs_sandbox

import corral
from corral.testing import Turn

pytestmark = needs_sandbox

ESCAPES = """
echo inside > inside.txt
echo x > {outside}/by_shell.txt
mkdir -p {outside} && echo x > {outside}/by_mkdir.txt
ln -s {outside} link && echo x > link/by_link.txt
cat {secret} > stolen.txt
cat /proc/1/root{secret} > stolen2.txt
cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep CANARY_OF_THE_CALLER > environ.txt
(setsid sh -c 'sleep 2; echo x > {outside}/by_daemon.txt; echo x > late.txt' >/dev/null 2>&1 &)
python3 -c "
for address in (('127.0.0.1', {port}), ('1.1.1.1', 53)):
    try:
        socket.create_connection(address, 2).close(); open('connected.txt', 'w').close()
    except OSError: pass
try:
    socket.socket(socket.AF_UNIX).connect('{unix}'); open('unix.txt', 'w').close()
except OSError: pass
"
kill -9 {pid} 2>/dev/null && touch killed.txt
true
"""


@asynccontextmanager
async def listening(folder: Path) -> AsyncGenerator[tuple[int, str, list[str]]]:
    """A TCP port and a Unix socket of this machine, and who connected to them."""
    seen: list[str] = []

    async def serve_tcp(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append("tcp")
        writer.close()

    async def serve_unix(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append("unix")
        writer.close()

    path = str(folder / "socket")
    tcp = await asyncio.start_server(serve_tcp, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(serve_unix, path)
    async with tcp, unix:
        yield tcp.sockets[0].getsockname()[1], path, seen


@for_agents()
async def test_nothing_gets_out_of_the_sandbox(agent: RealAgent, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = outside / "secret.txt"
    secret.write_text("the secret\n")
    async with listening(outside) as (port, unix, seen):
        script = ESCAPES.format(
            outside=outside, secret=secret, port=port, unix=unix, pid=os.getpid()
        )
        (agent.workspace / "escape.sh").write_text(script)
        result = await agent.run(
            [Turn(calls=[agent.shell("sh escape.sh")]), Turn(text="done", repeat="forever")],
            policy=corral.Policy(read="allow", write="allow", shell="allow", network="deny"),
            sandbox="require",
        )
    assert result.status == "success", result
    here = {path.name for path in agent.workspace.iterdir()}
    assert "inside.txt" in here
    assert not here & {"connected.txt", "unix.txt", "killed.txt"}
    assert {path.name for path in outside.iterdir()} - {"socket"} == {"secret.txt"}
    for name in ("stolen.txt", "stolen2.txt", "environ.txt"):
        assert (agent.workspace / name).read_text() == ""
    assert seen == []
