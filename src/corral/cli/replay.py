"""``corral replay``: a recording as the program that it is of."""

from __future__ import annotations

import gc
import os

import click

from corral.system.cassette.replay import replay


@click.command("replay", context_settings={"ignore_unknown_options": True})
@click.argument("file")
@click.argument("args", metavar="[-- ARGUMENT…]", nargs=-1, type=click.UNPROCESSED)
def command(file: str, args: tuple[str, ...]) -> None:
    """Be the program that FILE was recorded of.

    Reads stdin and answers what was answered then, with the ids and folders of now. Where
    something else is sent than was recorded, it says what on stderr and exits with 90.
    ARGUMENTs are those the program would be given, and have to be those it was given.

    To run an agent from a recording there is `corral run --replay FILE`.
    """
    gc.enable()
    os._exit(replay(file, args))
