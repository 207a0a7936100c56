"""``corral record``: run a program and record its input and output; play such a recording."""

from __future__ import annotations

import os

import click

from corral._cli.command_types import enable_gc, plain_option


@click.group("record")
def command() -> None:
    """Record the conversation with a program, and play it back."""


@command.command("run", context_settings={"ignore_unknown_options": True})
@plain_option("-o --output FILE", "The file to write.", required=True)
@plain_option("--agent NAME", "The agent that COMMAND is, for `run --replay`.")
@click.argument("argv", metavar="-- COMMAND…", nargs=-1, required=True, type=click.UNPROCESSED)
def run(output: str, agent: str | None, argv: tuple[str, ...]) -> None:
    """Run COMMAND and record the conversation with it.

    Input and output pass through unchanged, and so do signals and the exit code. The file has
    one JSON object per line: a header with the command and its folders; then
    {dir: in|out|err, data, t}; then the exit. Values of variables named like secrets
    (…_KEY, …_TOKEN …) are redacted in the file, not in what is passed on.

    To record the agent of a run, use `corral run --record-to FILE`.
    """
    from corral._system.cassette.record import record

    enable_gc()
    code = record(output, argv, agent=agent)
    # Not sys.exit: a thread still waits for our input, and nothing is left to flush.
    os._exit(code)


@command.command("play", context_settings={"ignore_unknown_options": True})
@click.argument("file")
@click.argument("args", metavar="[-- ARGUMENT…]", nargs=-1, type=click.UNPROCESSED)
def play(file: str, args: tuple[str, ...]) -> None:
    """Act as the program that FILE is a recording of.

    Reads stdin and answers as recorded, with the current ids and folders. If something else is
    sent than was recorded, it prints the difference on stderr and exits with 90. ARGUMENTs must
    be those of the recorded program.

    To run an agent from a recording, use `corral run --replay FILE`.
    """
    from corral._system.cassette.replay import replay

    enable_gc()
    os._exit(replay(file, args))
