"""What sessions, pipelines and batches have used: tokens and cost, by day, agent, model and more.

``TurnUsages`` reads what each turn has used from its events; ``totals`` adds that up. The turns of
sessions are in their index, those of pipelines and batches, whose sessions are not stored, in the
ledger. What no one reported is None, not 0, and a sum of known and unknown amounts says how many
are not known. Only model calls that were sent through the model proxy without a report of their
usage are estimated, and marked so.

The ledger is one file per month below corral's home, ``usage/2026-11.ndjson``, with a line for each
model of each turn. A line is appended when the agent ends, in whatever way, by the process that ran
it; so a worker on another machine has its own files. Appending needs no lock: a line is one
``write``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec

from corral._system import clock, fs, paths
from corral.errors import ConfigError
from corral.events import Done, Event, ModelCall
from corral.values import Cost, CostSource, Usage, decoder_for

By = Literal["day", "project", "agent", "model", "kind", "label", "run"]
UNKNOWN = "unknown"
SEVERAL = "several models"
_QUARTER_HOUR = 900

_log = logging.getLogger("corral.metering")


class TurnUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one turn of a session has used with one model."""

    session: str
    """Its id; for a pipeline or batch that of the run."""
    turn: int
    agent: str
    cwd: str
    started: float
    """Seconds since the epoch."""
    model: str = ""
    usage: Usage = Usage()
    cost: float | None = None
    source: CostSource = "unknown"
    """Where ``cost`` comes from."""
    calls: int | None = None
    """Model calls, if corral counted them."""
    is_partial: bool = False
    """A response was cut, or the turn has not ended: more may be billed."""
    kind: str = ""
    """That of its run."""
    parent: str = ""
    """The run that a session is a part of."""
    project: str = ""
    """The repository, else the folder, in which its run was started."""
    label: str = ""
    scripted: bool = False
    """A scripted model answered: it is in no sum of money."""


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to add up, and by what."""

    by: str = "day"
    since: float | None = None
    until: float | None = None
    agent: str | None = None
    model: str | None = None
    """A part of its name."""
    project: str | None = None
    """The repository, else the folder, in which runs were started."""
    kind: str | None = None
    run: str | None = None
    """Of this run and its parts."""

    def fits(self, turn: TurnUsage) -> bool:
        """Whether a turn meets all conditions."""
        return (
            (self.since is None or turn.started >= self.since)
            and (self.until is None or turn.started < self.until)
            and self.agent in (None, turn.agent)
            and self.kind in (None, turn.kind)
            and self.run in (None, turn.session, turn.parent)
            and self.project in (None, turn.project or turn.cwd)
            and (self.model is None or self.model in turn.model)
        )


class UsageSum(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The sum of some turns."""

    key: str
    usage: Usage = Usage()
    cost_usd: float | None = None
    """None: the cost of no turn is known."""
    cost_by_source: dict[str, float] = {}
    """``metered`` by corral, ``estimated`` in part, ``reported`` by the agent, or ``computed`` from
    a list of prices."""
    turns: int = 0
    turns_without_cost: int = 0
    """Their cost is not known: it is not in the sum."""
    turns_partial: int = 0
    """More may be billed for them."""
    calls: int | None = None
    """Model calls, of the turns in which corral counted them."""
    sessions: int = 0


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of a report, and the sum of all."""

    by: str
    rows: list[UsageSum]
    total: UsageSum


class TurnUsages:
    """Collects the usage of a transcript, event by event."""

    def __init__(self, session: str, agent: str, cwd: str, model: str | None = None) -> None:
        """``session`` is the id of the session or run, ``model`` that of turns which name none."""
        self._session = session
        self._agent = agent
        self._cwd = cwd
        self._model = model or ""
        self._calls: list[ModelCall] = []
        self.turns: list[TurnUsage] = []
        self._count = 0

    def add(self, event: Event) -> None:
        if isinstance(event, ModelCall):
            self._calls.append(event)
        elif isinstance(event, Done):
            self._end_turn(event)

    def finish(self) -> list[TurnUsage]:
        """The turns; also one that has not ended, if its model calls are known."""
        if self._calls:
            self._count += 1
            self._append_calls(self._calls[0].ts, self._calls, is_partial=True)
            self._calls = []
        return self.turns

    def _end_turn(self, done: Done) -> None:
        started = done.ts - done.duration_ms / 1000
        calls, self._calls = self._calls, []
        is_cut = done.usage.coverage in ("partial", "estimated")
        is_partial = is_cut or any(call.partial for call in calls)
        count = len(calls) if done.usage_source == "metered" else None
        self._count += 1
        shares = _by_model(calls) if count else done.usage_by_model
        if len(shares) <= 1:
            model = next(iter(shares), done.model or self._model)
            self._append(started, model, done.usage, done.cost, count, is_partial=is_partial)
        elif count:
            self._append_calls(started, calls, is_partial=is_partial)
        else:
            for model, share in done.usage_by_model.items():
                self._append(started, model, share, Cost(), None, is_partial=is_partial)
            # The agent reports one cost for all models.
            self._append(started, SEVERAL, Usage(), done.cost, None, is_partial=is_partial)

    def _append_calls(self, started: float, calls: list[ModelCall], *, is_partial: bool) -> None:
        for model, own in _by_model(calls).items():
            # A call that the vendor refused, without a report of its usage, costs nothing.
            billed = [c for c in own if (c.status or 0) < 400 or c.usage.total is not None]
            known = [call.cost for call in billed if call.cost.usd is not None]
            cost = sum(known[1:], start=known[0]) if known else Cost()
            usage = sum((call.usage for call in own), start=Usage())
            cut = is_partial or len(known) < len(billed)
            self._append(started, model, usage, cost, len(own), is_partial=cut)

    def _append(
        self,
        started: float,
        model: str,
        usage: Usage,
        cost: Cost,
        calls: int | None,
        *,
        is_partial: bool,
    ) -> None:
        self.turns.append(
            TurnUsage(
                session=self._session,
                turn=self._count,
                agent=self._agent,
                cwd=self._cwd,
                started=started,
                model=model,
                usage=usage,
                cost=cost.usd,
                source=cost.source,
                calls=calls,
                is_partial=is_partial,
            )
        )


def _by_model(calls: list[ModelCall]) -> dict[str, list[ModelCall]]:
    found: dict[str, list[ModelCall]] = {}
    for call in calls:
        found.setdefault(call.model, []).append(call)
    return found


def check_by(by: str) -> None:
    """Raises ``ConfigError``."""
    if by not in get_args(By):
        raise ConfigError(f"by must be one of {', '.join(get_args(By))}, got: {by!r}")


def totals(found: Iterable[TurnUsage], by: str) -> UsageTotals:
    """By day in order of time, else the most expensive first."""
    turns = list(found)
    groups: dict[str, list[TurnUsage]] = {}
    for turn in turns:
        groups.setdefault(_key(by, turn), []).append(turn)
    rows = [_sum(key, parts) for key, parts in groups.items()]
    if by == "day":
        rows.sort(key=lambda row: row.key)
    else:
        rows.sort(key=lambda row: (-(row.cost_usd or 0.0), -(row.usage.total or 0), row.key))
    return UsageTotals(by=by, rows=rows, total=_sum("total", turns))


def _key(by: str, turn: TurnUsage) -> str:
    match by:
        case "day":
            return _day(int(turn.started // _QUARTER_HOUR))
        case "run":
            return turn.parent or turn.session
        case "project":
            return turn.project or turn.cwd
        case _:
            key: str = getattr(turn, by)
            return key or UNKNOWN


@cache
def _day(quarter_hour: int) -> str:
    """The local day. In every zone, a day starts at a quarter of an hour."""
    return clock.date_of(quarter_hour * _QUARTER_HOUR)


def _sum(key: str, parts: Sequence[TurnUsage]) -> UsageSum:
    """The sum of all parts. Several of them may be parts of one turn, which is counted once."""
    made = UsageSum(key=key, cost_by_source={})
    for part in parts:
        made.usage += part.usage
        if part.cost is not None and not part.scripted:
            made.cost_usd = (made.cost_usd or 0.0) + part.cost
            made.cost_by_source[part.source] = made.cost_by_source.get(part.source, 0.0) + part.cost
        if part.calls is not None:
            made.calls = (made.calls or 0) + part.calls
    made.turns = _count(parts)
    made.turns_without_cost = made.turns - _count(
        part for part in parts if part.cost is not None or part.scripted
    )
    made.turns_partial = _count(part for part in parts if part.is_partial)
    made.sessions = len({part.session for part in parts})
    return made


def _count(parts: Iterable[TurnUsage]) -> int:
    return len({(part.session, part.turn) for part in parts})


def add_to_ledger(turns: Iterable[TurnUsage]) -> None:
    """Append what was used. A file that cannot be written is a warning in the log: the results of
    the nodes have their cost in any case."""
    lines = msgspec.json.Encoder().encode_lines(list(turns))
    if not lines:
        return
    month = datetime.fromtimestamp(clock.now(), UTC).strftime("%Y-%m")
    path = _folder() / f"{month}.ndjson"
    try:
        paths.make_dir(path.parent)
        fs.append(path, lines)
    except OSError as error:
        _log.warning("what was used is missing in %s: %s", path, error.strerror or error)


def read_ledger(query: UsageQuery) -> Iterator[TurnUsage]:
    """The turns that meet all conditions. A line that cannot be read, such as one that was cut by
    a full disk, is left out. Raises ``OSError``."""
    decoder = decoder_for(TurnUsage)
    folder = _folder()
    for path in sorted(folder.glob("*.ndjson")) if fs.is_dir(folder) else []:
        for line in fs.read_bytes(path).splitlines():
            try:
                turn = decoder.decode(line)
            except msgspec.MsgspecError:
                continue
            if query.fits(turn):
                yield turn


def _folder() -> Path:
    return paths.home() / "usage"
