"""``corral fake``: serve a scripted model, record a program, play such a recording."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from pathlib import Path

import click

from corral._agents import registry
from corral._cli.command_types import enable_gc, examples, plain_option
from corral._cli.ui.terminal import echo
from corral.errors import ConfigError
from corral.testing import ModelServer, Script

DEFAULT_SCRIPT = "fake.toml"


@click.group("fake")
def command() -> None:
    """Serve scripted models, and record and play programs, for tests."""


@command.command("new")
@click.argument("script", type=click.Path(path_type=Path), default=DEFAULT_SCRIPT)
def new(script: Path) -> None:
    """Write an example script with comments.

    It is fake.toml, or SCRIPT, for `corral fake serve`. A file that exists is not overwritten."""
    if script.suffix == ".json":
        hint = f"Write: corral fake new {shlex.quote(str(script.with_suffix('.toml')))}"
        raise ConfigError(f"the example is TOML: {script} would be read as JSON", hint=hint)
    try:
        with script.open("x", encoding="utf-8") as file:
            file.write(EXAMPLE.format(name=script))
    except FileExistsError as error:
        hint = "Choose another name: corral fake new NAME."
        raise ConfigError(f"{script} exists already", hint=hint) from error
    except OSError as error:
        raise ConfigError(f"cannot write {script}: {error.strerror}") from error
    name = shlex.quote(str(script))
    echo(f'wrote {script}; use it: corral run --fake {name} --approve edits "Write a greeting"')


@command.command(
    "serve",
    epilog=examples("corral fake serve script.toml", "corral fake serve script.toml --port 8080"),
)
@click.argument("script", type=click.Path(), default=DEFAULT_SCRIPT)
@plain_option("-p --port", "0 takes a free port.", default=0, show_default=True)
@plain_option("--key TEXT", "Reject every other API key.")
@plain_option("--seconds DURATION", "Stop after this time.")
def serve(script: str, port: int, key: str | None, seconds: float | None) -> None:
    """Serve SCRIPT on 127.0.0.1 until Ctrl-C.

    SCRIPT is TOML or JSON, fake.toml if it is left out. `corral fake new` writes an example.

    A script is a list of turns, served one after the other:

    \b
      [[turn]]
      text = "I will read."
      [[turn.call]]
      name = "read_file"
      args = { path = "a.txt" }

    It speaks Gemini, Anthropic's Messages, OpenAI's Responses and chat completions, all
    from the one script, and translates shell, read_file, write_file and edit_file to the
    tools of the agent. The address is printed first, then the variables that point an
    agent to it, and how some agents are started with them; the API key
    is any text. `corral run --fake SCRIPT` needs no server.
    """
    enable_gc()
    server = ModelServer(Script.load(script), key=key, port=port)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(server, seconds))


async def _serve(server: ModelServer, seconds: float | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with server:
        echo(server.url)
        for name, value in server.env.items():
            echo(f"export {name}={value}", err=True)
        probes = (agent.probe for agent in registry.all_agents() if agent.probe is not None)
        commands = dict.fromkeys(probe.plain_command for probe in probes)
        for plain in filter(None, commands):
            echo(f"# {plain.replace('{url}', server.url)}", err=True)
        waiting = asyncio.ensure_future(stop.wait())
        deadline = None if seconds is None else loop.time() + seconds
        printed = 0
        while not stop.is_set() and (deadline is None or loop.time() < deadline):
            await asyncio.wait([waiting], timeout=0.2)
            for request in server.requests[printed:]:
                printed += 1
                echo(f"{request.lane or '-'} {request.method} {request.model}", err=True)
        waiting.cancel()
    for failure in server.failures:
        echo(f"corral: {failure}", err=True)


@command.command("record", context_settings={"ignore_unknown_options": True})
@plain_option("-o --output FILE", "The file to write.", required=True)
@plain_option("--agent NAME", "The agent that COMMAND is, for `run --replay`.")
@click.argument("argv", metavar="-- COMMAND…", nargs=-1, required=True, type=click.UNPROCESSED)
def record(output: str, agent: str | None, argv: tuple[str, ...]) -> None:
    """Run COMMAND and record the conversation with it.

    Input and output pass through unchanged, and so do signals and the exit code. The file has
    one JSON object per line: a header with the command and its folders; then
    {dir: in|out|err, data, t}; then the exit. Values of variables named like secrets
    (…_KEY, …_TOKEN …) are redacted in the file, not in what is passed on.

    To record the agent of a run, use `corral run --record-to FILE`.
    """
    from corral._system.cassette import record as recording

    enable_gc()
    code = recording.record(output, argv, agent=agent)
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


EXAMPLE = """\
# A scripted model. Use it:
#
#     corral run --fake {name} --approve edits "Write a greeting"
#
# `corral fake serve {name}` serves it for other programs, and prints the variables for them.
#
# The script is the same for every agent.

# When the script starts over: "never", "at_end" (when all turns are served), or
# "per_conversation" (each new conversation begins with the first turn).
restart = "per_conversation"

# Each turn answers one request of the agent. This one calls two tools.
#
# These names are translated to the tools of the agent that asks:
#     shell         command
#     read_file     path
#     write_file    path, content
#     edit_file     path, old, new
#     list_files    path
#     search_files  pattern, path
#     fetch_url     url
# Any other name, and other arguments, are sent as they are.
[[turn]]
text = "I will write the file."
[[turn.call]]
name = "write_file"
args = {{ path = "greeting.txt", content = "Hello from a scripted model.\\n" }}

# The next request has the result of the call. A turn can check what the request contains.
[[turn]]
text = "And now I will read it."
[[turn.call]]
name = "read_file"
args = {{ path = "greeting.txt" }}

# The last answer. `usage` is what the model reports; without it, it is estimated.
[[turn]]
text = ["I wrote ", "greeting.txt."]  # two chunks of the stream
usage = {{ input = 1200, output = 40 }}

# Faults, to see how your automation takes them. Remove the # to use one.
#
# [[turn]]
# status = 429          # a rate limit; the agent tries again
# retry_after = 2
#
# [[turn]]
# match = "slow"        # only for a prompt that contains this word
# text = "That took a while."
# delay = 5             # seconds before the answer
#
# [[turn]]
# hang = true           # no answer at all
"""
"""TOML, with ``{name}`` for the file's own name."""
