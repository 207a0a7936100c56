"""Questions of a node's agent reach the person of the run."""

from __future__ import annotations

from pathlib import Path

from corral import pipelines
from corral._pipelines.execution.interviewers import NodeQuestions
from corral._pipelines.scheduler.commands import Answer, Question, RunNode
from corral.events import AgentQuestion, QuestionField, QuestionOption
from corral.testing import Call, ModelServer, Request, Turn, say
from corral.values import Json

OPTIONS: Json = [{"label": "SQLite", "description": "one file"}, {"label": "Postgres"}]
GRAPH = """digraph asks {
    start [shape=Mdiamond]; exit [shape=Msquare]
    work [prompt="go", model="gemini:gemini-2.5-flash" %s]
    start -> work -> exit
}"""
VISIT = RunNode(id="work.1", node="work", number=1, context={})


def model(request: Request) -> Turn:
    if request.tool_results or "ask_user" not in request.tools:
        return say("done")
    return Turn(calls=[Call("ask_user", {"question": "Which database?", "options": OPTIONS})])


def run(workspace: Path, attrs: str, interviewer: pipelines.Interviewer | None) -> ModelServer:
    (workspace / "asks.dot").write_text(GRAPH % attrs)
    with ModelServer(model) as server:
        result = pipelines.run_sync(
            workspace / "asks.dot",
            cwd=workspace,
            interviewer=interviewer,
            durable=False,
            env=server.env,
        )
        assert result.ok, result.reason
    return server


def test_the_interviewer_answers_the_agent_of_a_node(workspace: Path) -> None:
    interviewer = pipelines.Recording(pipelines.Queued(["2"]))
    server = run(workspace, ", questions=true", interviewer)
    ((question, _),) = interviewer.asked
    assert question.node == "work"
    assert question.text == "Which database?\n1. SQLite: one file\n2. Postgres"
    assert "Postgres" in str(server.requests[-1].tool_results)


def test_a_node_without_the_attribute_or_a_person_does_not_ask(workspace: Path) -> None:
    interviewer = pipelines.Recording(pipelines.AutoApprove())
    server = run(workspace, "", interviewer)
    assert interviewer.asked == []
    assert "ask_user" not in server.requests[0].tools
    server = run(workspace, ", questions=true", None)
    assert "ask_user" not in server.requests[0].tools


async def test_an_answer_that_does_not_fit_is_asked_again() -> None:
    asked: list[Question] = []
    answers = iter([Answer(value="9"), Answer(value="2")])

    async def ask(question: Question) -> Answer:
        asked.append(question)
        return next(answers)

    options = (QuestionOption("a"), QuestionOption("b"))
    field = QuestionField("x", "Which?", options=options, multiple=True)
    given = await NodeQuestions(VISIT, ask).answer(AgentQuestion("1", fields=(field,)))
    assert given == {"x": ["b"]}
    assert [question.id[:7] for question in asked] == ["work.1?", "work.1?"]
    assert asked[0].id != asked[1].id
    assert asked[1].text.startswith("Which?: '9' is not one of: a, b")


async def test_choices_and_skipped_questions() -> None:
    answers = iter([Answer(value="2"), Answer(skipped=True)])
    asked: list[Question] = []

    async def ask(question: Question) -> Answer:
        asked.append(question)
        return next(answers)

    options = (QuestionOption("red"), QuestionOption("2 reds"))
    question = AgentQuestion("1", fields=(QuestionField("x", "Which?", options=options),))
    questions = NodeQuestions(VISIT, ask)
    assert await questions.answer(question) == {"x": "2 reds"}
    assert [choice.label for choice in asked[0].choices] == ["red", "2 reds"]
    assert await questions.answer(question) is None


async def test_the_same_question_of_another_attempt_has_the_same_id() -> None:
    ids: list[str] = []

    async def ask(question: Question) -> Answer:
        ids.append(question.id)
        return Answer(value="me")

    question = AgentQuestion("1", fields=(QuestionField("x", "Who?"),))
    for _ in range(2):
        await NodeQuestions(VISIT, ask).answer(question)
    assert ids[0] == ids[1]
