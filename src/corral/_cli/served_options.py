"""The options of commands that serve callers (``corral mcp``, ``corral serve``, ``corral acp``):
what a caller may do at most, read into an ``Allowance``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from corral._cli.command_types import Decorator, all_of, option
from corral._cli.options import (
    EVERYWHERE,
    PolicyFlags,
    agent_option,
    completing,
    count_option,
    limit_texts,
    policy_options,
    read_options,
    run_options,
)
from corral._core.spending import LIMITS, pop_limits
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._serving.allowance import Allowance, CallerAnswers
    from corral.options import RunOptions

OF_CALLERS = ("cwd", "model", "expand_files", "on_budget")
"""Options of runs that these commands do not have, or not in the same way."""
GRACE = 2.0
"""Seconds for an agent to end: clients kill a server that takes much longer."""


class CallerFlags(PolicyFlags, RunKwargs):
    """What all these commands have."""

    folders: tuple[str, ...]
    depth: int


class ServedFlags(CallerFlags):
    """What a caller may do that chooses an agent for each run."""

    agents: tuple[str, ...]
    models: tuple[str, ...]
    pipelines: tuple[str, ...]
    concurrency: int
    answers: CallerAnswers


def _folder_option(text: str) -> Decorator:
    return option("Callers", "--folder folders DIR...", text, type=click.Path())


def _depth_option() -> Decorator:
    return count_option("--depth", "How many agents may have called each other.", 1)


def one_agent_options() -> Decorator:
    """The options that ``read_agent_allowance`` reads."""
    return all_of(
        (
            agent_option,
            policy_options,
            run_options(
                tuple(name for name in EVERYWHERE if name != "cwd"),
                texts=limit_texts("all sessions"),
            ),
            _folder_option("Sessions work in this folder or below.  [default: any folder]"),
            _depth_option(),
        )
    )


def served_options(command: str) -> Decorator:
    """The options that ``read_allowance`` reads."""
    return all_of(
        (
            option(
                "Agent",
                "-a --agent agents NAME...",
                "An agent that callers may run; the first is the default.  [default: each that"
                " corral knows]",
                shell_complete=completing("agents"),
            ),
            option(
                "Agent",
                "-m --model models NAME...",
                "A model that callers may choose; the first is the default.  [default: any]",
                shell_complete=completing("models"),
            ),
            policy_options,
            run_options(
                tuple(name for name in EVERYWHERE if name not in OF_CALLERS),
                texts=limit_texts("all runs"),
                defaults={"timeout": "10m", "label": command},
            ),
            _folder_option("Runs work in this folder or below.  [default: the current folder]"),
            option(
                "Callers",
                "--pipeline pipelines FILE...",
                "A pipeline that callers may run.",
                type=click.Path(),
            ),
            count_option("--concurrency", "How many runs at once.", 4),
            _depth_option(),
            option(
                "Callers",
                "--answers",
                "What callers may answer: the questions of agents, or also permission requests and"
                " gates.",
                type=click.Choice(("nothing", "questions", "all")),
                default="questions",
            ),
        )
    )


def read_allowance(flags: ServedFlags, command: str, *, keeps_runs: bool = False) -> Allowance:
    """What the options permit. Raises ``ConfigError``."""
    from corral._system import config

    options = read_options(flags)
    for name in flags["agents"]:
        config.find_agent(name)
    options.setdefault("grace", GRACE)
    pipelines: dict[str, str] = {}
    for file in flags["pipelines"]:
        name = Path(file).stem
        if name in pipelines:
            raise ConfigError(f"two pipelines are called {name}: {pipelines[name]} and {file}")
        pipelines[name] = str(Path(file).absolute())
    return replace(
        _read_common(flags, options, command, flags["folders"]),
        agents=flags["agents"],
        models=flags["models"],
        pipelines=pipelines,
        concurrency=flags["concurrency"],
        answers=flags["answers"],
        keeps_runs=keeps_runs,
    )


def read_agent_allowance(
    agent: str, flags: CallerFlags, options: RunKwargs, command: str
) -> tuple[Allowance, RunOptions]:
    """What the options, and those of corral.toml for this agent, permit: callers get this agent
    only, in any folder by default. Also the options of a run, all of them. Raises
    ``ConfigError``."""
    from corral._system import config
    from corral.options import RunOptions

    name = config.find_agent(agent).name
    run = RunOptions.build(name, options, config.load(name), "corral.toml")
    limits = {name: getattr(run, name) for name in LIMITS}
    options = {**options, **limits, "policy": run.policy, "timeout": run.timeout}  # type: ignore[typeddict-item]
    return replace(
        _read_common(flags, options, command, flags["folders"] or ("/",)), agents=(agent,)
    ), run


def _read_common(
    flags: CallerFlags, options: RunKwargs, command: str, folders: tuple[str, ...]
) -> Allowance:
    """What the options that all these commands have permit. ``options`` are those of the runs."""
    from corral._serving.allowance import DEFAULT_TIMEOUT, Allowance
    from corral.policy import Policy

    policy, timeout = options.pop("policy", None), options.pop("timeout", DEFAULT_TIMEOUT)
    return Allowance(
        set_by=f"the one who started {command}",
        sources=_sources(flags),
        policy=policy if isinstance(policy, Policy) else Policy.reads(),
        folders=folders,
        timeout=float(timeout),
        limits=pop_limits(options),
        depth=flags["depth"],
        label=options.pop("label", None) or command,
        options=options,
    )


def _sources(flags: CallerFlags) -> dict[str, str]:
    """Field of the allowance → the options that set it."""
    given = click.get_current_context().get_parameter_source
    named = {"agents": "--agent", "models": "--model", "folders": "--folder",
             "pipelines": "--pipeline", "timeout": "--timeout", "concurrency": "--concurrency",
             "depth": "--depth", "answers": "--answers",
             **{name: f"--{name.replace('_', '-')}" for name in LIMITS}}  # fmt: skip
    not_given = (None, click.core.ParameterSource.DEFAULT)
    found = {name: flag for name, flag in named.items() if given(name) not in not_given}
    shown = [f"--approve {flags['approve']}"] if flags["approve"] else []
    shown += [f"--policy {flags['policy_file']}"] if flags["policy_file"] else []
    for name in ("allow_tool", "deny_tool", "allow_host"):
        shown += [f"--{name.replace('_', '-')}"] if flags[name] else []
    return {**found, **({"policy": " ".join(shown)} if shown else {})}
