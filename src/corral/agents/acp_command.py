"""Any program that speaks the Agent Client Protocol, named by its command line.

Nothing is known of it, so nothing is assumed: it gets a private folder for
temporary files, every permission it asks for is put to the policy, and what it
does without asking cannot be stopped. ``keyed_agent`` is for one of which more is
known: the base of its record.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from msgspec.structs import replace

from corral import errors
from corral.agents.shared import exit_errors, launch_checks
from corral.agents.shared.tool_allowlist import SHELL_REACHES_NETWORK
from corral.agents.spec import (
    ACP_OPTIONS,
    AcpTransport,
    AgentSpec,
    CompiledPolicy,
    Ending,
    Launch,
    LaunchContext,
    PolicyRow,
)
from corral.errors import ConfigError, CorralError
from corral.options import RunOptions
from corral.policy import CAPABILITIES, Capability, Policy
from corral.protocol.acp.quirks import AcpQuirks

AGENTS = ()
QUIRKS = AcpQuirks(late_updates=0.1)
"""Some agents tell the end of a turn before their last words; of this one nothing is known."""


def agent_for(command: str) -> AgentSpec:
    """The record of an agent that is nothing but its command. Raises ``ConfigError``."""
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
        compile=compile_policy,
        launch=launch,
        explain=explain,
        tools={},
        supports=ACP_OPTIONS,
        capabilities=("tools", "permissions"),
        asks=True,
        resumes=True,
    )


def keyed_agent(
    command: str,
    title: str,
    keys: tuple[str, ...],
    hint: str,
    private: Callable[[LaunchContext], tuple[dict[str, str], dict[str, str]]],
) -> AgentSpec:
    """One that needs one of these ``keys`` (``hint`` says where to get them), lives in a home of
    its own, and is not started where it would obey files of the repository's (its record's
    ``project_files``). ``private`` gives the variables and the files of its home."""
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


def compile_policy(policy: Policy, run: RunOptions) -> CompiledPolicy:
    return CompiledPolicy(tuple(_row(policy, capability) for capability in CAPABILITIES))


def _row(policy: Policy, capability: Capability) -> PolicyRow:
    verdict = policy.verdict(capability)
    if verdict == "allow":
        return PolicyRow(capability, verdict, "brokered")
    if capability == "network" and verdict == "deny" and policy.shell == "allow":
        return PolicyRow(capability, verdict, "impossible", SHELL_REACHES_NETWORK)
    note = "only where it asks: what it does without asking cannot be stopped"
    return PolicyRow(capability, verdict, "brokered", note)


def explain(ending: Ending) -> CorralError | None:
    if ending.finish is not None:
        return errors.ProcessFailed(ending.finish.message or "the agent reported an error")
    stderr = "\n".join(ending.stderr.splitlines()[-6:])
    if ending.signal is not None:
        return errors.KilledBySignal(f"the agent was killed by signal {ending.signal}")
    if ending.code in (126, 127):
        return errors.BrokenInstall(stderr or "the program could not be run")
    return errors.StreamBroken(
        f"the agent ended by itself (exit {ending.code}): {stderr}".rstrip(": ")
    )
