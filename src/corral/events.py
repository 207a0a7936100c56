"""The events of a run: one closed union for all agents.

``_sessions/event_normalizer.py`` guarantees for every agent:

- ``init`` comes first and ``done`` last, each exactly once;
- ``seq`` counts from 1 without gaps;
- every ``tool_result`` had its ``tool_use``; tools still open at the end are
  closed as ``cancelled``;
- the user's prompt, if the agent repeats it, is never part of the answer;
- what cannot be understood becomes ``log``, ``error`` (recoverable) or ``unknown``: it is never
  dropped and never raises.

In JSON, each event is one object per line with ``type`` as its tag. A missing field has its
default (``None``, false or empty). Fields are only added; ``VERSION`` is raised when the meaning
of a field changes.
"""

from __future__ import annotations

from functools import cache, partial
from typing import ClassVar, Literal

import msgspec

from corral.receipt import Receipt
from corral.values import (
    AskedQuestion,
    Cost,
    DeniedCall,
    FileChanged,
    Json,
    Proof,
    QuestionOutcome,
    Usage,
    UsageSource,
    decoder_for,
)

VERSION = 1
"""The version of the JSON form, sent with ``init``."""

OWN_VENDOR_EVENTS = frozenset({"prompt", "prompt_files", "run_facts"})
"""Names of ``vendor`` events that only corral makes: readers of a transcript rely on them."""

ToolKind = Literal[
    "read", "edit", "delete", "move", "search", "execute", "fetch", "think", "mcp", "other"
]
ToolStatus = Literal["success", "error", "denied", "cancelled"]
FileKind = Literal["created", "modified", "deleted", "moved"]
Decision = Literal["allow_once", "allow_session", "deny", "cancel"]
Decider = Literal["policy", "person", "timeout", "agent", "hook"]
AnswerType = Literal["text", "number", "integer", "boolean"]
Level = Literal["warning", "error"]
Status = Literal[
    "success",
    "error",
    "interrupted",
    "timeout",
    "max_turns",
    "max_budget",
    "denied",
    "incomplete",
]


class Envelope(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False
):
    """The fields of every event. ``gc=False``: events contain no cycles.

    ::

        print(event.seq, event.run_id, event.label)
    """

    seq: int = 0
    """1, 2, 3 …, without gaps."""
    ts: float = 0.0
    """Seconds since the epoch when the bytes of this event arrived."""
    run_id: str = ""
    """corral's id, one for each prompt."""
    session_id: str | None = None
    """The agent's own session id, once it is known."""
    agent: str = ""
    """Its name."""
    node: str | None = None
    """In a pipeline, the node."""
    parent: str | None = None
    """The id of the tool call that started the sub-agent of this event."""
    label: str | None = None
    """The option ``label``."""


class Init(Envelope, frozen=True, tag="init"):
    """The first event: the agent, its model and its tools.

    ::

        if event.type == "init":
            print(event.model, event.agent_version, event.sandbox)
    """

    type: ClassVar[Literal["init"]] = "init"
    model: str | None = None
    """The one that was requested."""
    cwd: str | None = None
    tools: tuple[str, ...] = ()
    agent_version: str | None = None
    capabilities: tuple[str, ...] = ()
    """What the agent can do: see ``corral agents show``."""
    resumed: bool = False
    """Whether it continues a conversation."""
    continued_from: str | None = None
    """corral's id of the session that this one continues: that of another agent, or the one that
    it was forked from."""
    auth: str | None = None
    """Which credentials are billed, if known: ``api_key`` or ``subscription``."""
    sandbox: str | None = None
    """Which of corral's sandboxes the agent runs in; None: in none."""
    sandbox_reason: str | None = None
    """Why it runs in a sandbox."""
    proof: Proof | None = None
    """What is known about the agent's program; None: there is no program."""
    metered: bool = False
    """Whether corral counts the model calls."""
    meter_reason: str | None = None
    """Why it does not."""
    version: int = msgspec.field(default_factory=partial(int, VERSION))
    """Of the format: it changes when the meaning of a field changes. Always written."""


class Text(Envelope, frozen=True, tag="text"):
    """A piece of the answer."""

    type: ClassVar[Literal["text"]] = "text"
    delta: str
    message_id: str | None = None
    """The message that it belongs to."""


class Thinking(Envelope, frozen=True, tag="thinking"):
    """A piece of the agent's thinking.

    ::

        if event.type == "thinking":
            print(event.delta, end="")
    """

    type: ClassVar[Literal["thinking"]] = "thinking"
    delta: str
    message_id: str | None = None


class ToolUse(Envelope, frozen=True, tag="tool_use"):
    """A tool call starts."""

    type: ClassVar[Literal["tool_use"]] = "tool_use"
    call_id: str
    """Also in the results and changes of this call."""
    name: str
    kind: ToolKind = "other"
    title: str | None = None
    input: Json = None
    paths: tuple[str, ...] = ()
    """The files that it names."""


class ToolOutput(Envelope, frozen=True, tag="tool_output"):
    """A piece of the output of a tool that still runs.

    ::

        if event.type == "tool_output":
            print(event.call_id, event.delta)
    """

    type: ClassVar[Literal["tool_output"]] = "tool_output"
    call_id: str
    delta: str


class ToolResult(Envelope, frozen=True, tag="tool_result"):
    """A tool call has ended.

    ::

        if event.type == "tool_result":
            print(event.name, event.status, event.duration_ms)
    """

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call_id: str
    status: ToolStatus
    name: str | None = None
    output: str | None = None
    error: str | None = None
    """Why it failed."""
    duration_ms: int | None = None


class FileChange(Envelope, frozen=True, tag="file_change"):
    """A confirmed write: the tool succeeded, or the file on disk changed."""

    type: ClassVar[Literal["file_change"]] = "file_change"
    path: str
    """Absolute. Quoted if its bytes are not UTF-8: see ``corral.values.path_from_printable``."""
    kind: FileKind
    call_id: str | None = None
    lines_added: int | None = None
    lines_removed: int | None = None


class PermissionRequest(Envelope, frozen=True, tag="permission_request"):
    """The agent asks for permission."""

    type: ClassVar[Literal["permission_request"]] = "permission_request"
    request_id: str
    call_id: str | None = None
    kind: ToolKind = "other"
    title: str | None = None
    input: Json = None


class PermissionDecision(Envelope, frozen=True, tag="permission_decision"):
    """A permission request was answered.

    ::

        if event.type == "permission_decision":
            print(event.decision, event.by, event.rule)
    """

    type: ClassVar[Literal["permission_decision"]] = "permission_decision"
    request_id: str
    decision: Decision
    by: Decider
    """Who decided."""
    call_id: str | None = None
    rule: str | None = None
    """The rule that decided, if it is known."""
    input: Json = None
    """The input that the call is made with, if ``on_tool_call`` edited it."""


class QuestionOption(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One choice that a question offers.

    ::

        if event.type == "question":
            print([option.label for field in event.fields for option in field.options])
    """

    label: str
    description: str | None = None


class QuestionField(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing that a person is asked. Without ``options``, the answer is a value of ``type``.

    ::

        if event.type == "question":
            print([(field.key, field.text, field.multiple) for field in event.fields])
    """

    key: str
    """Identifies the field in the answers."""
    text: str
    header: str | None = None
    """A short name for it."""
    options: tuple[QuestionOption, ...] = ()
    multiple: bool = False
    """Several options may be chosen."""
    free_text: bool = False
    """Another text than the options is an answer too."""
    type: AnswerType = "text"
    required: bool = True
    default: Json = None
    secret: bool = False
    """The answer must not be shown."""


class AgentQuestion(Envelope, frozen=True, tag="question"):
    """The agent, or an MCP server of it, asks a person."""

    type: ClassVar[Literal["question"]] = "question"
    kind: ClassVar[Literal["question"]] = "question"
    """Where a permission request has the kind of its tool."""
    request_id: str
    title: str = ""
    """What it is about."""
    fields: tuple[QuestionField, ...] = ()
    """Empty: it is only to be confirmed."""
    call_id: str | None = None
    source: str | None = None
    """The MCP server that asks; None: the agent."""

    @property
    def input(self) -> dict[str, Json]:
        """The fields, for functions that show the input of a permission request."""
        return {
            field.key: [option.label for option in field.options] or field.text
            for field in self.fields
        }


class QuestionAnswer(Envelope, frozen=True, tag="question_answer"):
    """A question was answered, or will not be.

    ::

        if event.type == "question_answer":
            print(event.outcome, event.answers)
    """

    type: ClassVar[Literal["question_answer"]] = "question_answer"
    request_id: str
    outcome: QuestionOutcome
    answers: dict[str, Json] = {}
    """By the keys of the fields. Secret answers are left out."""
    call_id: str | None = None
    reason: str | None = None
    """Who answered, or why there is no answer."""


class PlanEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a plan.

    ::

        if event.type == "plan":
            print([(entry.status, entry.content) for entry in event.entries])
    """

    content: str
    status: str | None = None
    priority: str | None = None


class Plan(Envelope, frozen=True, tag="plan"):
    """The agent's plan. Each plan replaces the one before.

    ::

        if event.type == "plan":
            print([entry.content for entry in event.entries])
    """

    type: ClassVar[Literal["plan"]] = "plan"
    entries: tuple[PlanEntry, ...]


class UsageReport(Envelope, frozen=True, tag="usage"):
    """Usage so far. Cumulative: do not add these up.

    ::

        if event.type == "usage":
            print(event.usage.total, event.cost)
    """

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage
    """So far in the turn: do not add them up."""
    context_size: int | None = None
    """The tokens that the context of the model can hold."""
    cost: Cost | None = None


CALLS_NOT_ASSIGNED = "calls_not_assigned"
"""The code of a warning: some model calls of the turn may be missing in its events."""


class ModelCall(Envelope, frozen=True, tag="model_call"):
    """A model call of the agent has ended, as corral counted it.

    ::

        if event.type == "model_call":
            print(event.model, event.usage, event.cost.usd)
    """

    type: ClassVar[Literal["model_call"]] = "model_call"
    model: str
    """The model that answered, else the one that was asked."""
    usage: Usage = Usage()
    """Of this call alone. ``estimated``, if the vendor did not report it."""
    cost: Cost = Cost()
    side: bool = False
    """It offers the model no tools: a title, a summary or a check beside the conversation."""
    partial: bool = False
    """There was no response, it was cut, or reported no complete usage: more may be billed."""
    status: int | None = None
    """The HTTP status; None if there was no response."""
    first_byte_ms: int | None = None
    duration_ms: int = 0
    error: str | None = None
    """Why there is no complete response."""


class Log(Envelope, frozen=True, tag="log"):
    """A line that is not JSON, such as a banner or a warning; long lines are cut.

    ::

        if event.type == "log":
            print(event.level, event.text)
    """

    type: ClassVar[Literal["log"]] = "log"
    text: str
    level: Level | None = None


class Error(Envelope, frozen=True, tag="error"):
    """A warning or an error. The run continues if it is ``recoverable``.

    ::

        if event.type == "error":
            print(event.level, event.code, event.message, event.hint)
    """

    type: ClassVar[Literal["error"]] = "error"
    code: str
    """Stable: that of the class in ``corral.errors``, or of a warning."""
    message: str
    recoverable: bool = False
    """The run continues."""
    retryable: bool = False
    """Another attempt can succeed."""
    level: Level = "error"
    hint: str | None = None
    phase: str | None = None
    facts: dict[str, Json] = {}
    """What is known of: exit code, signal, last stderr lines, last raw line, argv, version."""


class Vendor(Envelope, frozen=True, tag="vendor"):
    """An event that only one agent has.

    ::

        if event.type == "vendor":
            print(event.name, event.data)
    """

    type: ClassVar[Literal["vendor"]] = "vendor"
    name: str
    data: Json = None


class Unknown(Envelope, frozen=True, tag="unknown"):
    """A frame of unknown type, unchanged.

    ::

        if event.type == "unknown":
            print(event.frame)
    """

    type: ClassVar[Literal["unknown"]] = "unknown"
    frame: Json


class Done(Envelope, frozen=True, tag="done"):
    """The last event: the status, and what the run used and changed."""

    type: ClassVar[Literal["done"]] = "done"
    status: Status
    stop_reason: str | None = None
    """As the agent reports it."""
    model: str | None = None
    """The model that was used, if the agent reports it."""
    usage: Usage = Usage()
    usage_by_model: dict[str, Usage] = {}
    """Model → its share of ``usage``; empty if the agent does not report it."""
    cost: Cost = Cost()
    usage_source: UsageSource = "unknown"
    """Where ``usage`` comes from."""
    files: tuple[FileChanged, ...] = ()
    """What has changed: what tools report, and what changed on disk."""
    files_complete: bool = True
    """False if the folder was too large, or was shared with another run."""
    denied: tuple[DeniedCall, ...] = ()
    denied_complete: bool = True
    """False if the agent may not report all denied calls."""
    questions: tuple[AskedQuestion, ...] = ()
    """What the agent asked a person, with the answers."""
    resume_token: str | None = None
    """What ``resume=`` takes."""
    duration_ms: int = 0
    waited_ms: int = 0
    """The part of ``duration_ms`` in which it waited for rate limits to end."""
    error: Error | None = None
    text: str = ""
    """The complete answer, its messages separated by a blank line."""
    text_complete: bool = True
    """False if ``text`` is only the first million characters of the answer."""
    output: Json = None
    """The value of a typed run, as JSON."""
    receipt: Receipt | None = None
    """The evidence that the work is done, if the run was to be verified."""


Event = (
    Init
    | Text
    | Thinking
    | ToolUse
    | ToolOutput
    | ToolResult
    | FileChange
    | PermissionRequest
    | PermissionDecision
    | AgentQuestion
    | QuestionAnswer
    | Plan
    | UsageReport
    | ModelCall
    | Log
    | Error
    | Vendor
    | Unknown
    | Done
)

_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[Event]:
    return decoder_for(Event)


def to_json(event: Event) -> bytes:
    """The event as one line of JSON, without the newline.

    ::

        def write(event: corral.Event) -> None:
            log.write(corral.to_json(event) + b"\\n")

        with open("events.ndjson", "wb") as log:
            corral.run_sync("gemini-cli", "Say hello", on_event=write)
    """
    return _encoder.encode(event)


def from_json(line: bytes | str) -> Event:
    """The event of a line written by ``to_json`` of this or an older version.

    ::

        with open("events.ndjson", "rb") as lines:
            events = [corral.from_json(line) for line in lines]
    """
    return _decoder().decode(line)
