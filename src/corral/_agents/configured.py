"""Agents that are declared in a configuration file or listed in a registry of the Agent Client
Protocol.

::

    [agents.mine]
    command = "my-agent --acp"          # speaks the Agent Client Protocol
    env = ["MINE_API_KEY"]              # variables of our environment that it may see

    [agents.lines]
    command = "my-agent --json"
    transport = "stream"                # prompt on stdin, our events on stdout, one per line

A ``stream`` agent writes what ``corral run --json`` writes: events as in
``docs/events-and-results.md``, with ``done`` as the last one. Its policy cannot be enforced, so a
policy for it is advisory and needs ``strict=False``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from corral import errors
from corral._agents.acp_command import QUIRKS, agent_for, explain
from corral._agents.grants import ExceptionKind, Grants
from corral._agents.spec import (
    AcpTransport,
    AgentControls,
    AgentSpec,
    Enforced,
    Launch,
    LaunchContext,
    StreamTransport,
    TurnEnding,
)
from corral._core.nesting import decode_json
from corral._protocol.ndjson import RawEvent, Translate, TurnEnd
from corral.errors import ConfigError, CorralError, classes_by_code
from corral.events import Done, Event, Text
from corral.options import RunOptions
from corral.policy import CAPABILITIES, Capability, Enforcer
from corral.values import JsonObject, convert_to

AGENTS = ()
OWN = ("command", "transport", "title", "description", "env", "resume_flag", "model_flag")
"""Keys that describe the agent; any other key in its table is an option of its runs."""


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[agents.NAME]`` with a command."""

    command: str
    transport: Literal["acp", "stream"] = "acp"
    title: str = ""
    description: str = ""
    env: tuple[str, ...] = ()
    model_flag: str | None = None
    """The flag before the model's name."""
    resume_flag: str | None = None
    """For ``stream``: the flag before the id of the session to resume."""


def declared_agent(name: str, table: Mapping[str, object], source: str) -> AgentSpec:
    """The spec for a table that has a ``command``. Raises ``ConfigError``."""
    own = {key: value for key, value in table.items() if key in OWN}
    try:
        declared = convert_to(own, Declared)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: [agents.{name}]: {error}") from error
    base = agent_for(declared.command)
    words = shlex.split(declared.command)

    def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
        argv = [*place.program, *words[1:]]
        if declared.model_flag is not None and run.model is not None:
            argv += [declared.model_flag, run.model]
        if declared.resume_flag is not None and resume is not None:
            argv += [declared.resume_flag, resume]
        stdin = prompt.encode() if declared.transport == "stream" else b""
        return Launch(argv=tuple(argv), env={"TMPDIR": place.tmp}, stdin=stdin)

    agent = replace(
        base,
        name=name,
        title=declared.title or name,
        description=declared.description or f"declared in {source}: {declared.command}",
        launch=launch,
        env_names=declared.env,
        secret_env=tuple(key for key in declared.env if "*" not in key),
    )
    if declared.transport == "acp":
        has_flag = declared.model_flag is not None
        return replace(agent, transport=AcpTransport(quirks=QUIRKS, model_at_start=has_flag))
    return replace(
        agent,
        transport=StreamTransport(frames=Event, translator=translator),
        controls=advice,
        explain=explain_stream,
        supports=frozenset({"resume"}) if declared.resume_flag else frozenset(),
        capabilities=("tools",),
        asks=False,
        resumes=declared.resume_flag is not None,
    )


def advice(grants: Grants, run: RunOptions) -> AgentControls:
    """Corral cannot restrict the agent: only what is allowed without any limit holds. Reading and
    writing end at the workspace, unless commands may do everything anyway."""
    note = "corral cannot restrict it"
    exceptions: dict[ExceptionKind, Enforcer] = dict.fromkeys(
        ("rule", "tool", "folder", "protected", "own"), "advisory"
    )
    enforced: dict[Capability, Enforced] = {}
    for name in CAPABILITIES:
        ends = name in ("read", "write") and not grants.free_shell
        is_free = grants.of(name).default == "allow" and not ends
        enforced[name] = Enforced("native" if is_free else "advisory", note, exceptions)
    return AgentControls(enforced=enforced, own_default=note)


def translator() -> Translate:
    def translate(frames: list[Event]) -> list[RawEvent]:
        return [_raw_event(frame) for frame in frames]

    return translate


def _raw_event(event: Event) -> RawEvent:
    if isinstance(event, Text) and event.message_id is None and event.parent is None:
        return event.delta
    if not isinstance(event, Done):
        return event
    error = event.error
    return TurnEnd(
        ok=event.status == "success",
        stop_reason=event.stop_reason,
        usage=event.usage,
        cost=event.cost,
        model=event.model,
        kind=error.code if error else event.status,
        message=error.message if error else None,
    )


def explain_stream(ending: TurnEnding) -> CorralError | None:
    finish = ending.finish
    if finish is None:
        return explain(ending) or errors.StreamBroken(
            "the agent ended without a done event",
            hint="A stream agent writes our events, as corral run --json does.",
        )
    if not finish.ok:
        kind = classes_by_code().get(finish.kind or "", errors.ProcessFailed)
        return kind(finish.message or f"the agent ended as {finish.kind}")
    if ending.code:
        return errors.ProcessFailed(f"the agent reported success but exited with {ending.code}")
    if not ending.answered:
        return errors.EmptyAnswer("the agent ended its turn without any answer")
    return None


class Started(msgspec.Struct):
    """How an agent is started, in the registry's format."""

    package: str = ""
    args: tuple[str, ...] = ()


class Distribution(msgspec.Struct):
    npx: Started | None = None
    uvx: Started | None = None
    binary: JsonObject | None = None


class ListedAgent(msgspec.Struct):
    id: str
    name: str = ""
    description: str = ""
    distribution: Distribution = msgspec.field(default_factory=Distribution)


class Registry(msgspec.Struct):
    """The registry of the Agent Client Protocol; only the fields that we need."""

    agents: list[ListedAgent] = []


def listed_agent(registry: bytes, id: str, source: str) -> AgentSpec:
    """The spec for an entry of the registry. Raises ``ConfigError`` and ``UnknownAgent``."""
    try:
        entries = {e.id: e for e in decode_json(registry, Registry).agents}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: {error}") from error
    entry = entries.get(id)
    if entry is None:
        known = ", ".join(sorted(entries))
        raise errors.UnknownAgent(f"{source} lists no agent {id!r}", hint=f"It lists: {known}.")
    how = entry.distribution
    if how.npx is not None:
        argv = ["npx", "-y", how.npx.package, *how.npx.args]
    elif how.uvx is not None:
        argv = ["uvx", how.uvx.package, *how.uvx.args]
    else:
        why = "is a program to download" if how.binary else "does not say how it is started"
        raise ConfigError(
            f"{source}: {entry.id} {why}",
            hint="Install it, and name its command: --agent 'program --acp'.",
        )
    return replace(
        agent_for(shlex.join(argv)),
        name=f"acp:{entry.id}",
        title=entry.name or entry.id,
        description=entry.description or f"listed in {source}",
    )
