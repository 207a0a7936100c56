"""Recording and replay: another program runs in the agent's place.

To record, the recorder starts the agent. To replay, our own program answers instead: neither the
agent nor its key is needed, and what the checks need to know of them comes from the recording.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.agents.spec import AcpTransport, AgentSpec, Ending, InProcess
from corral.errors import ConfigError, CorralError, ReplayMismatch
from corral.options import RunOptions
from corral.system import environment
from corral.system.cassette import format
from corral.system.cassette.record import RUN, SECRETS
from corral.system.cassette.replay import DIFFERS, SIGN
from corral.system.environment import Environment, variable, variables
from corral.system.programs import FoundProgram


def with_recorder(
    agent: AgentSpec, run: RunOptions, found: FoundProgram, env: Environment
) -> tuple[FoundProgram, Environment]:
    """The same program and environment, with the recorder before it."""
    path = _recording_path(agent, run.record_to or "")
    arguments = (path, str(len(found.argv)), agent.name, found.version or "")
    argv = (*_python_command("record"), *arguments, *found.argv)
    return replace(found, argv=argv), _with_recorder_env(env)


def with_replay(agent: AgentSpec, run: RunOptions) -> tuple[AgentSpec, FoundProgram, Environment]:
    """The agent, program and environment of a replay. Raises ``ConfigError`` if there is no
    recording, or if it is of another agent."""
    path = _recording_path(agent, run.replay or "")
    head = format.read(path)[0].head
    is_known = bool(agent.package.tested)  # of a mere command, the path may differ
    if is_known and head.agent is not None and head.agent != agent.name:
        raise ConfigError(
            f"{path} was recorded with {head.agent}, not with {agent.name}",
            hint=f"Replay it with {head.agent}, or record it again.",
        )
    # The keys it was recorded with, by name: an agent's launch asks for one. Those of this
    # machine, and who is signed in here, must make no difference.
    names = [name for name in agent.secret_env if name in head.secrets] or agent.secret_env[:1]
    keys = {name: f"no-key-is-needed-{name}" for name in names}
    ours = {name: value for name, value in variables().items() if name not in agent.secret_env}
    env = environment.gather(agent, run, {**ours, **keys})
    transport = agent.transport
    if isinstance(transport, AcpTransport):
        transport = replace(transport, rename_to_load=None)
    agent = replace(agent, explain=_explain(agent), credential_files=(), transport=transport)
    return (
        agent,
        FoundProgram(path, (*_python_command("replay"), path), head.version, "option"),
        _with_recorder_env(env),
    )


def _explain(agent: AgentSpec) -> Callable[[Ending], CorralError | None]:
    def explain(ending: Ending) -> CorralError | None:
        _, sign, message = ending.stderr.rpartition(SIGN)
        if ending.code == DIFFERS and sign:
            return ReplayMismatch(
                message.strip(), hint="Fix what is sent, or record the conversation again."
            )
        return agent.explain(ending)

    return explain


def _recording_path(agent: AgentSpec, path: str) -> str:
    if isinstance(agent.transport, InProcess):
        raise ConfigError(
            f"{agent.name} runs in this process: there is no program to record",
            hint="Use corral.testing.ModelServer to script its model.",
        )
    return os.path.abspath(os.path.expanduser(path))


def _with_recorder_env(env: Environment) -> Environment:
    """The environment with the variables for the recorder and the player, which do not pass them
    on to the agent."""
    run = variable(RUN) or os.urandom(8).hex()
    return replace(env, values={**env.values, RUN: run, SECRETS: json.dumps(env.secrets)})


def _python_command(module: str) -> tuple[str, ...]:
    """A command that runs a module of this corral with our interpreter, and imports nothing from
    the workspace. corral comes after the standard library in ``sys.path``, because a package
    beside it may have the name of a standard module, and before other installed packages."""
    homes = [str(Path(__file__).parents[2]), str(Path(msgspec.__file__).parents[1])]
    code = (
        "import sys; path = sys.path;"
        " at = [n for n, p in enumerate(path) if p.endswith('-packages')] or [len(path)];"
        f" path[at[0]:at[0]] = {homes!r};"
        f" from corral.system.cassette.{module} import main; main(sys.argv[1:])"
    )
    return (sys.executable, "-P", "-c", code)
