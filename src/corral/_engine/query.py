"""Read a run: find it, show it, follow its events. Runs nothing.

The state of a run is rebuilt from its journal (``Replay``): a scheduler receives the recorded
messages again and arrives at the same state. So any process that can read the database can show a
run, on any machine, without disturbing it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral._core.lookup import find_id, run_of
from corral._core.stored_formats import JOURNAL
from corral._engine.dbos.adapter import RECEIVED
from corral._engine.dbos.client import (
    LAST_POLL,
    DatabaseClient,
    JournalEntry,
    WorkflowInfo,
    open_client,
    read_patiently,
    with_client,
)
from corral._engine.dbos.database import (
    ENDED_STATES,
    Database,
    check_not_elsewhere,
    find,
    is_there,
    reading,
)
from corral._engine.dbos.leases import ExecutorLiveness
from corral._engine.node_runner import Retrying
from corral._engine.payloads import (
    RUN_WORKFLOW,
    AgentAsks,
    NodesStep,
    PipelineOutput,
    RunInput,
    TurnStep,
    unpack,
    unpack_message,
)
from corral._engine.run_list import Status, began, open_budgets, run_status, tries
from corral._engine.run_loop import EventNumbering
from corral._metering.budget_stores import StoredBudget
from corral._pipelines import events
from corral._pipelines.events import (
    PipelineEvent,
    RunEvent,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from corral._pipelines.execution.run_dir import EVENTS, MANIFEST, RunDir
from corral._pipelines.graph import Graph
from corral._pipelines.node_kinds import SCHEDULER_KINDS
from corral._pipelines.scheduler.commands import (
    AskHuman,
    Command,
    EmitEvent,
    Ended,
    Message,
    Question,
    RunChild,
    RunNode,
)
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.scheduler.scheduler import Scheduler
from corral._pipelines.scheduler.state import State
from corral._system import fs, paths
from corral._workflows.program_turn import ProgramTurn, StepEnd, graph_of
from corral._workflows.scheduler import WorkflowScheduler
from corral.errors import ConfigError
from corral.values import as_list

FIRST_POLL = 0.05
"""Seconds between two reads of a followed run after an event."""

PAGE = 1000
"""Maximum number of new journal entries that are read at once."""
LATE = 8
"""How many journal entries may be written after one with a higher number: a received message is
written when it arrives, but the end of the wait for it, with a higher number, before."""


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The full state of a run."""

    id: str
    status: Status
    run_input: RunInput
    state: State
    questions: list[Question]
    events: list[RunEvent]
    output: PipelineOutput | None = None
    """None while the run has not ended."""
    budget: StoredBudget | None = None
    """The budget that it waits for, which may be that of a run nested in it, else its own."""
    created: float = 0.0
    ended: float | None = None
    visits: dict[str, Outcome] = {}
    """The outcome of every visit that has ended, by its id."""
    graph: Graph
    """Of a workflow: its steps so far, and which followed which."""
    format: int = JOURNAL
    """Of its record. One of another format cannot be answered or continued."""
    tries: int = 1
    """How often it was started: by ``resume`` after it had ended, or with a changed file."""

    @property
    def folder(self) -> str:
        """The path on this machine."""
        return self.run_input.config.on_this_machine().folder

    @property
    def workspace(self) -> str:
        """The path on this machine."""
        return self.run_input.config.on_this_machine().workspace


async def find_run(name: str, *, db: str | None = None) -> str:
    """The id of the run that ``name`` stands for: an id, or a unique beginning of one. Raises
    ``ConfigError`` if several begin with it, ``FormatUnsupported`` if only a database of another
    format has it. A name that fits no run is returned as it is."""
    database = find(db)

    def read(client: DatabaseClient) -> str | None:
        if client.list_workflows(ids=[name]):
            return name
        rows = client.list_workflows(name=RUN_WORKFLOW, top=True)
        return find_id(name, [*dict.fromkeys(run_of(row.id) for row in rows)], "runs")

    if await asyncio.to_thread(is_there, database):
        run_id = await with_client(database, read)
        if run_id is not None:
            return run_id
    await asyncio.to_thread(check_not_elsewhere, database, repr(name), name)
    return name


async def show(run: str, *, db: str | None = None) -> RunDetails:
    """The state of a run, from its journal. Raises ``ConfigError`` if there is no such run."""
    database = find(db)
    if not await asyncio.to_thread(is_there, database):
        raise run_not_found(run)

    def read(client: DatabaseClient) -> RunDetails:
        row, replay = replay_run(client, run)
        output = run_output(client, row.id)
        budget = open_budgets(database, [row.id]).get(row.id)
        with closing(ExecutorLiveness(database)) as liveness:
            return RunDetails(
                id=run_of(row.id),
                status=run_status(row, liveness, budget),
                budget=None if budget is None else budget.state,
                run_input=replay.run_input,
                graph=replay.graph,
                state=replay.scheduler.state,
                questions=[] if output else replay.questions,
                events=list(replay.events),
                output=output,
                created=began(row),
                ended=row.ended,
                tries=tries(row),
                format=row.format,
                visits={
                    each.id: each.outcome for each in replay.messages if isinstance(each, Ended)
                },
            )

    return await with_client(database, read)


def last_try(client: DatabaseClient, run: str) -> str:
    """The id of the workflow that is the last try of a run. Blocking."""
    if "/" in run or "#" in run:
        return run
    rows = client.list_workflows(prefix=f"{run}#", name=RUN_WORKFLOW)
    return max((row for row in rows if "/" not in row.id), key=tries).id if rows else run


def replay_run(client: DatabaseClient, run: str) -> tuple[WorkflowInfo, Replay]:
    """The workflow of the last try of a run, and its history. Blocking. Raises ``ConfigError``."""
    row = client.get_workflow(last_try(client, run))
    if row is None or row.name != RUN_WORKFLOW or row.input is None:
        raise run_not_found(run)
    entries = client.journal(row.id)
    with reading(run, row.format):
        replay = Replay(unpack(row.input, RunInput))
        for entry in entries:
            replay.feed(entry)
        replay.take_reported()
    return row, replay


async def follow(run: str, *, db: str | None = None) -> AsyncGenerator[RunEvent]:
    """The events of the last try of a run from the first one, as they come, until it has ended."""
    database = find(db)
    async with open_client(database) as client:
        run = await read_patiently(database, lambda: last_try(client, run))
        row = await read_patiently(database, lambda: client.get_workflow(run))
        if row is None or row.input is None:
            raise run_not_found(run)
        with reading(run, row.format):
            replay = Replay(unpack(row.input, RunInput))
        agent_events, reader = AgentEventReader(replay), JournalReader(client, run)

        async def read_new() -> bool:
            """Whether there were new entries."""
            entries = await read_patiently(database, reader.read_new)
            for entry in entries:
                with reading(run, row.format):
                    replay.feed(entry)
            return bool(entries)

        pause = FIRST_POLL
        while True:
            is_quiet, is_over = not await read_new(), False
            # While a run records steps, its state is not asked for: that takes as long.
            if is_quiet or replay.scheduler.state.finish is not None:
                state = await read_patiently(database, lambda: client.state(run))
                is_over = state is None or state in ENDED_STATES
                if is_over:
                    await read_new()  # what it recorded before it ended
                    replay.take_reported()
            for event in agent_events.merge(replay.take_events()):
                is_quiet = False
                yield event
            if is_over:
                return
            pause = min(pause * 1.4, LAST_POLL) if is_quiet else FIRST_POLL
            await asyncio.sleep(pause)


def run_not_found(run: str) -> ConfigError:
    if Path(run).name == run and fs.is_file(paths.home() / "runs" / run / MANIFEST):
        return ConfigError(
            f"the run {run} is not in this database",
            hint="It ran with --no-durable, or in another database, which --db selects."
            f" What it did: corral runs replay {run}",
        )
    return ConfigError(
        f"there is no run {run!r}",
        hint="`corral runs list` and `corral runs list` list the runs; --db or CORRAL_DB"
        " selects another database.",
    )


def run_output(client: DatabaseClient, run: str) -> PipelineOutput | None:
    """The output of the run; None while it has not ended. Raises ``ConfigError``. Blocking."""
    rows = client.list_workflows(ids=[run])
    if not rows:
        raise run_not_found(run)
    if not rows[0].has_ended:
        return None
    if rows[0].state == "cancelled":
        reason = str(rows[0].labels.get("reason") or "cancelled")
        return PipelineOutput(status="cancelled", reason=reason)
    ended = client.get_workflow(run)
    if ended is None or ended.output is None:
        return PipelineOutput(status="fail", reason=f"the engine failed: {ended and ended.error}")
    with reading(run, ended.format):
        return unpack(ended.output, PipelineOutput)


# The history of a run.


class JournalReader:
    """Reads the journal of a run: each call continues where the last one stopped. Blocking."""

    def __init__(self, client: DatabaseClient, run: str) -> None:
        self._client, self._run = client, run
        self._count = 0
        self._last = set[int]()

    def read_new(self) -> list[JournalEntry]:
        """At most ``PAGE`` new entries. Raises ``UnreadableRecord``."""
        start = max(0, self._count - LATE)
        entries = self._client.journal(self._run, offset=start, limit=LATE + PAGE)
        # What was read before and is in these entries was in the last ones, too.
        new = [entry for entry in entries if entry.number not in self._last]
        self._last, self._count = {entry.number for entry in entries}, self._count + len(new)
        return new


async def follow_ends(
    reader: JournalReader,
    client: DatabaseClient,
    database: Database,
    run: str,
    wait: Callable[[float], Awaitable[None]],
) -> AsyncGenerator[list[Ended]]:
    """The ends of the visits of a run that ``reader`` has not read yet, as they come, until the run
    has ended. ``wait`` is called where there is nothing to read, with the seconds to wait at
    most."""
    pause, is_over = FIRST_POLL, False
    while True:
        entries = await read_patiently(database, reader.read_new)
        if ends := [end for entry in entries for end in ends_in(entry)]:
            yield ends
        if entries:
            pause = FIRST_POLL
            continue
        if is_over:
            return
        state = await read_patiently(database, lambda: client.state(run))
        is_over = state is None or state in ENDED_STATES
        if not is_over:  # else what it recorded before it ended is read
            pause = min(pause * 1.4, LAST_POLL)
            await wait(pause)


def ends_in(entry: JournalEntry) -> list[Ended]:
    """The ends of visits that a journal entry records. Raises ``UnreadableRecord``."""
    found: list[Message | Retrying | AgentAsks] = []
    if entry.name == NODES:
        found += unpack(entry.output, NodesStep).messages
    elif entry.name == RECEIVED and entry.output is not None:
        found.append(unpack_message(entry.output))
    elif entry.name == LOOKED:
        found += map(unpack_message, as_list(entry.output))
    return [each for each in found if isinstance(each, Ended)]


class AgentEventReader:
    """Reads the event files of all visits of a run; each call continues where the last stopped. A
    visit that has ended is removed from ``replay``."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._folder = RunDir(paths.local_run_folder(replay.run_input.config.folder))
        self._offsets: dict[str, int] = {}
        """Visit -> bytes read of its event file."""

    def merge(self, events_of_run: Iterable[PipelineEvent]) -> Iterator[RunEvent]:
        """The new events of the run, with the agents' events in between: after their node started
        and before it ended."""
        for event in events_of_run:
            if isinstance(event, StepCompleted | StepFailed):
                yield from self._unread(event.visit)
                self._replay.visits.pop(event.visit, None)
                self._offsets.pop(event.visit, None)
            yield event
        for visit in list(self._replay.visits):
            yield from self._unread(visit)

    def _unread(self, visit: str) -> Iterator[RunEvent]:
        command = self._replay.visits.get(visit)
        if command is None:
            return
        try:
            with (self._folder.visit_dir(visit) / EVENTS).open("rb") as file:
                file.seek(self._offsets.get(visit, 0))
                data = file.read()
        except OSError:
            return
        end = data.rfind(b"\n") + 1  # what follows is not complete yet
        self._offsets[visit] = self._offsets.get(visit, 0) + end
        for line in data[:end].splitlines():
            try:
                event = events.from_json(line)
            except msgspec.MsgspecError:
                continue  # written by another version of corral
            yield event if event.node == command.node else replace(event, node=command.node)


LOOKED, LOADED, NODES, TURN = "look", "load ", "nodes", "turn"
"""Names of journal entries that contain messages."""


class Replay:
    def __init__(self, run_input: RunInput) -> None:
        self.run_input = run_input
        self.scheduler = run_input.new_scheduler()
        self.events: list[PipelineEvent] = []
        self._stream = EventNumbering(run_input.run)
        self.visits: dict[str, RunNode] = {}
        """Started so far, by id."""
        self.children: dict[str, RunChild] = {}
        self.messages: list[Message] = []
        """Received so far, in order."""
        self.turns: list[tuple[ProgramTurn, list[StepEnd]]] = []
        """What the program of a workflow did, and the ends that it was given before."""
        self.command_positions: dict[str, int] = {}
        """Visit, question or child -> number of messages received before its command."""
        self.passed_positions: dict[str, int] = {}
        """Visit of a node that the scheduler executes itself -> number of commands before it."""
        self._questions: dict[str, Question] = {}
        self._pending: list[Message] = []
        self._reported: list[tuple[Message | Retrying, float]] = []
        """What local nodes reported at once. A run takes one after another, and a program goes on
        between two of them: its turns are recorded after all of them."""
        self._apply(self.scheduler.start(), run_input.at)
        self._take_pending(run_input.at)

    @property
    def graph(self) -> Graph:
        """Of a workflow: its steps so far."""
        graph = self.run_input.graph
        if isinstance(self.scheduler, Scheduler):
            return graph
        return graph_of((turn for turn, _ in self.turns), graph)

    @property
    def questions(self) -> list[Question]:
        """The open questions."""
        return [each for key, each in self._questions.items() if key in self.scheduler.state.open]

    def take_events(self) -> list[PipelineEvent]:
        """The events since the last call. The history before them is forgotten: who follows a run
        does not grow with it."""
        events, self.events = self.events, []
        for history in (self.turns, self.messages, self.command_positions, self.passed_positions):
            history.clear()
        return events

    def feed(self, entry: JournalEntry) -> None:
        """Process the next journal entry."""
        name, output, at = entry.name, entry.output, entry.at
        if name == TURN and isinstance(self.scheduler, WorkflowScheduler):
            turn, steps = unpack(output, TurnStep), self.scheduler
            ends = steps.take_ends()
            while not ends and self._reported:
                self._take(*self._reported.pop(0))
                ends = steps.take_ends()
            self.turns.append((turn, ends))
            self._apply(steps.take(turn, steps.find_known(turn)), at)
            self._reported += [(each, at) for each in turn.messages]
        elif name in (RECEIVED, LOOKED, NODES):
            self.take_reported()
        if name == RECEIVED and output is not None:
            self._take(unpack_message(output), at)
        elif name == LOOKED:
            for each in as_list(output):
                self._take(unpack_message(each), at)
        elif name == NODES:
            self._reported += [(each, at) for each in unpack(output, NodesStep).messages]
            if isinstance(self.scheduler, Scheduler):
                self.take_reported()
        elif name.startswith(LOADED) and isinstance(output, str):
            known = name.removeprefix(LOADED)
            self._pending.append(Ended(id=known, outcome=failed(output, retryable=False)))
        self._take_pending(at)

    def take_reported(self) -> None:
        """Nothing was recorded between the messages that nodes reported at once."""
        while self._reported:
            self._take(*self._reported.pop(0))

    def _take(self, message: Message | Retrying | AgentAsks, at: float) -> None:
        if isinstance(message, AgentAsks):  # the run publishes it itself
            return
        if isinstance(message, Retrying):
            self._record_event(message, at)
            return
        self.messages.append(message)
        self._apply(self.scheduler.receive(message), at)

    def _take_pending(self, at: float) -> None:
        while self._pending:
            self._take(self._pending.pop(0), at)

    def _apply(self, commands: list[Command], at: float) -> None:
        for command in commands:
            match command:
                case RunNode(id=known):
                    self.visits[known] = command
                    self._record_command(known)
                case RunChild(id=known):
                    self.children[known] = command
                    self._record_command(known)
                case EmitEvent(event=StepStarted(visit=known, kind=kind)) if (
                    kind in SCHEDULER_KINDS
                ):
                    self.passed_positions[known] = len(self.command_positions)
                case AskHuman(question=question):
                    self._questions[question.id] = question
                    self._record_command(question.id)
                case _:
                    pass
            self._record_event(command, at)

    def _record_event(self, command: Command | Retrying, at: float) -> None:
        event = self._stream.of(command, at)
        if event is not None:
            self.events.append(event)

    def _record_command(self, known: str) -> None:
        self.command_positions[known] = len(self.messages)
        message = self.run_input.known.get(known)
        if message is not None:
            self._pending.append(message)
