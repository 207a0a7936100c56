"""``corral config``: which configuration files apply, what they set, and whether it is valid."""

from __future__ import annotations

import json
import os
import warnings

import click
import msgspec

from corral._cli.options import JSON, agent_option
from corral._cli.ui.tables import table
from corral._cli.ui.terminal import echo, echo_json
from corral._system import config
from corral.errors import ConfigError, CorralError
from corral.options import RunOptions


@click.group("config")
def command() -> None:
    """Show and check the configuration (corral.toml)."""


@command.command("path")
@JSON
def path(as_json: bool) -> None:
    """Print the configuration files in the order in which they apply."""
    files = config.files()
    if as_json:
        echo_json(msgspec.json.encode(files).decode())
        return
    rows = [
        (
            "read" if each.exists else "missing",
            "trusted" if each.trusted else "harmless options only",
            each.path,
        )
        for each in files
    ]
    echo(table(("state", "trust", "file"), rows))


@command.command("show")
@agent_option
@JSON
def show(agent: str | None, as_json: bool) -> None:
    """Show the options that the configuration sets for an agent."""
    name = config.find_agent(agent or config.default_agent()).name
    run = RunOptions.build(name, {}, config.load(name))
    # A policy without any setting is written as an empty table.
    values = {key: value for key, value in run.summary().items() if key != "agent" and value != {}}
    if as_json:
        echo_json(json.dumps({"agent": name, "options": values}))
    elif not values:
        echo(f"{name}: the configuration sets no options")
    else:
        rows = [(key, json.dumps(value)) for key, value in sorted(values.items())]
        echo(table(("option", f"value for {name}"), rows))


@command.command("check")
def check() -> int:
    """Check all configuration files.

    Checks syntax, keys, values, and agents that they declare."""
    files = config.existing_files()
    problems: list[str] = []
    try:
        agents = config.agents_with_settings()
    except CorralError as error:
        agents = []
        problems.append(str(error))
    for agent in agents:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                RunOptions.build(agent, {}, config.load(agent))
            except CorralError as error:
                problems.append(str(error))
        problems += [str(each.message) for each in caught]
    for problem in dict.fromkeys(problems):
        echo(f"corral: {problem}", err=True)
    if problems:
        return ConfigError.cli_exit
    names = ", ".join(os.path.relpath(each.path) for each in files) or "no file"
    echo(f"ok: {names}")
    return 0
