"""A minimal run: spawn, read lines, decode each into its type, wait.

``bare_run.py PROGRAM PROMPT``
"""

from __future__ import annotations

import asyncio
import sys

import msgspec


class Init(msgspec.Struct, tag_field="type", tag="init"):
    session_id: str


class Message(msgspec.Struct, tag_field="type", tag="message"):
    role: str
    content: str


class Result(msgspec.Struct, tag_field="type", tag="result"):
    status: str


async def main() -> int:
    decode = msgspec.json.Decoder(Init | Message | Result).decode
    process = await asyncio.create_subprocess_exec(
        *sys.argv[1:], stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    if process.stdout is None:
        raise RuntimeError("no stdout")
    async for line in process.stdout:
        frame = decode(line)
        if isinstance(frame, Message):
            sys.stdout.write(frame.content)
    return await process.wait()


sys.exit(asyncio.run(main()))
