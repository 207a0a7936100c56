"""The content of a journal, as types: names, inputs and outputs of the workflows. All JSON.

They are small by design: long texts of a node are files of the run directory, and a graph is
stored once, with its run. A field may be added with a default; any other change needs a new
``stored_formats.JOURNAL``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from corral._core.lookup import run_of
from corral._core.spending import Spent
from corral._engine.batch.task_scheduler import BatchRound, BatchScheduler
from corral._engine.dbos.database import UnreadableRecord
from corral._engine.node_runner import Retrying
from corral._pipelines.graph import Graph, Value
from corral._pipelines.scheduler.commands import (
    Ended,
    Expired,
    FinishRun,
    Message,
    Question,
    RunNode,
    Woken,
)
from corral._pipelines.scheduler.outcome import Outcome
from corral._pipelines.scheduler.scheduler import Scheduler
from corral._pipelines.scheduler.state import State
from corral._pipelines.simulation import Simulate
from corral._system import paths
from corral._system.environment import is_scripted
from corral._workflows.program_turn import ProgramTurn, StoredProgram
from corral._workflows.scheduler import WorkflowScheduler
from corral.values import Json, as_object, as_text, convert_to

T = TypeVar("T")
RunStatus: TypeAlias = Literal["success", "fail", "cancelled"]
"""How a run has ended."""

RUN_WORKFLOW = "corral.run"
NODE_WORKFLOW = "corral.node"
BATCH_WORKFLOW = "corral.batch"
"""A run whose visits are the tasks of a batch."""
BATCH_CLOSED = "closed"
"""The label of a batch's round whose results were reported: the summary of the batch."""
TRIES = "tries"
BEGAN = "began"
"""Labels of a run that was continued after its end: the number of the try, and when the first one
began. Each try is a workflow: the first has the id of the run, the second ``RUN#2``."""
COMMIT = "internal.commit"
"""The key of an outcome's updates that has the commit after it, in a run with a worktree."""
QUESTIONS = "questions"
"""The key of the published event of a run: its open questions by id."""


class RunWorktree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The worktree of a run, on each machine that works for it. Who starts a run has reserved it
    (``run_worktree.reserved``)."""

    repository: str
    """A directory of this machine, or a URL that git can clone."""
    commit: str
    """The changes of the run are computed against it."""
    branch: str
    """The branch that the changes are saved to."""
    within: str = "."
    """The directory in it that is the workspace."""
    start_commit: str = ""
    """The commit of another run that this one continues from; empty: ``commit``."""
    is_remote: bool = False
    """Whether each machine has its own copy of the repository."""


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where and how the nodes of a run are executed."""

    folder: str
    """The run directory; a relative path is below ``runs`` of each machine's own home."""
    workspace: str
    simulate: Simulate = False
    agent: str = ""
    model: str = ""
    options: dict[str, Json] = {}
    """Options of ``corral.run`` for the agents of all nodes."""
    detached: bool | None = None
    """Whether agents run in an agent host, which outlives the worker. None at the start of a run:
    yes with a database file; no with a server, where other machines may take the run over."""
    tree: RunWorktree | None = None
    """The run's own worktree; then the workspace is a directory in it."""
    artifacts_url: str = ""
    """The URL that the artifacts are uploaded to at the end."""
    imports: tuple[str, ...] = ()
    """Modules that register node kinds, for an agent host to import."""
    source: str = ""
    """The pipeline's file, if it came from one."""
    goal: str = ""
    """The goal that replaced the one of the file."""
    limits: dict[str, Value] = {}
    """Those of the run as a whole that its start added to the graph's."""
    budgets: tuple[str, ...] = ()
    """The stores that limit the model calls of its nodes: of the outermost run first."""
    concurrency: int = 0
    """Nodes that run at once, if known: it decides how many agents are kept warm."""

    @property
    def labels(self) -> dict[str, Json]:
        """What lists show of a run or batch that has these settings."""
        return {
            "started_in": self.workspace if self.tree is None else self.tree.repository,
            "label": as_text(self.options.get("label")),
            "scripted": is_scripted({}) or bool(self.simulate),
        }

    def on_this_machine(self) -> RunConfig:
        """With the paths of this machine. Applying it twice changes nothing."""
        folder, workspace = paths.local_run_folder(self.folder), self.workspace
        if self.tree is not None:
            own = paths.worktree(self.tree.repository, self.tree.branch)
            workspace = str(own / "tree" / workspace)
        return replace(self, folder=folder, workspace=workspace)


class RunInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of ``corral.run``."""

    run_id: str
    graph: Graph
    config: RunConfig
    queue: str = ""
    at: float = 0.0
    """Start time by the clock of the process that started it, in seconds since the epoch."""
    values: dict[str, Json] = {}
    known: dict[str, Message] = {}
    """Results of visits and questions of the run that this one continues, by id."""
    forked_from: str = ""
    tries: int = 1
    """How often the run was started, with this time."""
    spent: Spent = Spent()
    """What earlier tries of the run have used for results that were not taken over."""
    reply_to: str = ""
    """The parent run, if this run is a node of another; ``reply_id`` is the visit there."""
    reply_id: str = ""
    depth: int = 0
    """Number of runs that this one is nested in."""
    lane: str = ""
    """The lane of the parent whose worktree the run works in, if it has one of its own."""
    local_nodes: bool = False
    """Whether nodes run in the process of the run, as tasks, instead of as queued workflows."""
    program: StoredProgram | None = None
    """Of a workflow. Its graph has no nodes."""
    batch: BatchRound | None = None
    """Of a batch. Its graph has one node."""

    @property
    def workflow(self) -> str:
        """The name of the workflow that executes it."""
        return RUN_WORKFLOW if self.batch is None else BATCH_WORKFLOW

    def without_tasks(self) -> RunInput:
        """What the nodes need of it: the tasks of a batch may be large."""
        if self.batch is None:
            return self
        return replace(self, batch=replace(self.batch, tasks=""))

    @property
    def run(self) -> str:
        """The id of the run that a person knows: without the number of the try."""
        return run_of(self.run_id)

    @property
    def spent_before(self) -> Spent:
        """What the known results of another run, and earlier tries, have cost."""
        known = [*self.known.values()]
        if self.program is not None:
            known = [each.message for each in self.program.known.values() if each.message]
        ended = [each.outcome for each in known if isinstance(each, Ended)]
        return self.spent + spent_on(ended)

    def new_scheduler(self) -> Scheduler | WorkflowScheduler | BatchScheduler:
        """A scheduler for this run from its beginning."""
        if self.batch is not None:
            return BatchScheduler(self.graph, self.batch, run_id=self.run_id)
        scheduler: Scheduler | WorkflowScheduler
        if self.program is None:
            scheduler = Scheduler(self.graph, run_id=self.run, values=self.values)
        else:
            known = self.program.known
            scheduler = WorkflowScheduler(self.graph, run_id=self.run, known=known)
        scheduler.state.cost_usd += self.spent.cost
        scheduler.state.tokens += self.spent.tokens
        return scheduler


class NodeInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of ``corral.node``: a visit, or a timer."""

    run_id: str
    visit: RunNode | None = None
    sleep: float = 0.0
    then: Expired | Woken | None = None
    """The message that is sent to the run after the sleep."""
    child: str = ""
    """The child run whose progress is read after the sleep."""


class NodesStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of a step in which a run waited for its local nodes."""

    messages: list[Ended | Retrying] = []
    """What the nodes reported, in order."""
    has_mail: bool = False
    """Whether a message waits in the inbox."""


class TurnStep(ProgramTurn, frozen=True, kw_only=True, omit_defaults=True):
    """The output of a step that records a turn of a program, and what nodes reported soon after."""

    messages: tuple[Ended | Retrying, ...] = ()
    has_mail: bool = False


class AgentAsks(msgspec.Struct, frozen=True, kw_only=True, tag="agent_asks"):
    """A message from a visit to its run: its agent asks a person."""

    question: Question


class PipelineOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of ``corral.run``."""

    status: RunStatus
    reason: str = ""
    context: dict[str, Json] = {}
    completed: list[str] = []
    outcomes: dict[str, Outcome] = {}
    cost_usd: float = 0.0
    tokens: int = 0
    saved: dict[str, Json] = {}
    """``workspace``: branch, commit and files. ``artifacts``: names, or why the upload failed."""

    @classmethod
    def of(cls, finish: FinishRun, state: State) -> PipelineOutput:
        """Of a run that ends so."""
        return cls(
            status=finish.status,
            reason=finish.reason,
            context=state.context,
            completed=state.completed,
            outcomes=state.outcomes,
            cost_usd=state.cost_usd,
            tokens=state.tokens,
        )

    @property
    def ok(self) -> bool:
        return self.status == "success"


def spent_on(outcomes: Iterable[Outcome]) -> Spent:
    known = [*outcomes]
    return Spent(
        sum(each.cost_usd or 0.0 for each in known), sum(each.tokens or 0 for each in known)
    )


def answer_key(question: str) -> str:
    """The key of the message that answers this question: only the first with a key counts."""
    return f"answered {question}"


def timer_id(run: str, question: str) -> str:
    """The id of the workflow that waits for the timeout of this question."""
    return f"{run}/{question}/timer"


def pack(value: msgspec.Struct) -> dict[str, Json]:
    return as_object(msgspec.to_builtins(value))


def unpack(raw: object, kind: type[T]) -> T:
    """Raises ``UnreadableRecord``."""
    try:
        return convert_to(raw, kind)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise UnreadableRecord(f"it is no {kind.__name__}: {error}") from error


def unpack_message(raw: object) -> Message | Retrying | AgentAsks:
    """Raises ``UnreadableRecord``."""
    try:
        message: Message | Retrying | AgentAsks = convert_to(raw, Message | Retrying | AgentAsks)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise UnreadableRecord(f"it is no message to a run: {error}") from error
    return message
