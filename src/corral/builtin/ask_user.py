"""The tool with which the model asks a person. It is offered only if someone can answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from corral.builtin.tool_execution import INTERRUPTED, Emit, current_call
from corral.builtin.tools.tool import (
    Arguments,
    BuiltinTool,
    Outcome,
    Output,
    ToolDefinition,
    define_tool,
    outcome,
)
from corral.builtin.tools.truncate import READ
from corral.builtin.tools.workspace import Workspace
from corral.errors import Interrupted
from corral.events import AgentQuestion, QuestionAnswer, QuestionField, QuestionOption
from corral.question_replies import shown_answers
from corral.sessions.permissions import PermissionBroker
from corral.system.environment import SecretRedactor

NAME = "ask_user"
DESCRIPTION = (
    "Asks the user a question and waits for the answer. Use it only for a decision that is the"
    " user's and that you cannot find out yourself. The user may answer with one of the options or"
    " with another text."
)


class Option(Arguments, frozen=True, kw_only=True):
    label: Annotated[str, Meta(description="One to five words.", min_length=1)]
    description: Annotated[str, Meta(description="What this choice means.")] = ""


class Ask(Arguments, frozen=True, kw_only=True):
    question: Annotated[str, Meta(description="One complete question.", min_length=1)]
    options: Annotated[
        tuple[Option, ...], Meta(description="Choices, the best first.", max_length=20)
    ] = ()
    multiple: Annotated[bool, Meta(description="Several options may be chosen.")] = False


class AskUser:
    """Asks through the broker of the session. ``interrupt`` ends the turn if the person stops
    it."""

    def __init__(
        self,
        broker: PermissionBroker,
        emit: Emit,
        interrupt: Callable[[Interrupted], None],
        redactor: SecretRedactor,
    ) -> None:
        self._broker = broker
        self._emit = emit
        self._interrupt = interrupt
        self._redactor = redactor

    def tool(self) -> BuiltinTool:
        definition = ToolDefinition(
            name=NAME,
            kind="think",
            description=DESCRIPTION,
            arguments=Ask,
            limits=READ,
            run=self._ask,
            title="Ask question",
        )
        return define_tool(definition)

    async def _ask(self, _: Workspace, args: Ask, __: Output) -> Outcome:
        call_id = current_call.get()
        text = self._clean(args.question)
        options = tuple(
            QuestionOption(self._clean(each.label), self._clean(each.description) or None)
            for each in args.options
        )
        field = QuestionField(
            "answer", text, options=options, multiple=args.multiple, free_text=True
        )
        question = AgentQuestion(call_id, fields=(field,), call_id=call_id)
        self._emit(question)
        reply = await self._broker.answer_question(question)
        answers = shown_answers(question, reply.answers)
        self._emit(
            QuestionAnswer(call_id, reply.outcome, answers, call_id=call_id, reason=reply.reason)
        )
        if reply.outcome == "cancelled":
            self._interrupt(Interrupted(INTERRUPTED))
        if reply.outcome != "answered":
            return outcome(reply.refusal, READ, is_error=True)
        given = reply.answers["answer"]
        return outcome(
            given if isinstance(given, str) else msgspec.json.encode(given).decode(), READ
        )

    def _clean(self, text: str) -> str:
        return self._redactor.clean_text(text)
