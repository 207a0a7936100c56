"""``corral replay``: act as a recorded program."""

from __future__ import annotations

import gc
import os

import click

from corral.system.cassette.replay import replay


@click.command("replay", context_settings={"ignore_unknown_options": True})
@click.argument("file")
@click.argument("args", metavar="[-- ARGUMENT…]", nargs=-1, type=click.UNPROCESSED)
def command(file: str, args: tuple[str, ...]) -> None:
    """Play back the program that FILE is a recording of.

    Reads stdin and answers as recorded, with the current ids and folders. If something else is
    sent than was recorded, it prints the difference on stderr and exits with 90. ARGUMENTs must
    be those of the recorded program.

    To run an agent from a recording, use `corral run --replay FILE`.
    """
    gc.enable()
    os._exit(replay(file, args))
