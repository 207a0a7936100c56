"""Probe a program that was not tested with corral, once, in another process.

The process runs ``corral._testing.probe`` with a temporary home and a short list of variables: no
key, login or setting of the user is there, and the model is a scripted server of that process.
Processes that need the same probe wait for the first one. If ``probe`` is cancelled, if a part of
it takes more than ``LONGEST_PART`` seconds, or all of it more than ``LONGEST``, everything that it
started is ended, its folder is removed and nothing is stored.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import msgspec

from corral._agents.proof import ProbeCheck, Verdict
from corral._agents.spec import AgentSpec
from corral._system import clock, paths, platform, program_files, programs, proofs
from corral._system.process.process import Process, ProcessSpec
from corral._system.process.tree import ProcessRegistry
from corral._system.programs import FoundProgram
from corral._system.threads import in_thread
from corral.errors import NotProven
from corral.values import decode_as
from corral.version import __version__

_log = logging.getLogger("corral.probe")

LONGEST = 60.0
"""Seconds that a probe may take. It takes about ten on a machine that is not busy; on a busy one it
may take longer, up to ``LONGEST_BUSY`` times."""
LONGEST_PART = 30.0
"""Seconds that one of its parts may take: a few prompts. It takes about four."""
LONGEST_BUSY = 5.0
MODULE = "corral._testing.probe"


class ProbeRequest(msgspec.Struct, frozen=True):
    """What the process of a probe gets as its argument."""

    agent: str
    program: str
    part_seconds: float


async def probe(agent: AgentSpec, program: FoundProgram, *, renew: bool = False) -> Verdict:
    """The stored verdict about this program; without one, or with ``renew``, that of a new probe.
    Raises ``NotProven`` if the probe cannot be made, and ``StorageFailed``."""
    digest = await in_thread(program_files.digest, agent, program)
    async with proofs.locked(agent, digest):
        known = None if renew else proofs.read(agent, digest)
        if known is not None:
            return known
        name = f"{agent.title} {program.version or ''}".strip()
        # The command line prints this message (``LiveProgress.announce_probes``).
        why = "" if renew else ", once: it was not tested with corral"
        _log.info("probing %s%s (about 10 s, no key is used)", name, why)
        watch = clock.Stopwatch()
        checks = await _run_probe(agent, program)
        verdict = Verdict(
            agent=agent.name,
            version=program.version,
            program=program.path,
            digest=digest,
            date=clock.now(),
            seconds=round(watch.seconds, 1),
            checks=checks,
            corral=__version__,
        )
        proofs.write(agent, verdict)
        return verdict


async def _run_probe(agent: AgentSpec, program: FoundProgram) -> tuple[ProbeCheck, ...]:
    patience = min(platform.load_per_processor(), LONGEST_BUSY)
    longest, longest_part = round(LONGEST * patience), round(LONGEST_PART * patience)
    with proofs.probe_home() as (folder, env):
        asked = ProbeRequest(agent.name, program.path, longest_part)
        request = msgspec.json.encode(asked).decode()
        spec = ProcessSpec(
            # -P: the working directory must not decide what is imported.
            argv=(sys.executable, "-P", "-m", MODULE, request),
            cwd=folder,
            env=env,
            registry=ProcessRegistry(paths.process_registry()),
        )
        process = await Process.start(spec)
        try:
            async with asyncio.timeout(longest):
                output = bytearray()
                while piece := await process.read():
                    output += piece
                ended = await process.wait()
        except TimeoutError:
            why = f"it did not end within {longest} s"
            raise _not_made(agent, program, why) from None
        finally:
            await process.end(grace=1.0)
        try:
            return decode_as(bytes(output), tuple[ProbeCheck, ...])
        except msgspec.MsgspecError as error:
            why = process.stderr.strip()[-2000:] or f"exit {ended.code}, signal {ended.signal}"
            raise _not_made(agent, program, why) from error


def _not_made(agent: AgentSpec, program: FoundProgram, why: str) -> NotProven:
    return NotProven(
        f"{agent.title} {program.version or ''} at {program.path} was not tested with corral, and"
        f" could not be probed: {why}",
        hint=f"Use the tested version: {programs.install_command(agent)}   (`corral agents probe"
        f" {agent.name}` tries again, if this machine was busy; or --probe trust)",
        agent_version=program.version,
    )
