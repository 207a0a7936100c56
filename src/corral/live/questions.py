"""Ask a person who may be anywhere: at this terminal, at another one, at the page, or elsewhere
with a token. The first answer counts."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import msgspec

from corral.display import shorten
from corral.errors import StorageFailed
from corral.events import AgentQuestion, PermissionRequest, QuestionField
from corral.live.publisher import Entry, OpenQuestion
from corral.live.records import Pending
from corral.live.registry import folder
from corral.live.session_link import asked_message, run_facts
from corral.nesting import decode_json
from corral.system.environment import SecretRedactor
from corral.values import Json, convert_to

if TYPE_CHECKING:
    from corral.question_replies import AnswerLike
    from corral.sessions.prepared_run import PreparedRun
    from corral.sessions.store import SessionRecord

LONGEST_TITLE = 500
HERE = "where the run was started"
CLEANUP = 5.0
"""Seconds for a question that was answered elsewhere to end here."""


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
    pending = _pending_of(request, timeout, SecretRedactor(prepared.environment.redacted))
    facts = run_facts(prepared, record, entry.run.title)
    if prepared.run.notify is not None:
        link.notify(prepared, asked_message(facts, pending))
    question = OpenQuestion(pending, request if isinstance(request, AgentQuestion) else None)
    given, by = await _first_answer(entry, question, local)
    return given, "asked" if by == HERE else f"answered with {by}"


def _pending_of(
    request: PermissionRequest | AgentQuestion, timeout: float, redactor: SecretRedactor
) -> Pending:
    """The request as others see it."""
    now = time.time()
    if isinstance(request, AgentQuestion):
        from corral.question_replies import text_of

        return Pending(
            request_id=request.request_id,
            key=os.urandom(6).hex(),
            kind="question",
            title=shorten(redactor.clean_text(text_of(request)), LONGEST_TITLE),
            since=now,
            deadline=now + timeout,
            fields=_redacted_fields(request.fields, redactor),
        )
    return Pending(
        request_id=request.request_id,
        key=os.urandom(6).hex(),
        title=shorten(redactor.clean_text(request.title or "a tool call"), LONGEST_TITLE),
        tool_kind=request.kind or "",
        since=now,
        deadline=now + timeout,
        input=_redacted(request.input, redactor),
    )


async def _first_answer(
    entry: Entry, question: OpenQuestion, local: asyncio.Future[AnswerLike] | None
) -> tuple[AnswerLike, str]:
    """The first answer, and who gave it. ``local`` is the caller's own question, if it has one; it
    is cancelled with a message if the answer comes from elsewhere."""
    entry.open_question(question)
    by = "no one, in time"
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
        await _end(local, question.winner or by)


async def _end(local: asyncio.Future[AnswerLike] | None, winner: str) -> None:
    if local is not None and not local.done():
        local.cancel(f"answered: {winner}")
        await asyncio.wait([local], timeout=CLEANUP)


def _redacted(value: Json, redactor: SecretRedactor) -> Json:
    if value is None or not redactor.values:
        return value
    return decode_json(redactor.clean(msgspec.json.encode(value)))


def _redacted_fields(
    fields: tuple[QuestionField, ...], redactor: SecretRedactor
) -> tuple[QuestionField, ...]:
    if not redactor.values:
        return fields
    cleaned = decode_json(redactor.clean(msgspec.json.encode(fields)))
    return convert_to(cleaned, tuple[QuestionField, ...])
