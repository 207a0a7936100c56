"""The open questions of a run and of the runs nested in it; and whether any of their nodes runs."""

from __future__ import annotations

import msgspec

from corral.durable import service
from corral.durable.dbos.client import Client, with_client
from corral.durable.dbos.database import OPEN_STATES, find
from corral.durable.payloads import answer_key, unpack
from corral.durable.worker import node_workflow, run_workflow
from corral.errors import ConfigError
from corral.pipelines.scheduler import human_gate
from corral.pipelines.scheduler.commands import Answer, Question


class OpenQuestion(msgspec.Struct, frozen=True):
    """An open question, and the run that asks it."""

    run: str
    question: Question
    answered: bool = False
    """Whether an answer was sent that the run has not received yet."""

    @property
    def id(self) -> str:
        """Unique over the run and its nested runs."""
        return f"{self.run}/{self.question.id}"


async def questions(run: str, *, db: str | None = None) -> list[OpenQuestion]:
    """The open questions, those of the run itself first."""

    def read(client: Client) -> list[OpenQuestion]:
        found = client.list_workflows(prefix=f"{run}/", name=run_workflow.NAME, states=OPEN_STATES)
        found_questions: list[OpenQuestion] = []
        for name in [run, *sorted(row.id for row in found)]:
            raw = client.get_event(name, run_workflow.QUESTIONS)
            if isinstance(raw, dict):
                for question in (unpack(each, Question) for each in raw.values()):
                    message = client.find_message(name, answer_key(question.id))
                    found_questions.append(OpenQuestion(name, question, message is not None))
        return found_questions

    return await with_client(find(db), read)


async def has_running_nodes(run: str, *, db: str | None = None) -> bool:
    """Whether a node of the run or of its nested runs is running; timers do not count."""

    def read(client: Client) -> bool:
        found = client.list_workflows(prefix=f"{run}/", name=node_workflow.NAME, states=OPEN_STATES)
        return any(not _is_timer(row.id) for row in found)

    return await with_client(find(db), read)


def _is_timer(workflow: str) -> bool:
    last = workflow.rpartition("/")[2]
    return last == "timer" or ("~" in last and not last.endswith(".steer"))


async def answer(
    run: str, reply: Answer, *, gate: str | None = None, by: str = "", db: str | None = None
) -> None:
    """Answer a question of the run or of its nested runs; ``gate`` is a node or a question's id.
    Raises ``NoSuchQuestion`` if none or several match, and ``ConfigError`` if the answer is not one
    of the choices."""
    found_questions = await questions(run, db=db)
    matching = [
        each
        for each in found_questions
        if gate in (None, each.question.node, each.question.id, each.id)
    ]
    if len(matching) > 1:
        matching = [each for each in matching if not each.answered]
    if len(matching) != 1:
        names = ", ".join(each.id.removeprefix(f"{run}/") for each in found_questions)
        if not names:
            raise service.NoSuchQuestion(f"{run} has no open question")
        raise service.NoSuchQuestion(
            f"which question of {run}?", hint=f"Choose one with --gate: {names}."
        )
    question = matching[0].question
    if (
        question.choices
        and not reply.skipped
        and human_gate.find_choice(question.choices, reply.value) is None
    ):
        listed = ", ".join(f"{choice.key} ({choice.label})" for choice in question.choices)
        raise ConfigError(
            f"{reply.value!r} is not a choice of {question.node}", hint=f"Choices: {listed}."
        )
    await service.answer(matching[0].run, reply, question=question.id, by=by, db=db)
