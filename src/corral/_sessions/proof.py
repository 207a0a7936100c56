"""What is known about an agent's program before it is used, and the probe where nothing is.

Theory of operation
-------------------
``find_proof`` is a part of ``prepare``: it reads and starts nothing but the stored verdict. Its
answers, in this order:

- no answer, if there is no program: the built-in agent, a person, a replay;
- ``trusted``: the caller says so (``probe="trust"``);
- ``untested``: the agent has no description of how its model is scripted, as a user's own command;
  no probe is possible, and the program is used as it is;
- ``tested``: corral installed this program, or its files have a digest of ``Package.digests``;
- ``probed``: a probe of these files is stored. If the program does not work, ``NotProven`` is
  raised; what it does not enforce is in ``ProgramProof.failed``;
- otherwise the option ``probe`` decides: ``require`` raises ``NotProven``, ``never`` means
  ``untested``, and with ``once`` the program ``needs_probe``. Then the session, or the pool, calls
  ``corral._sessions.probing`` when it opens, and prepares again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from corral._agents.proof import Verdict
from corral._agents.spec import AgentSpec, InProcess
from corral._system import clock, program_files, programs, proofs
from corral._system.programs import FoundProgram
from corral.errors import NotProven
from corral.options import RunOptions
from corral.values import Proof

_SHOWN = 3
"""Failed checks in the message of an error."""


class ProgramProof(msgspec.Struct, frozen=True):
    """What is known about the program of a run."""

    proof: Proof | None = None
    needs_probe: bool = False
    failed: Mapping[str, str] = {}
    """Rows of the policy that the program itself does not enforce, with what was seen."""


def find_proof(agent: AgentSpec, run: RunOptions, program: FoundProgram) -> ProgramProof:
    """What is known about this program. Raises ``NotProven``, and ``BrokenInstall`` for files that
    cannot be read."""
    if run.replay is not None or isinstance(agent.transport, InProcess) or not agent.programs:
        return ProgramProof()
    if run.probe == "trust":
        return ProgramProof("trusted")
    if not can_probe(agent):
        return ProgramProof("untested")
    if programs.is_managed(agent, program):
        return ProgramProof("tested")
    if run.probe == "never":
        digest = program_files.known_digest(agent, program)
    else:
        digest = program_files.digest(agent, program)
    if digest is None:
        return ProgramProof("untested")
    if digest in agent.package.digests:
        return ProgramProof("tested")
    verdict = proofs.read(agent, digest)
    if verdict is None:
        if run.probe == "require":
            raise _not_probed(agent, program)
        return ProgramProof("untested", needs_probe=run.probe == "once")
    if verdict.broken:
        raise not_passed(agent, verdict)
    failed = dict(verdict.failed_rows)
    seen = failed.pop("default model", None)
    if seen is not None and run.model is None:
        raise NotProven(
            f"{agent.title} {program.version} does not use the model of the tested versions if"
            f" none is named: {seen}",
            hint="Name the model: --model (model=).",
            agent_version=program.version,
        )
    return ProgramProof("probed", failed=failed)


def stored_verdict(agent: AgentSpec, program: FoundProgram) -> Verdict | None:
    """The stored verdict about this program; None if it was not probed, or need not be. Reads none
    of its files that was not read before."""
    if not can_probe(agent) or programs.is_managed(agent, program):
        return None
    digest = program_files.known_digest(agent, program)
    return None if digest is None else proofs.read(agent, digest)


def describe(agent: AgentSpec, program: FoundProgram) -> str | None:
    """What is known about a program, for a person; None if it is no program."""
    if isinstance(agent.transport, InProcess) or not agent.programs:
        return None
    if not can_probe(agent):
        return "untested"
    if programs.is_managed(agent, program):
        return "tested"
    digest = program_files.known_digest(agent, program)
    if digest in agent.package.digests:
        return "tested"
    verdict = stored_verdict(agent, program)
    if verdict is None:
        return "untested"
    failed = f", failed: {len(verdict.failed)}" if verdict.failed else ""
    return f"probed {clock.date_of(verdict.date)}{failed}"


def can_probe(agent: AgentSpec) -> bool:
    """Whether the model of this agent can be scripted, and its versions are tested."""
    return agent.probe is not None and bool(agent.package.tested)


def not_passed(agent: AgentSpec, verdict: Verdict) -> NotProven:
    """The error for a program that does not work as corral needs it."""
    broken = [f"{check.check}: {check.seen}" for check in verdict.broken]
    more = f", and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    return NotProven(
        f"{agent.title} {verdict.version or ''} at {verdict.program} did not pass the probe with a"
        f" scripted model: {'; '.join(broken[:_SHOWN])}{more}",
        hint=f"Use the tested version: {programs.install_command(agent)}   (`corral agents probe"
        f" {agent.name}` probes this one again; --probe trust uses it all the same)",
        agent_version=verdict.version,
    )


def _not_probed(agent: AgentSpec, program: FoundProgram) -> NotProven:
    return NotProven(
        f"{agent.title} {program.version or ''} at {program.path} was not tested with corral, and"
        " no probe of it is stored (probe=require)",
        hint=f"Run: corral agents probe {agent.name}, or: {programs.install_command(agent)}",
        agent_version=program.version,
    )
