"""A question of an agent in a durable run: it stays open over a crash, and the answer arrives."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from support.durable_processes import DurableProcesses, submit, wait_until

from corral._engine import open_questions
from corral._pipelines.scheduler.commands import Question
from corral.testing import Call, ModelServer, Request, Turn, say
from corral.values import Json

OPTIONS: Json = [{"label": "SQLite", "description": "one file"}, {"label": "Postgres"}]
GRAPH = """digraph asks {
    start [shape=Mdiamond]; exit [shape=Msquare]
    work [prompt="go", model="gemini:gemini-2.5-flash", questions=true, policy="reads"]
    start -> work -> exit
}"""


def model(request: Request) -> Turn:
    if request.tool_results:
        return say(f"chose {request.tool_results[-1][1]}")
    return Turn(calls=[Call("ask_user", {"question": "Which database?", "options": OPTIONS})])


def asked(processes: DurableProcesses) -> list[Question]:
    found = asyncio.run(open_questions.questions("r", db=processes.db))
    return [each.question for each in found if not each.answered]


def test_a_question_survives_the_death_of_its_worker(file_processes: DurableProcesses) -> None:
    processes = file_processes
    with ModelServer(model) as server:
        env = {key: os.environ[key] for key in ("HOME", "CORRAL_HOME")} | server.env
        worker = processes.worker(env=env)
        submit(processes, GRAPH)
        (question,) = wait_until(lambda: asked(processes), "the question")
        assert question.node == "work"
        assert question.text == "Which database?\n1. SQLite: one file\n2. Postgres"
        processes.kill(worker)
        assert [each.id for each in asked(processes)] == [question.id]
        asyncio.run(open_questions.answer("r", "2", by="me", db=processes.db))
        with pytest.raises(open_questions.NoSuchQuestion, match="already answered"):
            asyncio.run(open_questions.answer("r", "1", db=processes.db))
        processes.worker(env=env)
        output = processes.wait_for_run()
        assert output.status == "success", output.reason
        assert "Postgres" in json.dumps(output.context)
        assert asked(processes) == []
        requests = [each for each in server.requests if each.tool_results]
    assert "Postgres" in str(requests[-1].tool_results)
