"""The result of a run, built from its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from corral._core.display import Card, Displayed, count, short_traceback, spent
from corral.errors import CorralError, from_event
from corral.events import (
    CALLS_NOT_ASSIGNED,
    Done,
    Error,
    Event,
    Init,
    Status,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from corral.receipt import Receipt, Verdict
from corral.values import (
    AskedQuestion,
    Cost,
    DeniedCall,
    FileChanged,
    Json,
    Proof,
    T_co,
    Usage,
    UsageSource,
    add_by_model,
    join_files,
)

__all__ = [
    "Result", "Value", "result_from_events",
]  # fmt: skip

Value = TypeVar("Value")

BLOCK_SIZE = 65_536
"""Characters, or pieces, of an answer that are joined at once."""


class Result(
    Displayed, msgspec.Struct, Generic[T_co], frozen=True, kw_only=True, omit_defaults=True
):
    """The result of a run.

    ``text`` is the complete answer, its messages separated by a blank line; ``final_text`` is
    the last message only. ``Result[Review]`` is the result of a run with ``output=Review``,
    ``Result[None]`` that of a run without ``output``.

    ::

        result = corral.run_sync("gemini-cli", "Fix the typo", policy="edits")
        if result.ok:
            print(result.text, [file.path for file in result.files], result.usage.total)
        else:
            print(result.status, result.error)
    """

    status: Status
    text: str = ""
    """Everything that the agent answered, messages separated by a blank line."""
    final_text: str = ""
    """Its last message."""
    _output: Any = msgspec.field(default=None, name="output")
    """The value; UNSET if one was requested and the run failed."""
    files: tuple[FileChanged, ...] = ()
    """What has changed, except corral's own files: what tools report, and what changed on disk."""
    files_complete: bool = True
    """False if the folder was too large, or was shared with another run."""
    denied: tuple[DeniedCall, ...] = ()
    denied_complete: bool = True
    """False if the agent may not report all denied calls."""
    questions: tuple[AskedQuestion, ...] = ()
    """What the agent asked a person, with the answers; also what no one answered."""
    usage: Usage = Usage()
    usage_by_model: dict[str, Usage] = {}
    """Model → its share of ``usage``; empty if the agent does not report it."""
    cost: Cost = Cost()
    usage_source: UsageSource = "unknown"
    """Who counted the tokens: ``metered``, corral itself; ``reported``, the agent."""
    meter_reason: str | None = None
    """Why corral does not count the model calls."""
    stop_reason: str | None = None
    """As the agent reports it."""
    run_id: str = ""
    """corral's id of this run."""
    agent: str = ""
    session_id: str | None = None
    """The agent's own id."""
    resume_token: str | None = None
    """What ``resume=`` takes."""
    continued_from: str | None = None
    """corral's id of the session that this one continues: that of another agent, or the one that
    it was forked from."""
    model: str | None = None
    """The model that was used, if the agent reports it."""
    agent_version: str | None = None
    auth: str | None = None
    """Which kind of credentials was used, if known."""
    sandbox: str | None = None
    """Which of corral's sandboxes the agent ran in; None: in none."""
    sandbox_reason: str | None = None
    """Why it ran in a sandbox: the option, or what the agent alone could not enforce."""
    proof: Proof | None = None
    """What is known about the agent's program: ``tested``, ``probed``, ``trusted`` or ``untested``;
    None: there is no program."""
    duration: float = 0.0
    """Seconds."""
    waited: float = 0.0
    """Seconds of ``duration`` in which it waited for rate limits to end."""
    error: Error | None = None
    """Why it failed; ``raise_for_status()`` raises it."""
    label: str | None = None
    """The option ``label``."""
    receipt: Receipt | None = None
    """The evidence that the work is done; None if nothing was to be verified."""
    rounds: int = 0
    """With ``until=verified(…)``: how many rounds there were."""
    kept_round: int | None = None
    """With ``until=verified(…)``: the round, from 1, whose files are in the folder and which
    ``receipt`` is about; None if no round was judged."""

    @property
    def ok(self) -> bool:
        return self.status == "success"

    @property
    def verdict(self) -> Verdict:
        """``verified`` if every check of ``verify`` has passed; ``gaps`` if something is missing;
        ``unverified`` without ``verify``, and for a run that failed."""
        return "unverified" if self.receipt is None else self.receipt.verdict

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing for ``verified``, one sentence each."""
        return () if self.receipt is None else self.receipt.gaps

    def _card(self) -> Card:
        """What a Python prompt and a notebook show of the result."""
        facts = (
            *filter(None, (self.agent, self.model)),
            *count(len(self.files), "file"),
            *count(len(self.denied), "denied call"),
            *spent(self.usage, self.cost, self.duration),
        )
        text = self.text if self.ok or self.error is None else str(from_event(self.error))
        return Card(f"Result {self.status}", facts, text)

    @property
    def output(self) -> T_co:
        """The value of the type that was given as ``output``; None if none was given. If the run
        failed there is no value: raises the run's error."""
        with short_traceback:
            if self._output is msgspec.UNSET:
                raise self._failure()
            value: T_co = self._output
            return value

    @short_traceback
    def raise_for_status(self) -> Result[T_co]:
        """This result if it is a success. Otherwise raises its error."""
        if self.ok:
            return self
        raise self._failure()

    def _failure(self) -> CorralError:
        error = self.error or Error(code="error", message=f"the run ended as {self.status}")
        return from_event(error, self)


def with_output(result: Result, value: Value) -> Result[Value]:
    """The same result with a value."""
    return msgspec.structs.replace(result, _output=value)


def without_output(result: Result) -> Result:
    """The same result, of a run that has failed to return the requested value."""
    return msgspec.structs.replace(result, _output=msgspec.UNSET)


class _AnswerMessage:
    """A growing text that needs little more memory than the text itself: small pieces are joined
    to blocks as they come, and the blocks are freed while they are joined."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._blocks: list[str] = []

    def add(self, pieces: list[str], size: int) -> None:
        """``size``: of the pieces together."""
        self._pieces += pieces
        self._size += size
        if self._size >= BLOCK_SIZE or len(self._pieces) >= BLOCK_SIZE:
            self._close()

    def _close(self) -> None:
        self._blocks.append("".join(self._pieces))
        self._pieces.clear()
        self._size = 0

    def text(self) -> str:
        self._close()
        blocks, self._blocks = self._blocks, []
        blocks.reverse()
        text = ""
        # In place, as there is no other reference to text. Python 3.11 does this in a `for` loop
        # only: a `while` loop that runs once is never specialized, and copies the text each time.
        for _ in range(len(blocks)):
            text += blocks.pop()
        self._blocks = [text]
        return text


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The text of an answer, and its last message."""

    text: str
    final_text: str


_NO_INIT = Init()


class ResultBuilder:
    """Collects events into a ``Result``. Only the text of the answer is stored."""

    def __init__(self, limit: int | None = None) -> None:
        """``limit``: characters of the answer that are stored at most."""
        self.limit = limit
        self.is_cut: bool = False
        """Whether the answer is longer than the limit."""
        self._size = 0
        self._messages: list[_AnswerMessage] = []
        self._starts_message = True
        self._message_id: str | None = None
        self._init = _NO_INIT
        self._done: Done | None = None
        self._meter_reason: str | None = None

    def add(self, event: Event) -> None:
        self.add_all((event,))

    def add_all(self, events: Iterable[Event]) -> None:
        """As ``add`` of each. Pieces of one message are stored together: they come by the hundred
        thousand."""
        pieces: list[str] = []
        for event in events:
            if event.parent is not None:
                continue  # the text of a sub-agent is not part of the answer
            if type(event) is Text:
                id = event.message_id
                # A piece without an id continues the message before it.
                if self._starts_message or (id is not None and id != self._message_id):
                    self._store(pieces)
                    pieces = []
                    self._messages.append(_AnswerMessage())
                    self._message_id = id
                    self._starts_message = False
                pieces.append(event.delta)
            elif type(event) is ToolUse or type(event) is ToolResult:
                self._starts_message = True
            elif isinstance(event, Init):
                self._init, self._done = event, None
                self._starts_message = True
            elif isinstance(event, Done):
                self._done = event
            else:
                self._add_other(event)
        self._store(pieces)

    def _add_other(self, event: Event) -> None:
        if isinstance(event, Error) and event.code == CALLS_NOT_ASSIGNED:
            self._meter_reason = event.message
        elif getattr(event, "call_id", None) is not None or isinstance(event, Thinking):
            self._starts_message = True

    def _store(self, pieces: list[str]) -> None:
        """Add the pieces to the last message, up to the first with which the answer is longer than
        the limit."""
        if not pieces:
            return
        before, size = self._size, sum(map(len, pieces))
        self._size += size
        if self.limit is not None and self._size > self.limit:
            self.is_cut = True
            fitting: list[str] = []
            for piece in pieces:
                before += len(piece)
                if before <= self.limit:
                    fitting.append(piece)
            pieces, size = fitting, sum(map(len, fitting))
        self._messages[-1].add(pieces, size)

    @property
    def has_ended(self) -> bool:
        """Whether the last turn has ended."""
        return self._done is not None

    def answer(self) -> Answer:
        """The answer so far."""
        texts = (message.text() for message in self._messages)
        messages = [text for text in texts if text and not text.isspace()]
        return Answer(
            text=messages[0]
            if len(messages) == 1
            else "\n\n".join(message.strip("\n") for message in messages),
            final_text=messages[-1] if messages else "",
        )

    def result(self) -> Result[Json]:
        done = self._done or Done(status="incomplete")
        answer = self.answer() if self._messages else Answer(done.text, done.text)
        return Result(
            status=done.status,
            text=answer.text,
            final_text=answer.final_text,
            _output=done.output,
            files=done.files,
            files_complete=done.files_complete,
            denied=done.denied,
            denied_complete=done.denied_complete,
            questions=done.questions,
            usage=done.usage,
            usage_by_model=done.usage_by_model,
            cost=done.cost,
            usage_source=done.usage_source,
            meter_reason=self._meter_reason or self._init.meter_reason,
            stop_reason=done.stop_reason,
            run_id=done.run_id or self._init.run_id,
            agent=done.agent or self._init.agent,
            session_id=done.session_id,
            resume_token=done.resume_token,
            continued_from=self._init.continued_from,
            model=done.model or self._init.model,
            agent_version=self._init.agent_version,
            auth=self._init.auth,
            sandbox=self._init.sandbox,
            sandbox_reason=self._init.sandbox_reason,
            proof=self._init.proof,
            duration=done.duration_ms / 1000,
            waited=done.waited_ms / 1000,
            error=done.error,
            label=done.label or self._init.label,
            receipt=done.receipt,
        )


def combine_results(earlier: Result, later: Result) -> Result:
    """The later result, with what the earlier turns of the same run spent, changed and were
    refused."""
    has_one_source = earlier.usage_source == later.usage_source or earlier.usage == Usage()
    by_model = [earlier.usage_by_model, later.usage_by_model]
    if any(by_model) or earlier.model != later.model:
        by_model = [_by_model(earlier), _by_model(later)]
    # A turn that used nothing has no cost, which is not an unknown one.
    spending = [turn for turn in (earlier, later) if (turn.usage, turn.cost) != (Usage(), Cost())]
    return msgspec.structs.replace(
        later,
        files=join_files(earlier.files, later.files),
        files_complete=earlier.files_complete and later.files_complete,
        denied=(*earlier.denied, *later.denied),
        denied_complete=earlier.denied_complete and later.denied_complete,
        questions=(*earlier.questions, *later.questions),
        usage=earlier.usage + later.usage,
        usage_by_model=add_by_model(*by_model),
        usage_source=later.usage_source if has_one_source else "reported",
        cost=earlier.cost + later.cost if len(spending) > 1 else (*spending, later)[0].cost,
        duration=earlier.duration + later.duration,
        waited=earlier.waited + later.waited,
    )


def _by_model(turn: Result) -> dict[str, Usage]:
    """The shares of the models; of an agent that reports none, all of it is that of its model."""
    if turn.usage_by_model or turn.model is None or turn.usage == Usage():
        return turn.usage_by_model
    return {turn.model: turn.usage}


def result_from_events(events: Iterable[Event]) -> Result[Json]:
    """The result of a complete stream of events; ``output`` is the value as JSON. Of several turns,
    it is that of the last, with what all of them wrote, spent, changed and were denied.

    ::

        with open("events.ndjson", "rb") as lines:
            result = corral.result_from_events(map(corral.from_json, lines))
    """
    builder = ResultBuilder()
    before: Result[Json] | None = None
    for event in events:
        if isinstance(event, Init) and builder.has_ended:
            before = _combined(before, builder)
        builder.add(event)
    return _combined(before, builder)


def _combined(before: Result[Json] | None, builder: ResultBuilder) -> Result[Json]:
    result = builder.result()  # its text is that of all turns
    return result if before is None else combine_results(before, result)
