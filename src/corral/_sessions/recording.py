"""Recording and replay of what an agent's program reads and writes.

A recording is made by corral itself, outside of the sandbox, from the bytes that it sends and reads
(``ProcessSpec.recording``). So the agent needs no access to the file, and every secret that corral
knows is redacted. To replay, our own program answers in the agent's place: neither the agent nor
its key is needed, and what the checks need to know of them comes from the recording.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._agents.spec import AcpTransport, AgentSpec, InProcess, TurnEnding
from corral._core.stored_formats import RECORDING
from corral._sessions.prepared_run import PreparedRun, RecordingFile
from corral._sessions.sandbox import check_link
from corral._system import environment, fs, paths
from corral._system.cassette import format
from corral._system.cassette.format import Head, Writer
from corral._system.cassette.replay import DIFFERS, SECRETS, SIGN
from corral._system.clock import random_hex
from corral._system.environment import (
    Environment,
    SecretRedactor,
    named_secrets,
    variable,
    variables,
)
from corral._system.process.process import ProcessSpec
from corral._system.programs import FoundProgram
from corral.errors import ConfigError, CorralError, ReplayMismatch, StorageFailed
from corral.options import RunOptions


def choose_recording(agent: AgentSpec, record_to: str, cwd: str) -> RecordingFile:
    """Where a run is recorded. From now on the file is corral's own: no agent can use it. Raises
    ``ConfigError`` for a link that leads out of the workspace."""
    path = _recording_path(agent, record_to)
    check_link(path, cwd)
    paths.announce(path)
    return RecordingFile(path=path, run=_run_id())


def recorded(prepared: PreparedRun, recording: RecordingFile, spec: ProcessSpec) -> ProcessSpec:
    """The same process, with a new take in the recording. Raises ``StorageFailed``."""
    given = {**named_secrets(spec.env), **prepared.environment.secrets}
    head = Head(
        cassette=RECORDING,
        run=recording.run,
        argv=tuple(spec.argv),
        words=len(prepared.program.argv),
        places=format.places(fs.real_path(str(spec.cwd)), spec.env),
        secrets=tuple(sorted(given)),
        agent=prepared.agent.name,
        version=prepared.program.version,
    )
    # The variables of a metered agent have dummy keys: those are replaced too, because they
    # differ between runs.
    redactor = SecretRedactor(prepared.environment.redacted, named_secrets(spec.env))
    try:
        writer = Writer(recording.path, head, redactor)
    except OSError as error:
        raise StorageFailed(
            f"cannot write the recording {recording.path}: {error.strerror}",
            hint="Choose a file in a writable folder, on a disk with free space.",
        ) from error
    stdin = spec.stdin if isinstance(spec.stdin, bytes) else b""
    text = "" if format.is_conversation(stdin) else stdin.decode("utf-8", "replace")
    for named in ("\n".join(head.args), text):
        for name, content in format.named_files(named, head.places).items():
            writer.given(name, content)
    return replace(spec, recording=writer)


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
    # The environment with the variables for the player. It is corral's own program and runs
    # outside of the sandbox.
    given = {format.RUN: _run_id(), SECRETS: json.dumps(env.redacted)}
    return (
        agent,
        FoundProgram(path, (*_player_command(), path), head.version, "option"),
        replace(env, values={**env.values, **given}),
    )


def _explain(agent: AgentSpec) -> Callable[[TurnEnding], CorralError | None]:
    def explain(ending: TurnEnding) -> CorralError | None:
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


def _run_id() -> str:
    return variable(format.RUN) or random_hex(8)


def _player_command() -> tuple[str, ...]:
    """A command that runs the player of this corral with our interpreter, and imports nothing from
    the workspace. corral comes after the standard library in ``sys.path``, because a package
    beside it may have the name of a standard module, and before other installed packages."""
    homes = [str(Path(__file__).parents[2]), str(Path(msgspec.__file__).parents[1])]
    code = (
        "import sys; path = sys.path;"
        " at = [n for n, p in enumerate(path) if p.endswith('-packages')] or [len(path)];"
        f" path[at[0]:at[0]] = {homes!r};"
        " from corral._system.cassette.replay import main; main(sys.argv[1:])"
    )
    return (sys.executable, "-P", "-c", code)
