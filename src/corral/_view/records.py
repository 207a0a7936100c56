"""The types of the HTTP API: what requests and responses contain.

``openapi`` makes the schemas of these. Times are seconds since the epoch, costs are US dollars. A
value that is not known is null, never 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from corral._core.spending import BudgetState, LimitFields, Raise
from corral.errors import ConfigError
from corral.events import PlanEntry
from corral.values import Cost, FileChanged, Json, Usage

Kind = Literal["session", "pipeline", "batch"]
ItemKind = Literal[
    "init",
    "prompt",
    "text",
    "thinking",
    "tool",
    "plan",
    "permission",
    "file",
    "error",
    "log",
    "usage",
    "vendor",
    "done",
]
RowKind = Literal["same", "changed", "added", "removed"]


class NotFound(ConfigError):
    """There is no such run, session, batch, turn or node."""

    code = "not_found"


class BodyTooLarge(ConfigError):
    """The body of a request is longer than the server accepts."""

    code = "too_large"


class Unavailable(ConfigError):
    """The server accepts no work now."""

    code = "unavailable"


class ServedConflict(ConfigError):
    """The request contradicts an earlier one."""

    code = "conflict"


class ErrorDetail(msgspec.Struct, kw_only=True):
    code: str
    message: str
    hint: str | None = None


class ErrorBody(msgspec.Struct, kw_only=True):
    """The body of every response that is not a success."""

    error: ErrorDetail


class PendingLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    text: str
    style: str = ""
    """`bold`, `green`, `red` or `cyan`."""


class Pending(msgspec.Struct, kw_only=True):
    """Something that waits for a person."""

    kind: Literal["permission", "question"]
    run_kind: Kind
    run_id: str
    request_id: str
    """What an answer must name."""
    title: str = ""
    text: str = ""
    """The question; of a permission, its input as text."""
    lines: list[PendingLine] = []
    """What a permitted call would do: the command, the change of a file as a diff."""
    choices: list[str] = []
    free_text: bool = False
    """Whether a text is an answer too, beside the choices."""
    node: str | None = None
    since: float | None = None
    deadline: float | None = None
    answerable: bool = True
    """False if no process is there to receive an answer."""
    db: str | None = None


class Summary(msgspec.Struct, kw_only=True):
    """A run in a list."""

    kind: Kind
    id: str
    db: str | None = None
    """The database of a pipeline or batch, if it is not the default one."""
    title: str = ""
    agent: str = ""
    model: str | None = None
    cwd: str = ""
    label: str | None = None
    state: str
    """A word for programs, such as ``running`` or ``waiting_permission``."""
    state_text: str
    """The same for people, with the reason if there is one."""
    created: float = 0.0
    updated: float = 0.0
    last_event: float | None = None
    turns: int | None = None
    """Of a session: its prompts. Of a batch: its tasks."""
    tokens: int | None = None
    cost_usd: float | None = None
    cost_source: str = "unknown"
    live: bool = False
    """Whether a process runs it now."""
    pending: int = 0
    """How many permissions and questions wait for a person."""
    snippet: str = ""
    """The text around the first hit of a search."""
    comparison: bool = False
    """Whether a batch is a comparison of agents: ``/api/compare`` has its results."""


class RunPage(msgspec.Struct, kw_only=True):
    runs: list[Summary]
    next: str | None = None
    """The cursor of the next page; null on the last."""
    warnings: list[str] = []
    """What could not be read."""


class Tokens(Usage, frozen=True, kw_only=True, omit_defaults=False):
    """Token counts. ``input`` includes the cache, ``output`` includes ``reasoning``."""


class Money(Cost, frozen=True, kw_only=True, omit_defaults=False):
    """A cost, and where it is known from."""


class TurnInfo(msgspec.Struct, kw_only=True):
    """One prompt of a session, and what came of it."""

    number: int
    prompt: str = ""
    """The beginning of the prompt."""
    started: float = 0.0
    duration_ms: int | None = None
    status: str = "unfinished"
    model: str | None = None
    usage: Tokens = msgspec.field(default_factory=Tokens)
    cost: Money = msgspec.field(default_factory=Money)
    files: list[FileChanged] = []
    files_total: int = 0
    denied: list[str] = []
    has_diff: bool = False
    error: str | None = None
    log_start: int = 0
    log_end: int | None = None
    """Bytes of the log; null while the turn has not ended."""


class Facts(msgspec.Struct, kw_only=True):
    """The process behind a session."""

    agent: str
    version: str | None = None
    model: str | None = None
    cwd: str = ""
    argv: list[str] = []
    """Redacted. Known of a run that failed, and of a run that is live."""
    auth: str | None = None
    sandbox: str | None = None
    sandbox_reason: str | None = None
    policy_report: str = ""
    """How the policy was enforced, one capability per line."""
    capabilities: list[str] = []
    tools: list[str] = []
    stderr_tail: str = ""
    pid: int | None = None
    can_steer: bool = False
    """Whether a process runs it now, and its agent takes a text while it works."""
    session_id: str | None = None
    """The agent's own id of the session."""
    resume_command: str | None = None
    """Continues the session with corral."""
    native_resume_command: str | None = None
    """Continues the session in the agent's own program."""


class LogInfo(msgspec.Struct, kw_only=True):
    """How the log can be read."""

    size: int
    pages: int
    page_bytes: int
    turns_complete: bool = True
    """False if the log is so large that not all of its turns are known yet: ask again."""


class PlanStep(PlanEntry, frozen=True, kw_only=True, omit_defaults=False):
    """One step of a plan."""


class SessionDetail(msgspec.Struct, kw_only=True):
    summary: Summary
    turns: list[TurnInfo]
    facts: Facts
    pending: list[Pending]
    log: LogInfo
    plan: list[PlanStep] = []
    usage: Tokens = msgspec.field(default_factory=Tokens)
    context: int | None = None
    """Tokens of the conversation, as the model last got it."""
    context_window: int | None = None
    """Tokens that the model takes."""
    budgets: list[BudgetState] = []
    """Its budget, then those that this one is part of."""


class ToolInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    call_id: str
    name: str
    kind: str = "other"
    title: str = ""
    target: str = ""
    """The path, command or address that the call is about, in one line."""
    status: str | None = None
    """Null while it runs."""
    duration_ms: int | None = None
    exit: int | None = None
    preview: str = ""
    """The beginning of the output, or the error."""
    has_more: bool = False
    """Whether the complete item has more than this."""


class PermissionInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    request_id: str
    title: str = ""
    input: str = ""
    decision: str | None = None
    """Null while it is pending."""
    by: str | None = None
    rule: str | None = None
    call_id: str | None = None
    pending: bool = False


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A piece of a conversation, made of one or several events."""

    key: int
    """The byte offset of its first event: unique in a log, and in order."""
    seq: int = 0
    ts: float = 0.0
    kind: ItemKind
    parent: str | None = None
    """The tool call whose sub-agent this belongs to."""
    html: str | None = None
    """Safe HTML, rendered from Markdown."""
    text: str | None = None
    more: bool = False
    """Whether the text is cut; the complete item has the rest."""
    continued: bool = False
    """Whether this continues the text of the item before it, on an earlier page."""
    tool: ToolInfo | None = None
    permission: PermissionInfo | None = None
    plan: list[PlanStep] = []
    usage: Tokens | None = None
    cost_usd: float | None = None
    status: str | None = None
    """Of ``done``: how the turn ended; of ``error``: its code; of ``file``: what happened."""
    children: int = 0
    """Items of the sub-agent of this tool call, on this page."""


class ItemPage(msgspec.Struct, kw_only=True):
    page: int
    pages: int
    first_byte: int
    last_byte: int
    """The end of the last complete line: the cursor with which a stream goes on."""
    page_bytes: int
    items: list[Item]


class ItemBody(msgspec.Struct, kw_only=True):
    """A complete item."""

    item: Item
    input: str | None = None
    output: str | None = None
    error: str | None = None
    text: str | None = None
    html: str | None = None
    truncated: bool = False


class RawEvent(msgspec.Struct, kw_only=True):
    offset: int
    line: str
    truncated: bool = False


class RawPage(msgspec.Struct, kw_only=True):
    events: list[RawEvent]
    page: int
    pages: int
    next: int | None = None
    """With ``q``: the page where the search goes on; null at the end of the log."""


class Cell(msgspec.Struct, kw_only=True):
    n: int
    text: str


class DiffRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    kind: RowKind
    left: Cell | None = None
    right: Cell | None = None


class Hunk(msgspec.Struct, kw_only=True):
    old_start: int
    new_start: int
    rows: list[DiffRow]


class FileDiff(msgspec.Struct, kw_only=True):
    path: str
    kind: str = "modified"
    added: int = 0
    removed: int = 0
    binary: bool = False
    note: str = ""
    """Why there are no lines, if there are none."""
    hunks: list[Hunk] = []
    truncated: bool = False


class Diff(msgspec.Struct, kw_only=True):
    files: list[FileDiff]


class Done(msgspec.Struct, kw_only=True):
    """What an action did."""

    done: bool = True
    message: str = ""
    id: str | None = None
    """The run that was started, if one was."""


class DecisionBody(msgspec.Struct, kw_only=True):
    decision: Literal["allow_once", "allow_session", "deny", "cancel"]


class TextBody(msgspec.Struct, kw_only=True):
    text: str
    gate: str | None = None
    """The question's id, if several are open."""


class GateAnswerBody(TextBody, kw_only=True):
    """An answer to a question of a pipeline: a choice (its key, label or target), or a text."""

    comment: str = ""
    """What the person says beside the choice: `human.gate.text`."""


class BudgetBody(Raise, frozen=True, kw_only=True):
    """By how much the limits of a budget are raised: US dollars, tokens and model calls."""


class AnswerBody(msgspec.Struct, kw_only=True):
    """An answer by a one-time link."""

    decision: Literal["allow_once", "allow_session", "deny", "cancel"] | None = None
    text: str | None = None
    comment: str = ""
    """What the person says beside a choice, if the gate of a pipeline is answered."""


class NodeBody(msgspec.Struct, kw_only=True):
    node: str


class GraphNode(msgspec.Struct, kw_only=True):
    id: str
    label: str
    kind: str
    state: str
    """``idle``, ``running``, ``waiting``, or the status of its last outcome."""
    attempts: int = 0
    visits: int = 0
    cost_usd: float | None = None
    tokens: int | None = None
    started: float | None = None
    ended: float | None = None
    visit: str | None = None
    """Its last visit."""
    session: str | None = None
    """The session of its agent, if it has one."""
    notes: str = ""
    reason: str = ""


class GraphEdge(msgspec.Struct, kw_only=True):
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    label: str = ""
    taken: int = 0


class GraphView(msgspec.Struct, kw_only=True):
    svg: str
    """Without colors: nodes have ``data-node``, edges ``data-edge`` (their number)."""
    nodes: list[GraphNode]
    edges: list[GraphEdge]


class VisitInfo(msgspec.Struct, kw_only=True):
    """One step of the path that a run took."""

    visit: str
    node: str
    started: float
    ended: float | None = None
    status: str = "running"
    attempts: int = 1
    has_log: bool = False


class PipelineFacts(msgspec.Struct, kw_only=True):
    """What is known of a run of a pipeline besides its events."""

    durable: bool = True
    """False for a run in memory: it asks where it was started, and cannot be retried."""
    goal: str = ""
    folder: str = ""
    workspace: str = ""
    branch: str = ""
    forked_from: str = ""
    reason: str = ""
    budgets: list[BudgetState] = []
    """Its budget, while it has not ended."""
    logs: list[str] = []


class PipelineDetail(PipelineFacts, kw_only=True):
    """One run of a pipeline."""

    summary: Summary
    graph: GraphView
    questions: list[Pending]
    path: list[VisitInfo]


class PipelineCheckpoint(msgspec.Struct, kw_only=True):
    """What a run has done so far: the content of `checkpoint.json`."""

    timestamp: str = ""
    run_id: str = ""
    status: str = ""
    reason: str = ""
    current_node: str = ""
    completed_nodes: list[str] = []
    node_outcomes: dict[str, Json] = {}
    node_retries: dict[str, int] = {}
    context: dict[str, Json] = {}
    logs: list[str] = []
    cost_usd: float = 0.0
    tokens: int = 0


class PipelineContext(msgspec.Struct, kw_only=True):
    """The context of a run, as it is now."""

    context: dict[str, Json]


class StartBody(LimitFields, msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline to run: the options of `corral pipeline run`."""

    file: str
    """The file of the pipeline; a relative path is below `cwd`."""
    cwd: str | None = None
    """Where its agents and commands work; the folder of the server by default."""
    goal: str | None = None
    values: dict[str, Json] = {}
    """Values of the context."""
    agent: str | None = None
    model: str | None = None
    approve: Literal["reads", "edits", "all"] | None = None
    on_budget: Literal["stop", "pause"] | None = None
    simulate: bool = False


class PipelineEventInfo(msgspec.Struct, kw_only=True):
    """One event of a run, for replay."""

    seq: int
    ts: float
    type: str
    node: str | None = None
    visit: str | None = None
    text: str = ""
    state: str | None = None
    """The state of the node after this event."""
    edges: list[int] = []
    """The numbers of the edges that led to the node: several where branches meet."""


class PipelineEvents(msgspec.Struct, kw_only=True):
    events: list[PipelineEventInfo]
    next: int


class BatchRow(msgspec.Struct, kw_only=True):
    task: str
    status: str
    error: str | None = None
    code: str | None = None
    session: str | None = None
    seconds: float | None = None
    attempts: int | None = None
    cost_usd: float | None = None
    tokens: int | None = None
    text: str = ""


class FailureGroup(msgspec.Struct, kw_only=True):
    code: str
    message: str
    count: int
    tasks: list[str]


class BatchDetail(msgspec.Struct, kw_only=True):
    summary: Summary
    total: int
    succeeded: int
    failed: int
    running: int
    left: int
    prompt: str = ""
    output: str = ""
    folder: str = ""
    rounds: int = 1
    command: str | None = None
    """The command line that started it."""
    failures: list[FailureGroup]
    rows: list[BatchRow]
    next: str | None = None
    budgets: list[BudgetState] = []
    """Its budget, while it has not ended."""


class MergeRun(msgspec.Struct, kw_only=True):
    """The run that made a branch."""

    kind: Kind
    id: str
    db: str | None = None
    comparison: bool = False


class MergeRow(msgspec.Struct, kw_only=True):
    """A branch in a merge queue."""

    number: int
    branch: str
    state: Literal["queued", "rebasing", "checking", "owner", "interrupted", "merged", "failed"]
    state_text: str
    """The same for people."""
    reason: str
    """Why it failed, or waits for its owner."""
    output: str
    """The end of the gate's output, if the gate failed."""
    files: list[str]
    """Files in conflict."""
    rounds: int
    """How often its owner has answered."""
    owner: str
    """The agent that is asked; empty: none."""
    session: str | None = None
    """The session that made the branch, or repaired it last."""
    run: MergeRun | None = None
    commit: str
    """The branch when it was queued, or as its owner left it."""
    result: str
    """The commit that the target got."""
    cost_usd: float
    queued: float
    ended: float | None = None


class MergeQueueInfo(msgspec.Struct, kw_only=True):
    """The queue of one target branch."""

    id: str
    repository: str
    into: str
    gates: list[str]
    tip: str | None
    """The last commit of what is merged; null if the branch or its repository is gone."""
    working: bool
    """Whether a process merges it now."""
    pending: str
    """What to do to get the merged branches into a checkout that has changes."""
    command: str | None
    """The command that continues it, if it has open branches and no process merges it."""
    rounds: int
    """How often the owner of a branch is asked at most."""
    open: int
    merged: int
    failed: int
    changed: float
    rows: list[MergeRow]
    """The open branches, the next one first; then those that have ended, the last one first."""


class MergeList(msgspec.Struct, kw_only=True):
    queues: list[MergeQueueInfo]
    left: int = 0
    """How many queues are not in the list."""


class UsageRow(msgspec.Struct, kw_only=True):
    key: str
    tokens: Tokens
    cost_usd: float | None = None
    """None: the cost of no turn is known."""
    cost_by_source: dict[str, float] = {}
    """`metered`, `reported` or `computed` → its part of the cost."""
    turns_without_cost: int = 0
    """Their cost is not known: it is not in the sum."""
    turns_partial: int = 0
    """More may be billed for them."""
    runs: int = 0
    turns: int = 0


class UsageReport(msgspec.Struct, kw_only=True):
    rows: list[UsageRow]
    by: str
    days: int
    complete: bool = True
    """False if some logs were not read in time: ask again."""


class ServerInfo(msgspec.Struct, kw_only=True):
    """What this server is."""

    version: str
    home: str
    platform: str
    engine: bool
    """Whether pipelines and batches can be read (the extra ``engine``)."""
    pending: list[Pending]
    open: str | None = None
    """The page that ``corral view RUN`` asked for."""


class StateUpdate(msgspec.Struct, kw_only=True):
    """The event ``state``: how a run is now."""

    summary: Summary
    pending: list[Pending]


class ItemsUpdate(msgspec.Struct, kw_only=True):
    """The event ``items``: items that are new or have changed."""

    items: list[Item]


class RunsUpdate(msgspec.Struct, kw_only=True):
    """The event ``runs``: runs that are new or have changed, and those that are gone."""

    runs: list[Summary]
    removed: list[str] = []


class PendingUpdate(msgspec.Struct, kw_only=True):
    """The event ``pending``: everything that waits for a person."""

    count: int
    pending: list[Pending]


class MergesUpdate(msgspec.Struct, kw_only=True):
    version: str
    """Another one whenever some merge queue has changed."""


class EndUpdate(msgspec.Struct, kw_only=True):
    """The event ``end``: nothing more follows."""

    reason: str
