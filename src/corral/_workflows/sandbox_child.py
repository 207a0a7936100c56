"""The process in which the program of a drafted workflow runs: see ``sandboxed_program``.

The first line of its input is the program. For each further line, the ends of steps, it writes one
line: what the program does then.
"""

from __future__ import annotations

import asyncio

import msgspec

from corral._system.platform import limit_memory
from corral._system.standard_streams import StandardStreams, claimed
from corral._workflows.program import Program, load_program
from corral._workflows.program_turn import StepEnd
from corral._workflows.sandboxed_program import ChildStart
from corral.values import decode_as


async def _main() -> None:
    with claimed() as streams:
        program: Program | None = None
        rest = b""
        while data := await streams.read():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if program is None:
                    start = decode_as(line, ChildStart)
                    limit_memory(start.limit)
                    program = await load_program(start.program, start.run_id)
                else:
                    await _advance(program, line, streams)


async def _advance(program: Program, line: bytes, streams: StandardStreams) -> None:
    turn = await program.advance(decode_as(line, list[StepEnd]))
    streams.write(msgspec.json.encode(turn) + b"\n")
    await streams.drain()


if __name__ == "__main__":
    asyncio.run(_main())
