"""``corral run --schema`` and ``--result``: one JSON value at the end of the run."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral.cli.exit_codes import exit_code
from corral.cli.ui.questions import TerminalAsker, is_interactive
from corral.cli.ui.signals import signals
from corral.cli.ui.terminal import answer
from corral.errors import ConfigError, SchemaInvalid
from corral.result import Result
from corral.values import JsonObject, is_object

if TYPE_CHECKING:
    from corral.cli.ui.progress import Progress
    from corral.options import RunKwargs

INTERRUPTED = 130
ALWAYS = ("status", "text", "output", "files", "usage", "cost", "error", "session")
"""Keys of ``--result`` that are there in any case."""


def read_schema(given: str) -> JsonObject:
    """The JSON Schema in a file, on stdin (``-``), or written on the command line. Raises
    ``SchemaInvalid`` and ``ConfigError``."""
    source, text = "--schema", given
    if given == "-":
        source, text = "stdin", sys.stdin.read()
    elif not given.lstrip().startswith("{"):
        source = given
        try:
            text = Path(given).read_text("utf-8")
        except OSError as error:
            raise ConfigError(
                f"the schema {given} cannot be read: {error.strerror}",
                hint="Give a file, - for stdin, or the JSON Schema itself.",
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"--schema {given} is not UTF-8: {error}") from error
    try:
        schema: object = json.loads(text)
    except ValueError as error:
        raise SchemaInvalid(f"{source} is not JSON: {error}") from error
    if not is_object(schema):
        raise SchemaInvalid(f"{source} is not a JSON Schema: it must be an object")
    return schema


def run(
    agent: str,
    text: str | None,
    options: RunKwargs,
    schema: JsonObject | None,
    progress: Progress,
    *,
    full: bool,
) -> int:
    """Run to the end, then print the output, or with ``full`` the result, as JSON."""
    result = asyncio.run(_run(agent, text, options, schema, progress))
    if result is None:
        return INTERRUPTED
    if full:
        answer(json.dumps(result_table(result), ensure_ascii=False) + "\n")
    elif result.ok:
        answer(json.dumps(result.output, ensure_ascii=False) + "\n")
    if result.error is not None and not result.ok and not full:
        progress.error(result.error)
    return exit_code(result)


def result_table(result: Result) -> Mapping[str, object]:
    """The result as JSON, with the keys in ``ALWAYS`` first."""
    found: dict[str, object] = msgspec.to_builtins(result)
    found["session"] = found.pop("resume_token", None)
    defaults: dict[str, object] = {"text": "", "files": [], "usage": {}, "cost": {}}
    first = {name: found.pop(name, defaults.get(name)) for name in ALWAYS}
    return {**first, **found}


async def _run(
    agent: str,
    text: str | None,
    options: RunKwargs,
    schema: JsonObject | None,
    progress: Progress,
) -> Result | None:
    """None: it was interrupted."""
    from corral.sessions import api

    asker = TerminalAsker(progress.paused, options.get("cwd")) if is_interactive() else None
    work = asyncio.ensure_future(
        api.run(agent, text, ask=asker, output=schema, on_event=progress.show, **options)
    )

    def cancel() -> None:
        work.cancel()

    with signals(cancel), progress:
        try:
            return await work
        except asyncio.CancelledError:
            return None
