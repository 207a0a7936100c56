"""``corral sessions``: stop named sessions."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import click

from corral._cli.command_types import plain_option
from corral._cli.options import completing
from corral._cli.ui.terminal import echo
from corral._sessions.warm import names as warm_names
from corral.errors import ConfigError

if TYPE_CHECKING:
    pass


@click.group("sessions")
def command() -> None:
    """Stop named sessions."""


@command.command("stop")
@click.argument("name", required=False, shell_complete=completing("names"))
@plain_option("-C --cwd", "The folder of the session.  [default: here]", default=".")
@plain_option("--all everywhere", "Stop all named sessions.")
@plain_option("--forget", "The next run with this name starts a new session.")
def stop(name: str | None, cwd: str, everywhere: bool, forget: bool) -> None:
    """Stop the background process of the named session NAME.

    It was started by corral run --session NAME. The conversation stays stored: the next run with
    this name continues it.
    """
    if everywhere == (name is not None):
        raise ConfigError("give the name of a session, or --all")
    known = warm_names.all_names()
    if name is not None:
        files = warm_names.WarmFiles.of(name, os.path.realpath(cwd))
        known = [each for each in known if each[0].folder == files.folder]
        if not known:
            raise ConfigError(
                f"no session of this folder is called {name!r}",
                hint="corral runs show ID shows the name of a session.",
            )
    from corral._sessions.warm import client

    for files, stored in known:
        stopped = asyncio.run(client.stop(files))
        if forget:
            files.meta.unlink(missing_ok=True)
        state = "stopped" if stopped else "was not running"
        echo(f"{stored.name} ({stored.cwd}) {state}{' and is forgotten' if forget else ''}")
