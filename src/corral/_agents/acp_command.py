"""Agents that are named by a command line.

A command that starts a known agent (``NAME --acp``, ``/opt/bin/NAME``) gets the spec of that agent,
with its policy, credentials and quirks. Any other program has to speak the Agent Client Protocol.
Nothing is known about it: it gets a private folder for temporary files, the policy answers its
permission requests, and what it does without asking cannot be prevented. ``keyed_agent`` makes the
base of a spec for a program about which more is known.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from corral import errors
from corral._agents.grants import Grants
from corral._agents.shared.errors import AgentErrors
from corral._agents.shared.launch import (
    find_credentials,
    refuse_project_files,
    refuse_user_settings,
)
from corral._agents.spec import (
    ACP_OPTIONS,
    AcpTransport,
    AgentControls,
    AgentSpec,
    Enforced,
    Launch,
    LaunchContext,
    TurnEnding,
)
from corral._protocol.acp.quirks import AcpQuirks
from corral.errors import ConfigError, CorralError, UnknownAgent
from corral.options import RunOptions
from corral.policy import CAPABILITIES

AGENTS = ()
_SUFFIXES = (".exe", ".cmd", ".js")
QUIRKS = AcpQuirks(late_updates=0.1, mcp_prefixes=("mcp_",))
"""Some agents report the end of a turn before their last updates; this one may do so too. Most have
this prefix in the names of tools of MCP servers, for which the protocol has no kind."""


def agent_for(command: str) -> AgentSpec:
    """The spec of an agent that is known by its command only. Raises ``ConfigError``."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        if len(command.split()) > 3:  # an apostrophe
            raise _is_a_prompt(command) from error
        raise ConfigError(f"not a command line: {command!r}: {error}") from error
    if not words:
        raise ConfigError("the agent's command is empty")
    is_command = any("/" in word or word.startswith("-") for word in words)
    if not is_command and (len(words) > 3 or words[0][:1].isupper() or command[-1] in ".?!"):
        raise _is_a_prompt(command)

    def launch(run: RunOptions, place: LaunchContext, _prompt: str, _resume: str | None) -> Launch:
        argv = (*place.program, *words[1:])
        return Launch(argv=argv, env={"TMPDIR": place.tmp}, stdin=b"")

    return AgentSpec(
        name=command,
        title=words[0],
        description="any program that speaks the Agent Client Protocol",
        transport=AcpTransport(quirks=QUIRKS),
        programs=(words[0],),
        controls=controls,
        launch=launch,
        explain=explain,
        tools={},
        supports=ACP_OPTIONS,
        capabilities=("tools", "permissions"),
        asks=True,
        tool_call_hook="decide",
        resumes=True,
    )


def _is_a_prompt(text: str) -> UnknownAgent:
    short = text if len(text) < 40 else f"{text[:39]}…"
    return UnknownAgent(
        f"{short!r} is in the place of the agent, and reads like a prompt",
        hint='The agent comes first: corral.run_sync("gemini", "PROMPT"), or'
        ' corral.run_sync(prompt="PROMPT") for the default agent.',
    )


def keyed_agent(
    command: str,
    title: str,
    keys: tuple[str, ...],
    hint: str,
    private: Callable[[LaunchContext], tuple[dict[str, str], dict[str, str]]],
) -> AgentSpec:
    """An agent that needs one of these ``keys`` (``hint`` says where to get them), has a private
    home, and is not started if it would obey files of the repository (``project_files`` of its
    spec). ``private`` returns the variables and the files of its home.

    ::

        def private(place: agents.LaunchContext) -> tuple[dict[str, str], dict[str, str]]:
            return {"MINE_HOME": place.home}, {"settings.json": "{}"}

        hint = "Set MINE_API_KEY."
        AGENTS = (agents.keyed_agent("mine --acp", "Mine", ("MINE_API_KEY",), hint, private),)
    """
    base = agent_for(command)
    program = base.programs[0]

    def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
        refuse_user_settings(run)
        refuse_project_files(run, place, f"{title} would obey this repository's own files")
        found = find_credentials(place, keys, title, hint)
        env, files = private(place)
        plain = base.launch(run, place, prompt, resume)
        env = {**plain.env, "HOME": place.home, **env}
        return replace(plain, env=env, files=files, notes=(f"authentication: {found}",))

    return replace(
        base,
        name=f"{program}-acp",
        aliases=(program,),
        title=title,
        description=f"{title}, persistent (ACP): asks for permission",
        launch=launch,
        explain=AgentErrors(title=title, program=program, key_hint=hint).explain,
        env_names=keys,
        secret_env=keys,
        supports=frozenset({"inherit", "permission_mode", "resume", "system_prompt"}),
    )


def controls(grants: Grants, run: RunOptions) -> AgentControls:
    note = "only if it asks: what it does without asking cannot be prevented"
    return AgentControls(
        enforced={name: Enforced("brokered", note) for name in CAPABILITIES},
        own_default=note,
        unhooked=("it is not known which calls it makes without asking",),
    )


def explain(ending: TurnEnding) -> CorralError | None:
    if ending.finish is not None:
        return errors.ProcessFailed(ending.finish.message or "the agent reported an error")
    stderr = "\n".join(ending.stderr.splitlines()[-6:])
    if ending.signal is not None:
        return errors.KilledBySignal(f"the agent was killed by signal {ending.signal}")
    if ending.code in (126, 127):
        return errors.BrokenInstall(stderr or "the program could not be run")
    return errors.StreamBroken(
        f"the agent ended unexpectedly (exit {ending.code}): {stderr}".rstrip(": ")
    )


def known_agent(
    command: str, known: Iterable[AgentSpec], find: Callable[[str], AgentSpec]
) -> AgentSpec | None:
    """The agent that this command starts; None if it starts another program. Raises ``ConfigError``
    for a known program with arguments that its spec does not have."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words:
        return None
    program, arguments = os.path.basename(words[0]), tuple(words[1:])
    program = next((program.removesuffix(e) for e in _SUFFIXES if program.endswith(e)), program)
    agents = [agent for agent in known if program in agent.programs]
    if not agents:
        return None
    try:
        usual = find(program)  # the agent that the program's name alone means
    except UnknownAgent:
        usual = agents[0]
    usual = usual if usual in agents else agents[0]
    persistent = (
        agent
        for agent in agents
        if isinstance(agent.transport, AcpTransport) and agent.transport.arguments == arguments
    )
    agent = next(persistent, None) if arguments else usual
    if agent is None:
        raise ConfigError(
            f"{command!r} starts {usual.title}, whose arguments corral sets itself",
            hint=f"Use --agent {usual.name} and the options of corral, such as --model and"
            " --policy; or declare the command in corral.toml to run it as it is.",
        )
    return replace(agent, program=words[0]) if os.path.dirname(words[0]) else agent
