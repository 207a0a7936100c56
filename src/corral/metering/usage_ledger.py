"""What agents used whose sessions are not stored: those of pipelines and batches.

One file per month below corral's home, ``usage/2026-11.ndjson``, with a line for each model of each
turn. A line is appended when the agent ends, in whatever way, by the process that ran it; so a
worker on another machine has its own files. Appending needs no lock: a line is one ``write``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from corral.metering.turn_usage import TurnUsage, UsageQuery
from corral.system import clock, fs, paths
from corral.values import decoder_for

_log = logging.getLogger("corral.metering")
_encoder = msgspec.json.Encoder()


def add(turns: Iterable[TurnUsage]) -> None:
    """Append what was used. A file that cannot be written is a warning in the log: the results of
    the nodes have their cost in any case."""
    lines = _encoder.encode_lines(list(turns))
    if not lines:
        return
    month = datetime.fromtimestamp(clock.now(), UTC).strftime("%Y-%m")
    path = _folder() / f"{month}.ndjson"
    try:
        paths.make_dir(path.parent)
        fs.append(path, lines)
    except OSError as error:
        _log.warning("what was used is missing in %s: %s", path, error.strerror or error)


def read(query: UsageQuery) -> Iterator[TurnUsage]:
    """The turns that meet all conditions. A line that cannot be read, such as one that was cut by
    a full disk, is left out. Raises ``OSError``."""
    decoder = decoder_for(TurnUsage)
    folder = _folder()
    cwd = None if query.cwd is None else query.cwd.rstrip("/")
    for path in sorted(folder.glob("*.ndjson")) if fs.is_dir(folder) else []:
        for line in fs.read_bytes(path).splitlines():
            try:
                turn = decoder.decode(line)
            except msgspec.MsgspecError:
                continue
            if (
                (query.since is None or turn.started >= query.since)
                and (query.until is None or turn.started < query.until)
                and query.agent in (None, turn.agent)
                and query.session in (None, turn.session)
                and (query.model is None or query.model in turn.model)
                and (cwd is None or turn.cwd == query.cwd or turn.cwd.startswith(f"{cwd}/"))
            ):
                yield turn


def _folder() -> Path:
    return paths.home() / "usage"
