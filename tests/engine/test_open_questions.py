"""Open questions of durable runs: only the first answer counts, and no process has to wait."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.durable_processes import DurableProcesses, submit, wait_until

from corral._engine import open_questions, run_list, service
from corral._engine.payloads import RunConfig, RunInput
from corral._pipelines import loader
from corral._pipelines.scheduler.commands import Question
from corral.values import Json

GATE = """digraph gate {
    start [shape=Mdiamond]; exit [shape=Msquare]
    ask [shape=hexagon, label="Ship it?" %s]; yes [type="t.step"]; no [type="t.step"]
    start -> ask; ask -> yes [label="[Y] Yes"]; ask -> no [label="[N] No"]
    yes -> exit; no -> exit
}"""


def asked(processes: DurableProcesses) -> list[Question]:
    found = asyncio.run(open_questions.questions("r", db=processes.db))
    return [each.question for each in found]


def reply(processes: DurableProcesses, text: str) -> None:
    asyncio.run(open_questions.answer("r", text, by="me", db=processes.db))


def test_an_answer_sent_while_no_worker_runs_is_received(processes: DurableProcesses) -> None:
    worker = processes.worker()
    submit(processes, GATE % "")
    questions = wait_until(lambda: asked(processes), "the question")
    assert [choice.key for choice in questions[0].choices] == ["Y", "N"]
    # The list is updated a moment after the question.
    wait_until(lambda: asyncio.run(run_list.list_runs(db=processes.db))[0].asks == 1, "the list")
    processes.kill(worker)
    with pytest.raises(open_questions.NoSuchQuestion, match="no open question 'nope'"):
        asyncio.run(open_questions.answer("r", "n", gate="nope", db=processes.db))
    reply(processes, "n")
    with pytest.raises(open_questions.NoSuchQuestion, match="already answered"):
        reply(processes, "y")  # the first one counts, although no worker has received it
    assert asyncio.run(run_list.list_runs(db=processes.db))[0].status == "interrupted"
    processes.worker()
    assert processes.wait_for_run().completed == ["start", "ask", "no", "exit"]
    with pytest.raises(open_questions.NoSuchQuestion):
        reply(processes, "y")


def test_a_question_timeout_continues_over_a_restart(processes: DurableProcesses) -> None:
    worker = processes.worker()
    started = time.time()
    submit(processes, GATE % ', human.timeout="2s", human.default_choice=no')
    wait_until(lambda: asked(processes), "the question")
    processes.kill(worker)
    processes.worker()
    assert processes.wait_for_run().completed == ["start", "ask", "no", "exit"]
    assert time.time() - started >= 2


def test_an_answer_before_the_timeout_ends_the_timer(processes: DurableProcesses) -> None:
    processes.worker()
    submit(processes, GATE % ', human.timeout="1000s"')
    wait_until(lambda: asked(processes), "the question")
    reply(processes, "yes")
    assert processes.wait_for_run().completed == ["start", "ask", "yes", "exit"]


def test_a_run_that_waits_for_an_answer_can_be_cancelled(processes: DurableProcesses) -> None:
    processes.worker()
    submit(processes, GATE % "")
    wait_until(lambda: asked(processes), "the question")
    asyncio.run(service.cancel("r", reason="enough", db=processes.db))
    closed = processes.wait_for_run()
    assert (closed.status, closed.reason) == ("cancelled", "enough")
    assert asked(processes) == []


@pytest.mark.parametrize("count", [6, pytest.param(1000, marks=pytest.mark.deep)])
@pytest.mark.timeout(900)
def test_many_waiting_runs_continue_after_their_answers(
    processes: DurableProcesses, count: int
) -> None:
    names = [f"r{number}" for number in range(count)]
    graph = loader.load(GATE % "")

    async def begin() -> None:
        for name in names:
            config = RunConfig(
                folder=str(processes.folder / name), workspace=str(processes.workspace)
            )
            values: dict[str, Json] = {"log": str(processes.log)}
            run_input = RunInput(run_id=name, graph=graph, config=config, values=values)
            await service.start(run_input, db=processes.db, queue="default")

    async def answer() -> None:
        for name in names:
            await open_questions.answer(name, "yes", db=processes.db)

    def waiting() -> bool:
        found = asyncio.run(run_list.list_runs(db=processes.db, limit=None))
        return sum(each.asks for each in found) == count

    worker = processes.worker()
    asyncio.run(begin())
    wait_until(waiting, "all to ask", timeout=600)
    processes.kill(worker)
    asyncio.run(answer())
    processes.worker()
    for name in names:
        assert processes.wait_for_run(name, timeout=600).completed == [
            "start",
            "ask",
            "yes",
            "exit",
        ]
