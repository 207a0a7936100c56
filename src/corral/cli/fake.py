"""``corral fake``: serve a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
from pathlib import Path

import click

from corral.cli.command_types import enable_gc, plain_option
from corral.cli.ui.terminal import echo
from corral.errors import ConfigError
from corral.testing import ModelServer, Script

DEFAULT_SCRIPT = "fake.toml"


@click.group("fake")
def command() -> None:
    """Serve a scripted model, for tests and demos."""


@command.command("new")
@click.argument("script", type=click.Path(path_type=Path), default=DEFAULT_SCRIPT)
def new(script: Path) -> None:
    """Write an example script with comments.

    It is fake.toml, or SCRIPT, for `corral fake serve`. A file that exists is not overwritten."""
    from corral.testing.model_server.example import EXAMPLE

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
    echo(f'wrote {script}; use it: corral run --fake {shlex.quote(str(script))} "Write a greeting"')


@command.command("serve")
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
    agent to it; the API key is any text. `corral run --fake SCRIPT` needs no server.
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
