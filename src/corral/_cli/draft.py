"""``corral workflow draft`` and ``corral pipeline draft``: a model writes the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from corral._cli.command_types import SectionedCommand, option
from corral._cli.options import (
    EVERYWHERE,
    FAKE,
    JSON,
    agent_option,
    completing,
    count_option,
    given_options,
    limit_texts,
    run_options,
)
from corral._cli.starters import write_new_file
from corral._cli.ui.terminal import answer, echo, echo_json
from corral.errors import ConfigError
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._workflows.drafting import Draft, Kind


OPTIONS = tuple(name for name in EVERYWHERE if name not in ("expand_files", "system_prompt"))


class DraftFlags(RunKwargs):
    """The options of the commands."""

    agent: str | None
    use: tuple[str, ...]
    steps: int
    runs: int
    cost: float
    rounds: int
    out: str | None
    as_json: bool


def draft_command(kind: Kind, about: str) -> click.Command:
    """The command ``draft`` for files of this kind."""

    @click.command("draft", cls=SectionedCommand, help=about)
    @click.argument("goal")
    @agent_option
    @run_options(OPTIONS, texts=limit_texts("the drafting"), defaults={"timeout": "1h"})
    @option(
        "Agent",
        "--use NAME...",
        f"An agent, or a model vendor:name, that the {kind} may use.  [default: the one that"
        " writes it]",
        shell_complete=completing("agents"),
    )
    @count_option("--steps", "The most steps that it may have.", 30)
    @count_option("--runs", "The most runs of agents and models.", 12)
    @option(
        "Execution", "--cost USD", "The most that a run of it may spend.", type=float, default=5
    )
    @count_option("--rounds", "How often a draft with problems is corrected.", 3)
    @option("Output", "-o --out FILE", "Write it to this new file.  [default: stdout]")
    @JSON
    @FAKE
    def draft(goal: str, **flags: Unpack[DraftFlags]) -> None:
        path = None if flags["out"] is None else Path(flags["out"])
        if path is not None and path.exists():
            raise ConfigError(f"{path} already exists", hint="Name another file.")
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"{path.absolute().parent} is not a folder")
        made = _draft(kind, goal, flags)
        if path is not None:
            write_new_file(path, made.text)
        _show(made, path, as_json=flags["as_json"])

    return draft


def _draft(kind: Kind, goal: str, flags: DraftFlags) -> Draft:
    from corral._system import config
    from corral._workflows import drafting
    from corral._workflows.drafted import Bounds

    values: Mapping[str, object] = flags
    given: dict[str, object] = {name: values[name] or None for name in OPTIONS}
    options = given_options(given)
    agent, model = flags["agent"], options.get("model")
    writer = agent or (model if model and ":" in model else config.default_agent(model))
    bounds = Bounds(
        agents=flags["use"] or (writer,),
        steps=flags["steps"],
        runs=flags["runs"],
        cost=flags["cost"],
    )
    return drafting.draft(kind, goal, bounds, agent=agent, rounds=flags["rounds"], options=options)


def _show(made: Draft, path: Path | None, *, as_json: bool) -> None:
    if as_json:
        row = {**msgspec.to_builtins(made), "file": str(path) if path else None}
        echo_json(msgspec.json.encode(row).decode())
        return
    if path is not None:
        echo(made.text, err=True)
    for line in made.outline:
        echo(line, err=True)
    bounds = made.bounds
    echo(
        f"at most {bounds.steps} steps, {bounds.runs} runs of {', '.join(bounds.agents)},"
        f" ${bounds.cost:g}",
        err=True,
    )
    if path is None:
        answer(made.text)
        return
    echo(str(path))
    checks = " --simulate" if made.kind == "pipeline" else ""
    echo(f"Nothing has run. Read it, then: corral {made.kind} run {path}{checks}", err=True)


ABOUT = """\
Let an agent or a model write {what} for GOAL, and check it. Nothing of it runs.

The agent may read this folder, and nothing else. What a check finds goes back to it, at most
--rounds times. The file, its steps, and its bounds are shown; an existing file is not overwritten.
{more}"""
workflow = draft_command(
    "workflow",
    ABOUT.format(
        what="a workflow",
        more="A line of the file has its bounds, and makes it run in the sandbox.",
    ),
)
pipeline = draft_command(
    "pipeline",
    ABOUT.format(what="a pipeline", more="Its commands run in the sandbox, as the file says."),
)
