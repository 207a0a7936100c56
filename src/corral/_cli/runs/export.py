"""``corral runs export``: a run for other programs and people."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, TypedDict, Unpack

import click

from corral._cli.command_types import examples, plain_option
from corral._cli.options import completing
from corral._cli.ui.terminal import answer, data, echo_err
from corral._runs.kinds import FORMATS
from corral.errors import ConfigError, StorageFailed

if TYPE_CHECKING:
    from corral._runs.stored_run import StoredRun

SUFFIXES = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "atif",
    ".html": "html",
    ".htm": "html",
    ".md": "md",
    ".zip": "bundle",
}
FILES = {"html": "html", "bundle": "zip"}
"""Formats that are not printed, and the suffixes of their files."""


class ExportFlags(TypedDict):
    """The options of the command."""

    format_: str | None
    output: str | None
    force: bool
    diff: bool
    content: bool
    endpoint: str | None
    full: bool
    doctor: bool
    text: str | None
    db: str | None


@click.command(
    "export",
    epilog=examples(
        "corral runs export last --format html",
        "corral runs export last --format bundle --output report.zip",
    ),
)
@click.argument("run", required=False, shell_complete=completing("runs"))
@plain_option(
    "--format format_",
    "; ".join(f"{name}: {text}" for name, text in FORMATS.items())
    + ".  [default: by the suffix of --output, else ndjson]",
    type=click.Choice(list(FORMATS)),
)
@plain_option(
    "-o --output FILE",
    "Write to this file; - is stdout.  [default: stdout; for html and bundle,"
    " RUN.html and RUN.zip]",
)
@plain_option("--force", "Replace the file if it exists.")
@plain_option("-g --text TEXT", "Instead of RUN: the newest run with this text.")
@plain_option("--diff", "With md: also how each turn changed files.")
@plain_option(
    "--endpoint URL",
    "With otel: send the spans to this OTLP endpoint; env: as OpenTelemetry's variables say.",
)
@plain_option("--content", "With otel: include prompts, answers, and input of tools.")
@plain_option("--full", "With html: everything, however large the file gets.")
@plain_option(
    "--doctor/--no-doctor",
    "With bundle: also check the agent with a scripted model.  [default: on]",
    default=True,
)
@plain_option("--db URL", "The database of a pipeline run that is not found.")
def command(run: str | None, **flags: Unpack[ExportFlags]) -> int:
    """Write RUN in another format.

    RUN is the id of a session or a pipeline run, a unique beginning of it, 'last' for the newest,
    a file of events, or a folder of a session or a run. Secrets are redacted in every format.
    """
    format_ = SUFFIXES.get(Path(flags["output"] or "").suffix.lower(), "ndjson")
    if flags["format_"] is not None:
        format_ = flags["format_"]
    elif flags["endpoint"] is not None:
        format_ = "otel"
    # Raise ``ConfigError`` for flags that another format has.
    wrong = {
        "--diff": flags["diff"] and format_ != "md",
        "--content": flags["content"] and format_ != "otel",
        "--endpoint": flags["endpoint"] is not None and format_ != "otel",
        "--full": flags["full"] and format_ != "html",
    }
    for flag, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(f"{flag} is not for --format {format_}")
    if flags["endpoint"] is not None and flags["output"] is not None:
        raise ConfigError("--endpoint and --output are both given")
    from corral._export import formats

    options = formats.ExportOptions(
        diff=flags["diff"],
        content=flags["content"],
        full=flags["full"],
        doctor=_doctor if flags["doctor"] else None,
        db=flags["db"],
    )
    stored = _find(run, flags)
    if format_ == "otel" and flags["endpoint"] is not None:
        from corral._export import otel

        count = otel.send(stored, flags["endpoint"], content=flags["content"])
        echo_err(f"{count:,} spans sent")
    else:
        path = flags["output"]
        if path is None and format_ in FILES:
            path = f"{stored.id.replace('/', '_')}.{FILES[format_]}"
        if path is None or path == "-":
            with _to_stdout() as out:
                formats.write(stored, format_, out, options)
        else:
            with _to_file(Path(path), force=flags["force"]) as file:
                described = formats.write(stored, format_, file.write, options)
            echo_err("\n".join([f"wrote {path}", *(f"  {line}" for line in described)]))
    for sentence in stored.notices.sentences():
        echo_err(f"! {sentence}")
    return 0


def _find(name: str | None, flags: ExportFlags) -> StoredRun:
    from corral._cli.runs.look import chosen_run
    from corral._runs import stored_run

    return stored_run.find(chosen_run(name, flags["text"]), db=flags["db"])


class Sink(Protocol):
    """Where an export goes."""

    def __call__(self, data: bytes, /) -> object: ...


def _doctor(agent: str) -> str:
    """The report about the agent; why there is none, if it cannot be checked."""
    import asyncio

    from corral._cli.agent_checks import examine, format_report
    from corral.errors import CorralError

    echo_err(f"checking {agent} (--no-doctor leaves this out)")
    try:
        return format_report(asyncio.run(examine(agent))) + "\n"
    except (CorralError, OSError) as error:
        return f"it could not be checked: {error}\n"


@contextmanager
def _to_stdout() -> Generator[Sink]:
    """Collects pieces, and prints them; at a terminal, as cleaned text."""
    is_terminal = sys.stdout.isatty()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[bytes] = []
    size = 0

    def flush() -> None:
        nonlocal size
        joined = b"".join(pieces)
        pieces.clear()
        size = 0
        if is_terminal:
            answer(decoder.decode(joined))
        else:
            data(joined)

    def out(piece: bytes) -> None:
        nonlocal size
        pieces.append(piece)
        size += len(piece)
        if size > 256 * 1024:
            flush()

    yield out
    flush()


@contextmanager
def _to_file(path: Path, *, force: bool) -> Generator[IO[bytes]]:
    """A new file, readable by its owner. It appears under its name when it is complete. A pipe or
    a device is written to: it must not be replaced by a file."""
    from corral._system import fs

    draft = None
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        elif os.path.lexists(path) and not force:
            raise ConfigError(f"{path} already exists", hint="Name another file, or give --force.")
        elif path.is_dir():
            raise ConfigError(f"{path} is a folder", hint="Name a file in it.")
        else:
            fd, draft = fs.create_draft(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
        if draft is not None:
            fs.move_into_place(draft, path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}", hint="Free some space.") from error
    finally:
        if draft is not None:
            with contextlib.suppress(OSError):
                os.unlink(draft)
