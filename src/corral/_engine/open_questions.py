"""The open questions of a run and of the runs nested in it: of their gates and of their agents."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from corral._core.lookup import run_of
from corral._engine import query
from corral._engine.dbos.client import DatabaseClient, WorkflowInfo, with_client
from corral._engine.dbos.database import OPEN_STATES, Database, find, reading
from corral._engine.payloads import (
    NODE_WORKFLOW,
    QUESTIONS,
    RUN_WORKFLOW,
    AgentAsks,
    answer_key,
    pack,
    timer_id,
    unpack,
)
from corral._pipelines.scheduler import human_gate
from corral._pipelines.scheduler.commands import Answer, Answered, Question
from corral.errors import ConfigError

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
"""Seconds between two looks for the answer."""


class NoSuchQuestion(ConfigError):
    """No such question is open, or more than one matches."""

    code = "not_asked"


class RunQuestion(msgspec.Struct, frozen=True):
    """An open question, and the run that asks it."""

    run: str
    question: Question
    answered: bool = False
    """Whether an answer was sent that the run has not received yet."""

    @property
    def id(self) -> str:
        """Unique over the run and its nested runs."""
        return f"{run_of(self.run)}/{self.question.id}"


async def questions(run: str, *, db: str | None = None) -> list[RunQuestion]:
    """The open questions, those of the run itself first."""

    def read(client: DatabaseClient) -> list[RunQuestion]:
        last = query.last_try(client, run)
        nested = client.list_workflows(prefix=f"{last}/", name=RUN_WORKFLOW, states=OPEN_STATES)
        rows = [*client.list_workflows(ids=[last]), *sorted(nested, key=lambda row: row.id)]
        found_questions: list[RunQuestion] = []
        for row in rows:
            name = row.id
            raw = client.get_event(name, QUESTIONS)
            if isinstance(raw, dict):
                for each in raw.values():
                    with reading(name, row.format):
                        asked = unpack(each, Question)
                    timers = list[WorkflowInfo]()
                    if asked.timeout is not None:
                        timers = client.list_workflows(ids=[timer_id(name, asked.id)])
                    if asked.timeout is not None and timers:
                        # The timer was started when the question was asked.
                        asked = replace(asked, deadline=timers[0].created + asked.timeout)
                    message = client.find_message(name, answer_key(asked.id))
                    found_questions.append(RunQuestion(name, asked, message is not None))
        return found_questions

    return await with_client(find(db), read)


async def has_running_nodes(run: str, *, db: str | None = None) -> bool:
    """Whether a node of the run or of its nested runs is running; timers do not count."""

    def read(client: DatabaseClient) -> bool:
        last = query.last_try(client, run)
        found = client.list_workflows(prefix=f"{last}/", name=NODE_WORKFLOW, states=OPEN_STATES)
        for visit in (row.id.rpartition("/")[2] for row in found):
            # A "~" is in the ids of a manager's pauses, and of the nodes that steer its child.
            if visit != "timer" and ("~" not in visit or visit.endswith(".steer")):
                return True
        runs = client.list_workflows(prefix=f"{last}/", name=RUN_WORKFLOW, states=OPEN_STATES)
        for name in [last, *(row.id for row in runs)]:
            replay = query.replay_run(client, name)[1]
            visits = replay.visits if replay.run_input.local_nodes else ()
            if any(visit in replay.scheduler.state.open for visit in visits):
                return True
        return False

    return await with_client(find(db), read)


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


def _choose(run: str, found: list[RunQuestion], gate: str | None) -> RunQuestion:
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
    hint = f"Choose one with --gate: {names}."
    if gate is not None and not matching:
        raise NoSuchQuestion(f"{run} has no open question {gate!r}", hint=hint)
    raise NoSuchQuestion(f"which question of {run}?", hint=hint)


async def send_answer(
    asked: RunQuestion, reply: Answer, *, by: str = "", db: str | None = None
) -> None:
    """Send the answer to the run that asks. Only the first answer counts: another one raises
    ``NoSuchQuestion``."""
    question = asked.question
    message = pack(Answered(id=question.id, answer=reply, by=by))
    key = answer_key(question.id)

    def send(client: DatabaseClient) -> bool:
        for row in client.list_workflows(ids=[asked.run]):
            row.check_format()
        return client.send(asked.run, message, key=key)

    if not await with_client(find(db), send):
        raise NoSuchQuestion(
            f"{question.node} of {run_of(asked.run)} was already answered",
            hint=f"The first answer counts; to continue: corral runs resume {run_of(asked.run)}",
        )


async def ask_person(run: str, database: Database, question: Question) -> Answer:
    """Ask the person of a durable run a question of one of its agents, and wait for the answer.
    Raises ``StorageFailed``.

    The attempt sends its question to the run as a message (``AgentAsks``), and the run publishes it
    with those of its gates. An answer is a message to the run, as for a gate; the attempt finds it
    in the database. If its process dies, the question stays open, and the next attempt asks it
    under the same id."""
    message, key = pack(AgentAsks(question=question)), f"asks {question.id}"
    await with_client(database, lambda client: client.send(run, message, key=key))
    pause = FIRST_PAUSE
    while True:
        answer = await with_client(
            database, lambda client: client.find_message(run, answer_key(question.id))
        )
        if answer is not None:
            return unpack(answer, Answered).answer
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)
