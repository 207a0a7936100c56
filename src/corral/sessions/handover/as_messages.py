"""A conversation as messages, for an agent that keeps its history as such.

The roles separate what the user, the agent and its tools wrote, so nothing has to be quoted. Calls
get new ids, and names in the characters that every vendor accepts. What the messages cannot
express (changed files, the plan, what was left out) is a note of corral in a user message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from corral.messages import Message, Part, Text, ToolCall, ToolResult
from corral.sessions.handover.as_text import introduction, quote, state_lines
from corral.sessions.handover.neutral_form import (
    Conversation,
    HandedCall,
    HandedStep,
    HandedTurn,
)
from corral.values import Json, JsonObject

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")


def messages(conversation: Conversation) -> Iterator[Message]:
    """The messages of the conversation, without the prompt that continues it."""
    ids = count(1)
    for number, turn in enumerate(conversation.turns):
        notes = list(_notes(conversation, turn, is_first=number == 0))
        yield Message.user(*notes, turn.prompt or "(no prompt)")
        for step in turn.steps:
            yield from _step(step, turn.agent, ids)
    if state := "\n".join(state_lines(conversation)).strip():
        yield Message.user(_note(f"State of the conversation so far.\n{state}"))


def _note(text: str) -> str:
    return f"[Note of corral: {text}]\n\n"


def _notes(conversation: Conversation, turn: HandedTurn, *, is_first: bool) -> Iterator[str]:
    if is_first:
        more = f" {conversation.left_out:,} turns are left out." if conversation.left_out else ""
        yield _note(f"{introduction(conversation)} Long texts are shortened.{more}")
    if turn.attached:
        names = "\n".join(line for name in turn.attached for line in quote(name))
        yield _note(f"These files were sent with the prompt, and are not repeated here:\n{names}\n")
    if turn.left_out:
        yield _note(f"{turn.left_out:,} steps after this prompt are left out.")


def _step(step: HandedStep, agent: str, ids: count[int]) -> Iterator[Message]:
    calls = [(f"handed-{next(ids)}", call) for call in step.calls]
    parts: list[Part] = [Text(step.text)] if step.text.strip() else []
    parts += [ToolCall(id, _name(call.name), _arguments(call.input)) for id, call in calls]
    if not parts:
        return
    # Written by no vendor's model that is known: nothing in it is taken for signed.
    yield Message("assistant", tuple(parts), provider=agent)
    if calls:
        yield Message.tool(*(_result(id, call) for id, call in calls))


def _name(name: str) -> str:
    plain = _NOT_IN_NAMES.sub("_", name)[:60]
    return plain if plain[:1].isalpha() else f"tool{plain}"


def _arguments(value: Json) -> JsonObject:
    if isinstance(value, dict):
        return value
    return {} if value is None else {"input": value}


def _result(id: str, call: HandedCall) -> ToolResult:
    text = "\n".join(filter(None, (call.output, call.error))) or f"({call.status})"
    return ToolResult(id, text, is_error=call.status != "success", name=_name(call.name))
