"""What the log of a session says of its turns, without reading all of it. Blocking.

Results are remembered for as long as a log does not change, and a finished turn forever: the list
of runs asks again every second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from threading import Lock

import msgspec

from corral import events
from corral._agents.report import PolicyRow
from corral._core.terminal_text import plain
from corral._runs.log_windows import PAGE, Line, LogFile, TurnIndex, TurnMarks
from corral._view.items import decode, plan_steps, tokens
from corral._view.records import Money, PlanStep, TurnInfo
from corral.values import Cost, Usage, as_object, as_objects, as_text, convert_to

LIST_BUDGET = 2 * 1024 * 1024
"""Bytes of one log that are searched for turns for a list."""
DETAIL_BUDGET = 8 * 1024 * 1024
"""The same for one session."""
MAX_LOGS = 2_000
"""Logs that are remembered."""
MAX_PROMPT = 500
"""Characters of a prompt in the list of turns."""
MAX_FILES = 500
"""Changed files of a turn that are listed."""
END_PAGES = 8
"""Pages at the end of a log on which the plan and the size of the context are looked for."""
_USAGE = (b'{"type":"usage"', b'{"type":"model_call"')


class LoggedTurn(msgspec.Struct, kw_only=True):
    """One turn, as its first and last events say."""

    info: TurnInfo
    init: events.Init | None = None
    program: str = ""
    """Path of the agent's program."""
    policy_report: str = ""
    error: events.Error | None = None
    usage: Usage = Usage()
    cost: Cost = Cost()


class LogFacts(msgspec.Struct, kw_only=True):
    """What is known of a log."""

    size: int = 0
    modified: float = 0.0
    turns: list[LoggedTurn] = []
    is_complete: bool = True
    """Whether all turns are in ``turns``."""

    @property
    def last(self) -> LoggedTurn | None:
        return self.turns[-1] if self.turns else None

    @property
    def is_finished(self) -> bool:
        """Whether the last turn has ended."""
        return self.last is None or self.last.info.log_end is not None

    @property
    def usage(self) -> Usage:
        return sum((turn.usage for turn in self.turns), start=Usage())


class _CallSums(msgspec.Struct, kw_only=True):
    """The model calls of a turn that runs, as far as they were read."""

    start: int = -1
    """Where the turn begins."""
    count: int = 0
    usage: Usage = Usage()
    cost: Cost = Cost()

    def advance(self, log: LogFile, turn: LoggedTurn, calls: list[int]) -> None:
        """Read the calls that are new, and give the turn their sums."""
        if self.start != turn.info.log_start:
            self.start, self.count = turn.info.log_start, 0
            self.usage, self.cost = Usage(), Cost()
        for offset in calls[self.count :]:
            line = log.line_at(offset)
            call = decode(line) if line is not None else None
            if line is None:
                break  # it is being written
            self.count += 1
            if isinstance(call, events.ModelCall):
                self.usage += call.usage
                if call.cost.usd is not None:
                    self.cost = call.cost if self.cost.usd is None else self.cost + call.cost
        turn.usage = self.usage
        turn.cost = self.cost
        turn.info.usage = tokens(turn.usage)
        turn.info.cost = Money(usd=turn.cost.usd, source=turn.cost.source)


class _Known:
    def __init__(self) -> None:
        self.index = TurnIndex()
        self.calls = _CallSums()
        self.lock = Lock()
        self.turns: dict[int, LoggedTurn] = {}
        self.stamp: tuple[int, float] | None = None
        self.facts = LogFacts()


class SessionLogs:
    """The logs of sessions, with what is already known of them. Can be used by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[Path, _Known] = OrderedDict()

    def facts(self, path: Path, budget: int) -> LogFacts:
        """What is known of a log after at most ``budget`` further bytes were searched. A log that
        does not exist has no turns."""
        with self._lock:
            known = self._known.setdefault(path, _Known())
            self._known.move_to_end(path)
            if len(self._known) > MAX_LOGS:
                self._known.popitem(last=False)
        try:
            with known.lock, LogFile(path) as log:
                stamp = (log.size, log.modified)
                if known.stamp == stamp and known.facts.is_complete:
                    return known.facts
                marks = known.index.advance(log, budget)
                facts = LogFacts(
                    size=log.size,
                    modified=log.modified,
                    turns=_turns(log, marks, known),
                    is_complete=marks.is_complete,
                )
                known.stamp, known.facts = stamp, facts
                return facts
        except OSError:
            return LogFacts()


def _turns(log: LogFile, marks: TurnMarks, known: _Known) -> list[LoggedTurn]:
    found: list[LoggedTurn] = []
    for number, start in enumerate(marks.starts):
        following = marks.starts[number + 1] if number + 1 < len(marks.starts) else log.size
        last = bisect_right(marks.ends, following) - 1
        end = marks.ends[last] if last >= 0 and marks.ends[last] > start else None
        turn = known.turns.get(start)
        if turn is None or turn.info.log_end is None:
            turn = _read_turn(log, start, end, number + 1)
            if turn is None:
                continue  # its first line is not complete
            known.turns[start] = turn
        found.append(turn)
    if not marks.is_complete:
        _add_last(log, found)
    elif found and found[-1].info.log_end is None and marks.calls:
        known.calls.advance(log, found[-1], marks.calls)
    return found


def _add_last(log: LogFile, found: list[LoggedTurn]) -> None:
    """The end of a log whose middle was not searched yet."""
    line = log.last_line()
    done = decode(line) if line is not None else None
    if line is None or not isinstance(done, events.Done):
        return
    number = turn_number(done.run_id) or len(found) + 1
    if found and found[-1].info.number >= number:
        _finish(found[-1], done, line.offset)
    else:
        start = found[-1].info.log_start + 1 if found else 0
        turn = LoggedTurn(info=TurnInfo(number=number, log_start=start))
        turn.info.started = done.ts - done.duration_ms / 1000
        found.append(turn)
        _finish(turn, done, line.offset)


def _read_turn(log: LogFile, start: int, end: int | None, number: int) -> LoggedTurn | None:
    line = log.line_at(start)
    init = decode(line) if line is not None else None
    if line is None:
        return None
    turn = LoggedTurn(info=TurnInfo(number=number, log_start=start))
    if isinstance(init, events.Init):
        turn.init = init
        turn.info.number = turn_number(init.run_id) or number
        turn.info.started, turn.info.model = init.ts, init.model
        following = log.line_at(start + len(line.data) + 1)
        prompt = decode(following) if following is not None else None
        if isinstance(prompt, events.Vendor) and isinstance(prompt.data, str):
            turn.info.prompt = plain(prompt.data, MAX_PROMPT)
        _add_run_facts(turn, log, following)
    last = log.line_at(end) if end is not None else None
    done = decode(last) if last is not None else None
    if last is not None and isinstance(done, events.Done):
        _finish(turn, done, last.offset)
    return turn


def _add_run_facts(turn: LoggedTurn, log: LogFile, line: Line | None) -> None:
    """What the first turn recorded of its program and its policy, after the prompt and the names of
    its files."""
    for _ in range(2):
        line = None if line is None else log.line_at(line.end)
        event = None if line is None else decode(line)
        if isinstance(event, events.Vendor) and event.name == "run_facts":
            data = as_object(event.data)
            lines: list[str] = []
            for row in as_objects(data.get("policy")):
                try:
                    rule = convert_to(row, PolicyRow)
                    lines.append(f"{rule.capability}: {rule.decision}  {rule.note}".rstrip())
                except msgspec.ValidationError:  # what the log has may not be a row
                    lines.append(as_text(row.get("capability")))
            turn.policy_report = plain("\n".join(lines), 20_000)
            turn.program = as_text(data.get("program"))
            return


def _finish(turn: LoggedTurn, done: events.Done, offset: int) -> None:
    info = turn.info
    info.status, info.log_end = done.status, offset
    info.duration_ms = done.duration_ms
    info.model = done.model or info.model
    info.usage = tokens(done.usage)
    info.cost = Money(usd=done.cost.usd, source=done.cost.source)
    info.files, info.files_total = [*done.files[:MAX_FILES]], len(done.files)
    info.denied = [plain(each.title or each.name, 200) for each in done.denied[:100]]
    info.error = None if done.error is None else plain(done.error.message, 2_000)
    turn.error, turn.usage, turn.cost = done.error, done.usage, done.cost


def turn_number(run_id: str) -> int | None:
    """The number of the turn in the id of its run."""
    tail = run_id.rpartition(".")[2]
    return int(tail) if tail.isdecimal() else None


class LogEnd(msgspec.Struct, kw_only=True):
    """What the last pages of a log say of a session."""

    plan: list[PlanStep] | None = None
    """The newest plan."""
    context: int | None = None
    """Tokens of the conversation, as the model last got it."""
    model: str | None = None
    """The model that got it, if the log names it."""


def read_end(path: Path) -> LogEnd:
    """The newest facts near the end of a log."""
    found = LogEnd()
    try:
        with LogFile(path) as log:
            for line in reversed(log.lines(max(0, log.size - END_PAGES * PAGE), log.size)):
                if found.plan is None and line.data.startswith(b'{"type":"plan"'):
                    event = decode(line)
                    found.plan = plan_steps(event) if isinstance(event, events.Plan) else []
                elif found.context is None and line.data.startswith(_USAGE):
                    # By the agent's own report, else by its last model call. Calls beside the
                    # conversation, such as those for a title, say nothing of it.
                    event = decode(line)
                    if isinstance(event, events.UsageReport):
                        found.context = event.context_size
                    elif isinstance(event, events.ModelCall) and not (event.side or event.partial):
                        found.context, found.model = event.usage.total, event.model
    except OSError:
        pass
    return found
