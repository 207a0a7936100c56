"""``corral record``: run a program and record its input and output."""

from __future__ import annotations

import gc
import os

import click

from corral.system.cassette.record import record


@click.command("record", context_settings={"ignore_unknown_options": True})
@click.option("-o", "--output", required=True, metavar="FILE", help="The file to write.")
@click.option("--agent", metavar="NAME", help="The agent that COMMAND is, for `run --replay`.")
@click.argument("argv", metavar="-- COMMAND…", nargs=-1, required=True, type=click.UNPROCESSED)
def command(output: str, agent: str | None, argv: tuple[str, ...]) -> None:
    """Run COMMAND and record the conversation with it.

    Input and output pass through unchanged, and so do signals and the exit code. The file has
    one JSON object per line: a header with the command and its folders; then
    {dir: in|out|err, data, t}; then the exit. Values of variables named like secrets
    (…_KEY, …_TOKEN …) are redacted in the file, not in what is passed on.

    To record the agent of a run, use `corral run --record-to FILE`.
    """
    gc.enable()  # it may take long
    code = record(output, argv, agent=agent)
    # Not sys.exit: a thread still waits for our input, and nothing is left to flush.
    os._exit(code)
