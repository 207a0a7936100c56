"""Any program that speaks the Agent Client Protocol, named by its command line.

Nothing is known about such a program. It gets a private folder for temporary files, the policy
answers its permission requests, and what it does without asking cannot be prevented.
``keyed_agent`` makes the base of a spec for a program about which more is known.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from msgspec.structs import replace

from corral import errors
from corral.agents.grants import Grants
from corral.agents.shared import exit_errors, launch_checks
from corral.agents.spec import (
    ACP_OPTIONS,
    AcpTransport,
    AgentSpec,
    Controls,
    Ending,
    Enforced,
    Launch,
    LaunchContext,
)
from corral.errors import ConfigError, CorralError
from corral.options import RunOptions
from corral.policy import CAPABILITIES
from corral.protocol.acp.quirks import AcpQuirks

AGENTS = ()
QUIRKS = AcpQuirks(late_updates=0.1)
"""Some agents report the end of a turn before their last updates; this one may do so too."""


def agent_for(command: str) -> AgentSpec:
    """The spec of an agent that is known by its command only. Raises ``ConfigError``."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"not a command line: {command!r}: {error}") from error
    if not words:
        raise ConfigError("the agent's command is empty")

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


def keyed_agent(
    command: str,
    title: str,
    keys: tuple[str, ...],
    hint: str,
    private: Callable[[LaunchContext], tuple[dict[str, str], dict[str, str]]],
) -> AgentSpec:
    """An agent that needs one of these ``keys`` (``hint`` says where to get them), has a private
    home, and is not started if it would obey files of the repository (``project_files`` of its
    spec). ``private`` returns the variables and the files of its home."""
    base = agent_for(command)
    program = base.programs[0]

    def launch(run: RunOptions, place: LaunchContext, prompt: str, resume: str | None) -> Launch:
        launch_checks.refuse_user_settings(run)
        launch_checks.refuse_project_files(
            run, place, f"{title} would obey this repository's own files"
        )
        found = launch_checks.find_credentials(place, keys, title, hint)
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
        explain=exit_errors.service_error_explainer(title, program, hint),
        env_names=keys,
        secret_env=keys,
        supports=frozenset({"inherit", "permission_mode", "resume", "system_prompt"}),
    )


def controls(grants: Grants, run: RunOptions) -> Controls:
    note = "only if it asks: what it does without asking cannot be prevented"
    return Controls(
        enforced={name: Enforced("brokered", note) for name in CAPABILITIES},
        own_default=note,
        unhooked=("it is not known which calls it makes without asking",),
    )


def explain(ending: Ending) -> CorralError | None:
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
