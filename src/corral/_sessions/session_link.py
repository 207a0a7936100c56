"""What connects a session with people elsewhere: its current turn as other processes see it, and
the messages that it sends (``notify``).

A person who is asked may be anywhere: at this terminal, at another one, at the page, or elsewhere
with a token. The first answer counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakMethod

import msgspec
from msgspec.structs import replace

from corral._core.display import shorten
from corral._core.nesting import decode_json
from corral._publishing import notify, tokens
from corral._publishing.link import SessionLink
from corral._publishing.publisher import LiveEntry, LiveQuestion
from corral._publishing.records import PART_OF, LiveRun, Pending, folder
from corral._system import clock
from corral._system.environment import SecretRedactor
from corral.errors import StorageFailed
from corral.events import AgentQuestion, Done, PermissionRequest, QuestionField
from corral.values import convert_to

if TYPE_CHECKING:
    from corral._core.question_replies import AnswerLike
    from corral._sessions.prepared_run import PreparedRun
    from corral._sessions.store import SessionRecord


LONGEST_TEXT = 4000
"""Characters of an answer in a message."""
LONGEST_TITLE = 500
PERSON = "person"
"""The capability of an agent that is a person."""
HERE = "where the run was started"
CLEANUP = 5.0
"""Seconds for a question that was answered elsewhere to end here."""


def publish_turn(
    prepared: PreparedRun,
    record: SessionRecord,
    title: str,
    cancel: Callable[[], None],
    steer: WeakMethod[Callable[[str], None]] | None,
    recorded: bool,
) -> SessionLink:
    """Show the current turn of the session to others. ``recorded``: it has a transcript."""
    now = clock.now()
    asks_person = PERSON in prepared.agent.capabilities
    question = Pending(request_id="", kind="question", title=title, since=now)
    run = LiveRun(
        kind="session",
        id=record.meta.id,
        title=title,
        agent=prepared.agent.name,
        model=prepared.run.model,
        cwd=prepared.cwd,
        label=record.meta.label,
        recorded=recorded,
        part_of=PART_OF.get().run,
        state="waiting_person" if asks_person else "running",
        since=now,
        pending=(question,) if asks_person else (),
    )
    link = _link(record)
    link.publish(run, cancel, steer, prepared.budget)
    return link


def notify_question(
    prepared: PreparedRun, record: SessionRecord, title: str, question: str
) -> None:
    """Send a message about a question, if the run's options want it."""
    asked = notify.Asked(text=question[:LONGEST_TEXT])
    facts = _run_facts(prepared, record, title)
    _link(record).notify(prepared.run, notify.asked_message(facts, "question", asked))


def notify_end(prepared: PreparedRun, record: SessionRecord, title: str, done: Done) -> None:
    """Send a message about the end of a turn, if the run's options want it."""
    ended = notify.RunEnd(
        status=done.status,
        text=(done.text or "")[:LONGEST_TEXT],
        error="" if done.error is None else done.error.message,
        seconds=done.duration_ms / 1000,
        cost_usd=done.cost.usd,
        tokens=done.usage.total,
    )
    _link(record).notify(
        prepared.run, notify.end_message(_run_facts(prepared, record, title), ended)
    )


def _link(record: SessionRecord) -> SessionLink:
    """The link of the session, made if there is none."""
    if record.link is None:
        record.link = SessionLink()
    return record.link


def _run_facts(prepared: PreparedRun, record: SessionRecord, title: str) -> notify.RunFacts:
    return notify.RunFacts(
        kind="session",
        id=record.meta.id,
        title=title,
        agent=prepared.agent.name,
        cwd=prepared.cwd,
        label=record.meta.label,
    )


async def ask_everyone(
    prepared: PreparedRun,
    record: SessionRecord,
    request: PermissionRequest | AgentQuestion,
    local: asyncio.Future[AnswerLike] | None,
    timeout: float,
) -> tuple[AnswerLike, str]:
    """The first answer to a permission request or question, and how it was given. ``local`` is the
    caller's own question, if it has one. Raises ``StorageFailed`` if no one could ever answer."""
    publish = record.publish() if record.publish is not None else None
    link = record.link if publish is None else publish()
    entry = link.entry if link is not None else None
    if link is None or entry is None or not entry.is_reachable:
        if local is None:
            raise StorageFailed(f"no one can answer: no socket could be made in {folder()}")
        return await local, "asked"
    pending = pending_of(request, SecretRedactor(prepared.environment.redacted), timeout)
    if prepared.run.notify is not None:
        choices: tuple[str, ...] = ("allow_once", "allow_session", "deny", "cancel")
        if pending.kind == "question":
            only = pending.fields[0].options if len(pending.fields) == 1 else ()
            choices = tuple(option.label for option in only)
        asked = notify.Asked(
            request_id=pending.request_id,
            key=pending.key,
            text=pending.title,
            input=pending.input,
            choices=choices,
            deadline=pending.deadline,
        )
        facts = _run_facts(prepared, record, entry.run.title)
        link.notify(prepared.run, notify.asked_message(facts, pending.kind, asked))
    question = LiveQuestion(pending, request if isinstance(request, AgentQuestion) else None)
    given, by = await _first_answer(entry, question, local)
    return given, "asked" if by == HERE else f"answered with {by}"


def pending_of(
    request: PermissionRequest | AgentQuestion, redactor: SecretRedactor, timeout: float
) -> Pending:
    """What others are shown of a request, without secrets. ``timeout``: seconds until it is
    denied."""
    now = clock.now()
    pending = Pending(
        request_id=request.request_id, key=tokens.new_key(), since=now, deadline=now + timeout
    )
    if isinstance(request, AgentQuestion):
        from corral._core.question_replies import text_of

        fields = request.fields
        if redactor.values:
            cleaned = decode_json(redactor.clean(msgspec.json.encode(fields)))
            fields = convert_to(cleaned, tuple[QuestionField, ...])
        title = text_of(request)
        pending = replace(pending, kind="question", fields=fields)
    else:
        shown = request.input
        if shown is not None and redactor.values:
            shown = decode_json(redactor.clean(msgspec.json.encode(shown)))
        title = request.title or "a tool call"
        pending = replace(pending, tool_kind=request.kind or "", input=shown)
    return replace(pending, title=shorten(redactor.clean_text(title), LONGEST_TITLE))


NO_ONE = "no one, in time"
"""Who answered a question that timed out, or whose run was cancelled."""


async def _first_answer(
    entry: LiveEntry, question: LiveQuestion, local: asyncio.Future[AnswerLike] | None
) -> tuple[AnswerLike, str]:
    """The first answer, and who gave it. ``local`` is the caller's own question, if it has one; it
    is cancelled with a message if the answer comes from elsewhere."""
    entry.open_question(question)
    by = NO_ONE
    try:
        waiting: set[asyncio.Future[AnswerLike] | asyncio.Future[tuple[AnswerLike, str]]]
        waiting = {question.answer} if local is None else {question.answer, local}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if local is not None and local.done() and question.claim(HERE):
            by = HERE
            return local.result(), HERE
        # Somebody else has claimed it, even if the answer is still on its way.
        given, by = await question.answer
        return given, by
    finally:
        entry.close_question(question, by)
        if local is not None and not local.done():
            who = question.winner
            local.cancel("not answered" if who == NO_ONE else f"answered: {who}")
            await asyncio.wait([local], timeout=CLEANUP)
