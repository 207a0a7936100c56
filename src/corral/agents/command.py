"""Any program that speaks the Agent Client Protocol, named by its command line.

Nothing is known of it, so nothing is assumed: it gets a private folder for
temporary files, every permission it asks for is put to the policy, and what it
does without asking cannot be stopped.
"""

from __future__ import annotations

import shlex

from corral import errors
from corral.agents.profile import ACP_OPTIONS, Agent, Compiled, Ending, Launch, Package, Place, Row
from corral.errors import ConfigError, CorralError
from corral.options import Run
from corral.policy import CAPABILITIES, Policy
from corral.wire.acp_quirks import Quirks

AGENTS = ()
QUIRKS = Quirks(late_updates=0.1)
"""Some agents tell the end of a turn before their last words; of this one nothing is known."""


def agent_for(command: str) -> Agent:
    """The record of an agent that is nothing but its command. Raises ``ConfigError``."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"not a command line: {command!r}: {error}") from error
    if not words:
        raise ConfigError("the agent's command is empty")

    def launch(run: Run, place: Place, _prompt: str, _resume: str | None) -> Launch:
        argv = (*place.program, *words[1:])
        return Launch(argv=argv, env={"TMPDIR": place.tmp}, stdin=b"")

    return Agent(
        name=command,
        title=words[0],
        description="any agent that speaks the Agent Client Protocol",
        transport="acp",
        programs=(words[0],),
        package=Package(npm="", tested="", minimum=""),
        compile=compile_policy,
        launch=launch,
        explain=explain,
        quirks=QUIRKS,
        tools={},
        supports=ACP_OPTIONS,
        capabilities=("tools", "permissions"),
        asks=True,
        resumes=True,
    )


def compile_policy(policy: Policy, run: Run) -> Compiled:
    note = "as far as it asks: what it does unasked cannot be stopped"
    return Compiled(
        tuple(
            Row(capability, verdict, "brokered", "" if verdict == "allow" else note)
            for capability in CAPABILITIES
            for verdict in (policy.verdict(capability),)
        )
    )


def explain(ending: Ending) -> CorralError | None:
    if ending.finish is not None:
        return errors.ProcessFailed(ending.finish.message or "the agent reported an error")
    said = "\n".join(ending.stderr.splitlines()[-6:])
    if ending.signal is not None:
        return errors.KilledBySignal(f"the agent was killed by signal {ending.signal}")
    if ending.code in (126, 127):
        return errors.BrokenInstall(said or "the program could not be run")
    return errors.StreamBroken(
        f"the agent ended by itself (exit {ending.code}): {said}".rstrip(": ")
    )
