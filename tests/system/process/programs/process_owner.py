"""A process that owns a run: ``process_owner.py HOW REGISTRY PROGRAM...``.

It writes ``started`` when the program has started, and then does what HOW says.
"""

import asyncio
import gc
import os
import resource
import sys
import threading
from pathlib import Path

from corral._system.process.process import Process, ProcessSpec
from corral._system.process.tree import ProcessRegistry

how, folder, *argv = sys.argv[1:]


async def start() -> Process:
    process = await Process.start(
        ProcessSpec(argv, cwd="/", env=os.environ, registry=ProcessRegistry(Path(folder)))
    )
    assert (await process.read()).startswith(b"ready\n")
    print("started", flush=True)
    return process


async def stay() -> None:
    process = await start()
    await process.wait()


async def drop() -> None:
    await start()
    gc.collect()


async def drop_while_reading() -> None:
    process = await start()
    reading = asyncio.ensure_future(process.read())
    await asyncio.sleep(0)
    reading.cancel()


async def end_below_the_soft_limit() -> None:
    """As after ``prlimit`` from outside: descriptors above the limit stay open."""
    process = await start()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    await process.end(0.2)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (3, hard)


async def end_at_the_hard_limit() -> None:
    process = await start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        await process.end(0.2)


async def start_in_a_thread_that_ends() -> None:
    stored: list[Process] = []

    async def start_and_keep() -> None:
        stored.append(await start())

    thread = threading.Thread(target=lambda: asyncio.run(start_and_keep()))
    thread.start()
    thread.join()
    print("thread over", flush=True)
    await asyncio.Event().wait()


if how == "keep-until-exit":
    stored = asyncio.run(start())
elif how == "never-close-the-loop":
    loop = asyncio.new_event_loop()
    stored = loop.run_until_complete(start())
elif how == "drop-in-a-thread":

    async def drop_elsewhere() -> None:
        holder = [await start()]
        await asyncio.to_thread(holder.clear)
        await asyncio.sleep(0)

    asyncio.run(drop_elsewhere())
else:
    ways = {
        "stay": stay,
        "drop": drop,
        "drop-while-reading": drop_while_reading,
        "soft-limit": end_below_the_soft_limit,
        "hard-limit": end_at_the_hard_limit,
        "thread": start_in_a_thread_that_ends,
    }
    asyncio.run(ways[how]())
