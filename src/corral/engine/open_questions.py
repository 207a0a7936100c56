"""The open questions of a run and of the runs nested in it; and whether any of their nodes runs."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from corral.engine import query
from corral.engine.dbos.client import Client, with_client
from corral.engine.dbos.database import find, reading
from corral.engine.dbos.states import OPEN_STATES
from corral.engine.payloads import (
    NODE_WORKFLOW,
    QUESTIONS,
    RUN_WORKFLOW,
    answer_key,
    pack,
    timer_id,
    unpack,
)
from corral.errors import ConfigError
from corral.pipelines.scheduler import human_gate
from corral.pipelines.scheduler.commands import Answer, Answered, Question


class NoSuchQuestion(ConfigError):
    """No such question is open, or more than one matches."""

    code = "not_asked"


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
        found = client.list_workflows(prefix=f"{run}/", name=RUN_WORKFLOW, states=OPEN_STATES)
        found_questions: list[OpenQuestion] = []
        for name in [run, *sorted(row.id for row in found)]:
            raw = client.get_event(name, QUESTIONS)
            if isinstance(raw, dict):
                for each in raw.values():
                    with reading(name):
                        asked = unpack(each, Question)
                    question = _with_deadline(client, name, asked)
                    message = client.find_message(name, answer_key(question.id))
                    found_questions.append(OpenQuestion(name, question, message is not None))
        return found_questions

    return await with_client(find(db), read)


def _with_deadline(client: Client, run: str, question: Question) -> Question:
    """The deadline is that of the timer, which was started when the question was asked."""
    if question.timeout is None:
        return question
    timers = client.list_workflows(ids=[timer_id(run, question.id)])
    if not timers:
        return question
    return replace(question, deadline=timers[0].created + question.timeout)


async def has_running_nodes(run: str, *, db: str | None = None) -> bool:
    """Whether a node of the run or of its nested runs is running; timers do not count."""

    def read(client: Client) -> bool:
        found = client.list_workflows(prefix=f"{run}/", name=NODE_WORKFLOW, states=OPEN_STATES)
        if any(not _is_timer(row.id) for row in found):
            return True
        runs = client.list_workflows(prefix=f"{run}/", name=RUN_WORKFLOW, states=OPEN_STATES)
        return any(_has_local_nodes(client, each) for each in [run, *(row.id for row in runs)])

    return await with_client(find(db), read)


def _has_local_nodes(client: Client, run: str) -> bool:
    replay = query.replay_run(client, run)[1]
    return replay.run_input.local_nodes and any(
        visit in replay.scheduler.state.open for visit in replay.visits
    )


def _is_timer(workflow: str) -> bool:
    last = workflow.rpartition("/")[2]
    return last == "timer" or ("~" in last and not last.endswith(".steer"))


async def answer(
    run: str, reply: Answer | str, *, gate: str | None = None, by: str = "", db: str | None = None
) -> None:
    """Answer a question of the run or of its nested runs; ``gate`` is a node or a question's id.
    No process needs to execute the run meanwhile. Raises ``NoSuchQuestion`` if none or several
    match, and ``ConfigError`` if the answer is not one of the choices."""
    answer_given = reply if isinstance(reply, Answer) else Answer(value=reply)
    asked = _choose(run, await questions(run, db=db), gate)
    choices = asked.question.choices
    is_choice = answer_given.skipped or human_gate.find_choice(choices, answer_given.value)
    if choices and not is_choice:
        listed = ", ".join(f"{choice.key} ({choice.label})" for choice in choices)
        raise ConfigError(
            f"{answer_given.value!r} is not a choice of {asked.question.node}",
            hint=f"Choices: {listed}.",
        )
    await send_answer(asked, answer_given, by=by, db=db)


def _choose(run: str, found: list[OpenQuestion], gate: str | None) -> OpenQuestion:
    matching = [
        each for each in found if gate in (None, each.question.node, each.question.id, each.id)
    ]
    if len(matching) > 1:
        matching = [each for each in matching if not each.answered]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(each.id.removeprefix(f"{run}/") for each in found)
    if not names:
        raise NoSuchQuestion(f"{run} has no open question")
    raise NoSuchQuestion(f"which question of {run}?", hint=f"Choose one with --gate: {names}.")


async def send_answer(
    asked: OpenQuestion, reply: Answer, *, by: str = "", db: str | None = None
) -> None:
    """Send the answer to the run that asks. Only the first answer counts: another one raises
    ``NoSuchQuestion``."""
    question = asked.question
    message = pack(Answered(id=question.id, answer=reply, by=by))
    key = answer_key(question.id)
    if not await with_client(find(db), lambda client: client.send(asked.run, message, key=key)):
        raise NoSuchQuestion(
            f"{question.node} of {asked.run} was already answered",
            hint="The first answer counts; `corral pipeline resume` continues the run.",
        )
