"""Gates wait for days, hold nothing, and take one answer."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.durable_processes import DurableProcesses, submit, wait_until

from corral.durable import open_questions, query, service
from corral.pipelines import loader
from corral.pipelines.scheduler.commands import Question

GATE = """digraph gate {
    start [shape=Mdiamond]; exit [shape=Msquare]
    ask [shape=hexagon, label="Ship it?" %s]; yes [type="t.step"]; no [type="t.step"]
    start -> ask; ask -> yes [label="[Y] Yes"]; ask -> no [label="[N] No"]
    yes -> exit; no -> exit
}"""


def asked(world: DurableProcesses) -> list[Question]:
    found = asyncio.run(open_questions.questions("r", db=world.db))
    return [each.question for each in found]


def reply(world: DurableProcesses, said: str) -> None:
    asyncio.run(open_questions.answer("r", said, by="me", db=world.db))


def test_an_answer_that_comes_while_nothing_runs_is_taken_up(world: DurableProcesses) -> None:
    worker = world.worker()
    submit(world, GATE % "")
    questions = wait_until(lambda: asked(world), "the question")
    assert [choice.key for choice in questions[0].choices] == ["Y", "N"]
    assert asyncio.run(query.list_runs(db=world.db))[0].asks == 1
    world.kill(worker)
    reply(world, "n")
    with pytest.raises(open_questions.NoSuchQuestion, match="already answered"):
        reply(world, "y")  # the first counts, though nobody has taken it up
    assert asyncio.run(query.list_runs(db=world.db))[0].status == "interrupted"
    world.worker()
    assert world.wait_for_run().completed == ["start", "ask", "no", "exit"]
    with pytest.raises(open_questions.NoSuchQuestion):
        reply(world, "y")


def test_a_deadline_is_kept_over_a_restart(world: DurableProcesses) -> None:
    worker = world.worker()
    begun = time.time()
    submit(world, GATE % ', human.timeout="4s", human.default_choice=no')
    wait_until(lambda: asked(world), "the question")
    world.kill(worker)
    world.worker()
    assert world.wait_for_run().completed == ["start", "ask", "no", "exit"]
    assert time.time() - begun >= 4


def test_an_answer_in_time_ends_the_timer(world: DurableProcesses) -> None:
    world.worker()
    submit(world, GATE % ', human.timeout="1000s"')
    wait_until(lambda: asked(world), "the question")
    reply(world, "yes")
    assert world.wait_for_run().completed == ["start", "ask", "yes", "exit"]


def test_a_run_at_a_gate_is_cancelled(world: DurableProcesses) -> None:
    world.worker()
    submit(world, GATE % "")
    wait_until(lambda: asked(world), "the question")
    asyncio.run(service.cancel("r", reason="enough", db=world.db))
    closed = world.wait_for_run()
    assert (closed.status, closed.reason) == ("cancelled", "enough")
    assert asked(world) == []


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_many_runs_wait_at_their_gates_and_all_go_on(world: DurableProcesses, count: int) -> None:
    names = [f"r{number}" for number in range(count)]
    graph = loader.load(GATE % "")

    async def begin() -> None:
        for name in names:
            await service.start(
                graph,
                service.RunRequest(
                    folder=world.folder / name,
                    workspace=world.workspace,
                    run_id=name,
                    values={"log": str(world.log)},
                ),
                db=world.db,
                queue="default",
            )

    async def answer() -> None:
        for name in names:
            await open_questions.answer(name, "yes", db=world.db)

    def waiting() -> bool:
        found = asyncio.run(query.list_runs(db=world.db, limit=None))
        return sum(each.asks for each in found) == count

    worker = world.worker()
    asyncio.run(begin())
    wait_until(waiting, "all to ask", timeout=600)
    world.kill(worker)
    asyncio.run(answer())
    world.worker()
    for name in names:
        assert world.wait_for_run(name, timeout=600).completed == ["start", "ask", "yes", "exit"]
