"""A run and the runs that are its nodes: what they ask, and whether anybody works there."""

from __future__ import annotations

import msgspec

from corral.durable import service
from corral.durable.dbos import adapter
from corral.durable.dbos.client import Client, with_client
from corral.durable.dbos.database import find
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
    """It has its answer, which nobody has taken yet."""

    @property
    def id(self) -> str:
        """In all of the family."""
        return f"{self.run}/{self.question.id}"


async def questions(run: str, *, db: str | None = None) -> list[OpenQuestion]:
    """Those that wait for a person, of the run itself first."""

    def look(client: Client) -> list[OpenQuestion]:
        found = client.list_workflows(prefix=f"{run}/", name=run_workflow.NAME, states=adapter.OPEN)
        asked: list[OpenQuestion] = []
        for name in [run, *sorted(row.id for row in found)]:
            raw = client.get_event(name, run_workflow.QUESTIONS)
            if isinstance(raw, dict):
                for question in (unpack(each, Question) for each in raw.values()):
                    told = client.find_message(name, answer_key(question.id))
                    asked.append(OpenQuestion(name, question, told is not None))
        return asked

    return await with_client(find(db), look)


async def works(run: str, *, db: str | None = None) -> bool:
    """Whether a node of it, or of the runs within, is at work: timers are not."""

    def look(client: Client) -> bool:
        found = client.list_workflows(
            prefix=f"{run}/", name=node_workflow.NAME, states=adapter.OPEN
        )
        return any(not _only_waits(row.id) for row in found)

    return await with_client(find(db), look)


def _only_waits(workflow: str) -> bool:
    last = workflow.rpartition("/")[2]
    return last == "timer" or ("~" in last and not last.endswith(".steer"))


async def answer(
    run: str, said: Answer, *, gate: str | None = None, by: str = "", db: str | None = None
) -> None:
    """Answer what the family asks; ``gate`` is a node, or a question's id. Raises ``NotAsked``
    where no such question is open or it is not clear which, and ``ConfigError`` where the
    answer is none of its choices."""
    asked = await questions(run, db=db)
    meant = [
        each for each in asked if gate in (None, each.question.node, each.question.id, each.id)
    ]
    if len(meant) > 1:
        meant = [each for each in meant if not each.answered]
    if len(meant) != 1:
        names = ", ".join(each.id.removeprefix(f"{run}/") for each in asked)
        if not names:
            raise service.NotAsked(f"{run} asks nothing")
        raise service.NotAsked(f"which question of {run}?", hint=f"Open: {names}. Say --gate ID.")
    question = meant[0].question
    if (
        question.choices
        and not said.skipped
        and human_gate.find_choice(question.choices, said.value) is None
    ):
        listed = ", ".join(f"{choice.key} ({choice.label})" for choice in question.choices)
        raise ConfigError(
            f"{said.value!r} is no choice of {question.node}", hint=f"There is {listed}."
        )
    await service.answer(meant[0].run, said, question=question.id, by=by, db=db)
