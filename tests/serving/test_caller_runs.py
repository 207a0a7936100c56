"""Runs of callers, with the built-in agent and a scripted model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.builtin_agent import MODELS, BuiltinAgent, model_env, wait_until
from support.model_scripts import steps

import corral
from corral._core.spending import BudgetLimits
from corral._publishing import control
from corral._serving.allowance import (
    Allowance,
    AnswerRequest,
    Narrowing,
    PipelineRequest,
    RunRequest,
)
from corral._serving.caller_runs import CallerRun, CallerRuns, RunView
from corral._sessions import api
from corral._sessions.prepare import only_in
from corral.errors import ConfigError, CorralError, NotPermitted, ResumeLost
from corral.policy import Policy
from corral.testing import Call, Request, Turn, hang, say

pytest_plugins = ("support.builtin_agent_fixture",)

ASK = Call("ask_user", {"question": "Which database?", "options": [{"label": "A"}, {"label": "B"}]})
WRITE = Call("write_file", {"file_path": "new.txt", "content": "x"})


def hanging(_: Request) -> Turn:
    return hang()


def saying_ok(_: Request) -> Turn:
    return say("ok")


def saying_fine(_: Request) -> Turn:
    return say("fine")


def allowance(ours: BuiltinAgent, script: Any, **fields: Any) -> Allowance:
    options = {"env": model_env(ours.add_lane(script)), "retries": 0, **fields.pop("options", {})}
    given: dict[str, Any] = {
        "agents": ("corral",),
        "models": (MODELS["gemini"],),
        "folders": (str(ours.workspace),),
        "timeout": 60.0,
        "options": options,
        **fields,
    }
    return Allowance(**given)


def outcome(view: RunView) -> Any:
    assert view.state == "ended"
    assert view.outcome is not None
    return view.outcome


async def test_a_run_gives_its_answer_and_goes_on_as_the_same_session(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [say("one"), say("two")])) as runs:
        run = await runs.start(RunRequest(prompt="first"))
        first = await runs.wait(run.id, 30)
        assert (outcome(first).status, outcome(first).text) == ("success", "one")
        assert first.agent == "corral"
        second = await runs.start(RunRequest(prompt="second", session=run.id))
        assert second.id == run.id
        assert outcome(await runs.wait(run.id, 30)).text == "two"
        assert "first" in str(ours.requests[-1].body)
        assert [view.run for view in runs.list()] == [run.id]


async def test_a_later_server_reads_the_results_of_its_caller_only(
    ours: BuiltinAgent, tmp_path: Path
) -> None:
    given = allowance(ours, [say("mine"), say("other")], label="corral mcp")
    async with CallerRuns(given) as runs:
        run = await runs.start(RunRequest(prompt="x"))
        await runs.wait(run.id, 30)
    other = await corral.run(prompt="y", **ours.options([say("secret")]))
    async with CallerRuns(given) as later:
        view = await later.view(run.id)
        assert outcome(view).text == "mine"
        for foreign in (str(other.resume_token), "last", run.id[:-2], "../x", ""):
            with pytest.raises(ResumeLost, match="no run of this caller"):
                await later.view(foreign)
            with pytest.raises(ResumeLost):
                await later.start(RunRequest(prompt="x", session=foreign or "-"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = allowance(ours, [], label="corral mcp", folders=(str(elsewhere),))
    async with CallerRuns(moved) as runs:
        with pytest.raises(ResumeLost):
            await runs.view(run.id)


async def test_wait_returns_after_its_time_and_cancel_ends_the_run(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [hang("so far")])) as runs:
        run = await runs.start(RunRequest(prompt="x"))
        assert (await runs.wait(run.id, 0.01)).state == "running"
        await wait_until(lambda: run.view.activity == "writing the answer")
        run.cancel()
        run.cancel()
        ended = outcome(await runs.wait(run.id, 30))
        assert (ended.status, ended.text) == ("interrupted", "so far")


async def test_a_caller_that_goes_away_ends_its_runs(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [hang()])) as runs:
        run = await runs.start(RunRequest(prompt="x"))
    assert run.outcome is not None
    assert run.outcome.status == "interrupted"


async def test_a_server_that_fails_ends_its_runs(ours: BuiltinAgent) -> None:
    started: list[CallerRun] = []
    with pytest.raises(KeyError):
        async with CallerRuns(allowance(ours, [hang()], keeps_runs=True)) as runs:
            started.append(await runs.start(RunRequest(prompt="x")))
            raise KeyError
    (run,) = started
    assert run.outcome is not None
    assert run.outcome.status == "interrupted"


async def test_runs_are_kept_if_the_starter_says_so(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [say("done")], keeps_runs=True)) as runs:
        run = await runs.start(RunRequest(prompt="x"))
    assert run.outcome is not None
    assert run.outcome.ok


async def test_what_is_wrong_is_raised_by_start(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [], agents=("corral", "codex"))) as runs:
        for request in (
            RunRequest(prompt="x", policy="all"),
            RunRequest(prompt="x", cwd="missing"),
            RunRequest(prompt="x", agent="codex"),  # has no model of this vendor
            RunRequest(prompt=""),
        ):
            with pytest.raises(CorralError):
                await runs.start(request)
        assert runs.list() == []
    assert ours.requests == []


async def test_no_more_runs_at_once_than_permitted(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, hanging, concurrency=2)) as server:
        first = server.for_client("a", Narrowing(concurrency=1))
        second = server.for_client("b", Narrowing())
        async with first, second:
            results = await asyncio.gather(
                *(first.start(RunRequest(prompt="x")) for _ in range(2)), return_exceptions=True
            )
            refused = [each for each in results if isinstance(each, NotPermitted)]
            assert len(refused) == 1
            assert "settings of client a" in str(refused[0])
            assert refused[0].retryable
            await second.start(RunRequest(prompt="x"))
            with pytest.raises(NotPermitted, match="at most 2 at once"):
                await second.start(RunRequest(prompt="x"))
            assert len(first.list()) == len(second.list()) == 1
            with pytest.raises(ResumeLost):
                await second.view(first.list()[0].run)
        async with server.for_client("c", Narrowing()) as third:
            await third.start(RunRequest(prompt="x"))


async def test_all_runs_share_one_budget(ours: BuiltinAgent) -> None:
    given = allowance(ours, saying_ok, limits=BudgetLimits(max_calls=2))
    async with CallerRuns(given) as runs:
        found: list[Any] = []
        for _ in range(3):
            run = await runs.start(RunRequest(prompt="x"))
            found.append(outcome(await runs.wait(run.id, 30)))
    assert [each.status for each in found] == ["success", "success", "max_budget"]


async def test_a_caller_answers_questions(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, steps(ASK))) as runs:
        run = await runs.start(RunRequest(prompt="x"))
        view = await runs.wait(run.id, 30)
        assert view.state == "waiting"
        (pending,) = view.pending
        assert pending.title == "Which database?"
        wrong: tuple[dict[str, Any], ...] = (
            {},
            {"text": "A", "request_id": "x"},
            {"answers": {"no": 1}},
        )
        for fields in wrong:
            with pytest.raises(ConfigError):
                run.answer(AnswerRequest(run=run.id, **fields))
        run.answer(AnswerRequest(run=run.id, text="B", request_id=pending.request_id))
        ended = outcome(await runs.wait(run.id, 30))
        assert [each.answer for each in ended.questions] == ["B"]


async def test_a_caller_does_not_allow_what_the_policy_asks_about(ours: BuiltinAgent) -> None:
    given = allowance(ours, steps(WRITE), policy=Policy(write="ask"))
    async with CallerRuns(given) as runs:
        run = await runs.start(RunRequest(prompt="x"))
        ended = outcome(await runs.wait(run.id, 30))
        assert ended.ok
    assert not (ours.workspace / "new.txt").exists()


async def test_a_caller_that_may_answer_everything_allows_a_call(ours: BuiltinAgent) -> None:
    given = allowance(ours, steps(WRITE), policy=Policy(write="ask"), answers="all")
    async with CallerRuns(given) as runs:
        run = await runs.start(RunRequest(prompt="x"))
        (pending,) = (await runs.wait(run.id, 30)).pending
        assert pending.kind == "permission"
        with pytest.raises(ConfigError, match="needs a decision"):
            run.answer(AnswerRequest(run=run.id, text="yes"))
        run.answer(AnswerRequest(run=run.id, decision="allow_once"))
        assert outcome(await runs.wait(run.id, 30)).ok
    assert (ours.workspace / "new.txt").exists()


async def test_a_person_elsewhere_decides_what_the_caller_may_not(ours: BuiltinAgent) -> None:
    options = {"remote_answers": True}
    given = allowance(ours, steps(WRITE), policy=Policy(write="ask"), options=options)
    async with CallerRuns(given) as runs:
        run = await runs.start(RunRequest(prompt="x"))
        await wait_until(lambda: run.view.waits_for_person)
        assert run.view.pending == ()
        with pytest.raises(NotPermitted, match="at most questions"):
            run.answer(AnswerRequest(run=run.id, decision="allow_once"))

        def is_published() -> bool:
            return any(each.pending for each in corral.live.runs())

        await wait_until(is_published)
        await asyncio.to_thread(control.answer, run.id, "allow_once")
        assert outcome(await runs.wait(run.id, 30)).ok
    assert (ours.workspace / "new.txt").exists()


async def test_a_typed_answer(ours: BuiltinAgent) -> None:
    schema: Any = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    async with CallerRuns(allowance(ours, [say('```json\n{"ok": true}\n```')])) as runs:
        run = await runs.start(RunRequest(prompt="x", output_schema=schema))
        assert outcome(await runs.wait(run.id, 30)).output == {"ok": True}


PIPELINE = """digraph review {
    start [shape=Mdiamond]; done [shape=Msquare]
    look [prompt="Look at: $goal"]
    start -> look -> done
}"""
GATE = PIPELINE.replace("look -> done", 'look -> gate -> done [label="yes"]; gate [shape=hexagon]')


async def test_a_pipeline_runs_within_the_budget(ours: BuiltinAgent) -> None:
    file = ours.workspace / "review.dot"
    file.write_text(PIPELINE)
    given = allowance(ours, saying_fine, pipelines={"review": str(file)},
                      limits=BudgetLimits(max_calls=1))  # fmt: skip
    async with CallerRuns(given) as runs:
        run = await runs.start_pipeline(PipelineRequest(pipeline="review", goal="the docs"))
        ended = outcome(await runs.wait(run.id, 30))
        assert (ended.status, ended.text) == ("success", "fine")
        assert "Look at: the docs" in str(ours.requests[0].body)
        run = await runs.start_pipeline(PipelineRequest(pipeline="review", goal="the docs"))
        assert "budget" in outcome(await runs.wait(run.id, 30)).error


@pytest.mark.parametrize("answers", ["questions", "all"])
async def test_a_gate_is_answered_by_a_caller_that_may(ours: BuiltinAgent, answers: str) -> None:
    file = ours.workspace / "review.dot"
    file.write_text(GATE)
    given = allowance(ours, saying_fine, pipelines={"r": str(file)}, answers=answers)
    async with CallerRuns(given) as runs:
        run = await runs.start_pipeline(PipelineRequest(pipeline="r", goal="x"))
        view = await runs.wait(run.id, 30)
        if answers == "questions":
            assert "to answer a gate of a pipeline is not permitted" in outcome(view).error
            return
        (pending,) = view.pending
        with pytest.raises(ConfigError, match="one of"):
            run.answer(AnswerRequest(run=run.id, text="maybe"))
        run.answer(AnswerRequest(run=run.id, text=pending.fields[0].options[0].label))
        assert outcome(await runs.wait(run.id, 30)).ok


CHANGING = """digraph {
    start [shape=Mdiamond]; done [shape=Msquare]
    change [shape=parallelogram, tool_command="cp evil.dot child.dot && mv evil.md plan.md"]
    child [type=include, dotfile="child.dot"]
    ask [prompt="@plan.md"]
    start -> change -> child -> ask -> done
}"""


async def test_a_run_does_not_change_the_pipeline_that_it_follows(ours: BuiltinAgent) -> None:
    """What it loads is what the server has read when it started."""
    files = {
        "main.dot": CHANGING,
        "child.dot": PIPELINE.replace("Look at: $goal", "@first.md"),
        "evil.dot": PIPELINE.replace("Look at: $goal", "evil child"),
        "plan.md": "the plan",
        "first.md": "the first step",
        "evil.md": "evil plan",
    }
    for name, text in files.items():
        (ours.workspace / name).write_text(text)
    given = allowance(ours, saying_fine, policy=Policy.all(),
                      pipelines={"main": str(ours.workspace / "main.dot")})  # fmt: skip
    async with CallerRuns(given) as runs:
        run = await runs.start_pipeline(PipelineRequest(pipeline="main", goal="x"))
        assert outcome(await runs.wait(run.id, 60)).ok
    assert not (ours.workspace / "evil.md").exists()
    bodies = [str(sent.body) for sent in ours.requests]
    assert len(bodies) == 2
    assert "the first step" in bodies[0]
    assert "the plan" in bodies[1]
    with pytest.raises(NotPermitted, match="of the pipeline main has changed"):
        given.check_pipeline(PipelineRequest(pipeline="main"))


REPLACING = """digraph {
    start [shape=Mdiamond]; done [shape=Msquare]
    change [shape=parallelogram, tool_command="cd .. && mv work old && ln -s ../b work"]
    ask [prompt="look"]
    start -> change -> ask -> done
}"""


async def test_a_folder_that_a_link_replaced_is_not_worked_in(ours: BuiltinAgent) -> None:
    work, other = ours.workspace / "a" / "work", ours.workspace / "b"
    for folder in (work, other):
        folder.mkdir(parents=True)
    file = ours.workspace / "main.dot"
    file.write_text(REPLACING)
    given = allowance(ours, saying_fine, policy=Policy.all(), folders=(str(work.parent),),
                      pipelines={"main": str(file)})  # fmt: skip
    async with CallerRuns(given) as runs:
        run = await runs.start_pipeline(PipelineRequest(pipeline="main", cwd="work"))
        ended = outcome(await runs.wait(run.id, 60))
        assert "was replaced by a link since it was checked" in ended.error
        (work.parent / "more").mkdir()
        checked = given.check(RunRequest(prompt="x", cwd="more"))
        (work.parent / "more").rename(work.parent / "earlier")
        (work.parent / "more").symlink_to(other)
        with only_in(checked.writable), pytest.raises(NotPermitted, match="replaced by a link"):
            async with api.session(checked.agent, **checked.options):
                pass
    assert ours.requests == []


async def test_a_caller_does_not_choose_the_file_of_a_child_pipeline(ours: BuiltinAgent) -> None:
    evil = ours.workspace / "evil.dot"
    evil.write_text(PIPELINE)
    file = ours.workspace / "main.dot"
    file.write_text("""digraph {
        start [shape=Mdiamond]; done [shape=Msquare]
        child [type=include, dotfile="{{which}}"]
        start -> child -> done
    }""")
    given = allowance(ours, saying_fine, pipelines={"main": str(file)})
    async with CallerRuns(given) as runs:
        asked = PipelineRequest(pipeline="main", values={"which": str(evil)})
        run = await runs.start_pipeline(asked)
        ended = outcome(await runs.wait(run.id, 60))
    assert "not a file that the pipeline loaded" in ended.error
    assert ours.requests == []


async def test_a_run_that_is_starting_ends_with_its_revoked_caller(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, hanging)) as runs:
        starting = asyncio.create_task(runs.start(RunRequest(prompt="x")))
        await asyncio.sleep(0)
        assert runs.list() == []
        runs.revoke()
        with pytest.raises(CorralError, match="cancelled"):
            await starting
        with pytest.raises(NotPermitted):
            await runs.start(RunRequest(prompt="y"))
    assert ours.requests == []


@pytest.mark.parametrize("leaves", ["end", "revoke"])
async def test_questions_of_a_caller_that_goes_away_are_closed(
    ours: BuiltinAgent, leaves: str
) -> None:
    async with CallerRuns(allowance(ours, steps(ASK))) as runs:
        run = await runs.start(RunRequest(prompt="x"))
        assert len((await runs.wait(run.id, 30)).pending) == 1
        if leaves == "end":
            await runs.end()
        else:
            runs.revoke()
        await wait_until(lambda: run.outcome is not None)
        assert (run.view.state, run.view.pending) == ("ended", ())
        with pytest.raises(ConfigError, match="does not ask"):
            run.answer(AnswerRequest(run=run.id, text="B"))
