"""The program under test for sessions and pools: it uses them as a user's program does.

    python -m chaos.subject session|pool OPTIONS PROMPTS

It reports the status of each prompt, and descriptors that it has more at its end than at its
beginning. The reports go to their own pipe, the events to stdout. An error of corral is a
status; any other exception ends the program with a traceback, which is a fault of corral.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

from support.scripted_agent import open_descriptors

import corral
from corral._system.threads import check_descriptors
from corral.errors import CorralError
from corral.events import Event
from corral.result import Result

CLAIMS = int(os.environ.pop("CHAOS_CLAIMS"))


def claim(**facts: object) -> None:
    os.write(CLAIMS, json.dumps(facts).encode() + b"\n")


def show(event: Event) -> None:
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
        with contextlib.suppress(OSError):
            print(event.type, getattr(event, "delta", ""), flush=True)


def claim_result(work: str, result: Result[Any]) -> None:
    error = result.error.message if result.error else ""
    claim(work=work, status=result.status, error=error, text=len(result.text))


async def use_session(options: dict[str, Any], prompts: dict[str, str]) -> None:
    async with corral.session(options.pop("agent"), **options) as session:
        for work, prompt in prompts.items():
            claim_result(work, await session.run(prompt, on_event=show))


async def use_pool(options: dict[str, Any], prompts: dict[str, str]) -> None:
    async with corral.pool(options.pop("agent"), size=2, **options) as pool:

        async def run(work: str, prompt: str) -> None:
            try:
                claim_result(work, await pool.run(prompt, on_event=show))
            except CorralError as error:
                claim(work=work, status="error", error=str(error))

        await asyncio.gather(*(run(*each) for each in prompts.items()))


def main(kind: str, options: str, prompts: str) -> None:
    before = open_descriptors()
    use = {"session": use_session, "pool": use_pool}[kind]
    try:
        check_descriptors()  # for the program's own event loop
        asyncio.run(use(json.loads(options), json.loads(prompts)))
    except CorralError as error:
        claim(work="", status="error", error=str(error))
    claim(work="", status="end", left=sorted(open_descriptors() - before))


if __name__ == "__main__":
    main(*sys.argv[1:])
