"""One attempt of a node: whatever its handler does, there is an outcome, and it is JSON."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from support.nodes import NodeHarness

from corral.errors import AccessDenied, ConfigError, NetworkFailed, RateLimited
from corral.events import Text
from corral.pipelines.execution import attempt as execution_attempt
from corral.pipelines.execution import attempt as works
from corral.pipelines.execution import handlers
from corral.pipelines.execution.handlers import NodeContext, NodeResources
from corral.pipelines.scheduler.outcome import Outcome

KIND = "test.step"


@pytest.fixture
def harness(tmp_path: Path, workspace: Path) -> NodeHarness:
    return NodeHarness(tmp_path / "run", workspace)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    before = dict(handlers._registered)  # pyright: ignore[reportPrivateUsage]
    yield
    handlers._registered.clear()  # pyright: ignore[reportPrivateUsage]
    handlers._registered.update(before)  # pyright: ignore[reportPrivateUsage]


async def attempt(harness: NodeHarness, handler: Any, **attrs: Any) -> Outcome:
    handlers.register(KIND, handler)
    return await harness.attempt(attrs={"type": KIND, **attrs})


async def test_a_handlers_outcome_is_returned_and_written(harness: NodeHarness) -> None:
    async def step(_: NodeContext) -> Outcome:
        return Outcome(preferred_label="next", context_updates={"a": [1, {"b": None}]}, notes="ok")

    outcome = await attempt(harness, step)
    assert (outcome.status, outcome.preferred_label) == ("success", "next")
    assert json.loads(harness.read("status.json")) == {
        "outcome": "success",
        "preferred_label": "next",
        "suggested_next_ids": [],
        "context_updates": {"a": [1, {"b": None}]},
        "notes": "ok",
    }


async def test_none_is_success(harness: NodeHarness) -> None:
    async def step(_: NodeContext) -> None:
        return None

    assert (await attempt(harness, step)).status == "success"


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (NetworkFailed("no route"), True),
        (RateLimited("slow down"), True),
        (AccessDenied("403"), False),
        (ConfigError("no such thing", hint="Mend it."), False),
    ],
)
async def test_an_error_of_ours_fails_the_node_in_its_own_words(
    harness: NodeHarness, error: Exception, retryable: bool
) -> None:
    async def step(_: NodeContext) -> Outcome:
        raise error

    outcome = await attempt(harness, step)
    assert outcome.status == "fail"
    assert str(error).splitlines()[0] in outcome.failure_reason
    assert outcome.retryable is retryable


class Odd(BaseException):
    pass


@pytest.mark.parametrize("limit", [{}, {"timeout": "1h"}])
@pytest.mark.parametrize("error", [ZeroDivisionError("one by none"), SystemExit(3), Odd("odd")])
async def test_a_handler_that_raises_fails_the_node_as_a_bug(
    harness: NodeHarness, error: BaseException, limit: dict[str, str]
) -> None:
    async def step(_: NodeContext) -> Outcome:
        raise error

    async with asyncio.timeout(20):
        outcome = await attempt(harness, step, **limit)
    assert outcome.status == "fail"
    assert f"raised {type(error).__name__}" in outcome.failure_reason
    assert "in step" in harness.read("error.txt")


@pytest.mark.parametrize("limit", [{}, {"timeout": "1h"}])
def test_an_interrupt_that_no_person_made_does_not_end_a_worker(
    harness: NodeHarness, limit: dict[str, str]
) -> None:
    async def step(_: NodeContext) -> Outcome:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as worker:
        outcome = worker.submit(asyncio.run, attempt(harness, step, **limit)).result(20)
    assert "raised KeyboardInterrupt" in outcome.failure_reason


async def test_a_handler_that_hangs_is_ended_at_its_timeout(harness: NodeHarness) -> None:
    ended = False

    async def step(_: NodeContext) -> Outcome:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended = True
        return Outcome()

    outcome = await attempt(harness, step, timeout="50ms")
    assert outcome.failure_reason == "step did not end within its timeout of 0.05s"
    assert ended


def test_a_handler_that_will_not_end_holds_neither_the_run_nor_the_loop(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_attempt, "STOP_TIMEOUT", 0.05)

    async def step(_: NodeContext) -> Outcome:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    with ThreadPoolExecutor(1) as worker:
        outcome = worker.submit(asyncio.run, attempt(harness, step, timeout="50ms")).result(20)
    assert "abandoned" in outcome.failure_reason


@pytest.mark.parametrize("timeout", [None, "1h"])
async def test_a_cancelled_attempt_takes_its_handler_along(
    harness: NodeHarness, timeout: str | None
) -> None:
    begun, ended = asyncio.Event(), False

    async def step(_: NodeContext) -> Outcome:
        nonlocal ended
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended = True
        return Outcome()

    task = asyncio.create_task(attempt(harness, step, **({"timeout": timeout} if timeout else {})))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


async def test_a_handler_that_cancels_itself_is_a_failure_and_no_cancellation(
    harness: NodeHarness,
) -> None:
    async def step(_: NodeContext) -> Outcome:
        raise asyncio.CancelledError

    assert "cancelled itself" in (await attempt(harness, step)).failure_reason


@pytest.mark.parametrize("told", ["success", {"status": "success"}, 42, True])
async def test_what_is_no_outcome_is_named(harness: NodeHarness, told: Any) -> None:
    async def step(_: NodeContext) -> Outcome:
        return cast("Outcome", told)

    outcome = await attempt(harness, step)
    assert f"returned a {type(told).__name__}" in outcome.failure_reason
    assert outcome.retryable is False


async def test_an_outcome_of_wrong_types_is_named(harness: NodeHarness) -> None:
    async def step(_: NodeContext) -> Outcome:
        return Outcome(status=cast("Any", "great"))

    assert "great" in (await attempt(harness, step)).failure_reason


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 1, tzinfo=UTC),
        {1: "a"},
        [{"deep": {1, 2}}],
        float("nan"),
        float("inf"),
        b"bytes",
        "half \ud800",
        2**70,
        object(),
    ],
    ids=["date", "number key", "set inside", "nan", "inf", "bytes", "half", "huge", "object"],
)
async def test_what_is_no_json_fails_the_node_and_names_the_key(
    harness: NodeHarness, value: Any
) -> None:
    async def step(_: NodeContext) -> Outcome:
        return Outcome(context_updates={"fine": 1, "bad.key": value})

    outcome = await attempt(harness, step)
    assert outcome.status == "fail"
    assert "'bad.key'" in outcome.failure_reason


async def test_a_value_nested_without_end_is_refused(harness: NodeHarness) -> None:
    async def step(_: NodeContext) -> Outcome:
        deep: Any = []
        for _level in range(100_000):
            deep = [deep]
        return Outcome(context_updates={"deep": deep})

    assert "nested" in (await attempt(harness, step)).failure_reason


async def test_an_outcome_too_large_for_the_journal_names_what_fills_it(
    harness: NodeHarness,
) -> None:
    async def step(_: NodeContext) -> Outcome:
        return Outcome(context_updates={"small": 1, "large": "x" * 2_000_000})

    assert "'large'" in (await attempt(harness, step)).failure_reason


async def test_an_unknown_type_runs_as_its_shape_says(harness: NodeHarness) -> None:
    attrs = {"type": "tol", "shape": "parallelogram", "tool_command": "echo hi"}
    outcome = await harness.attempt(attrs=attrs)
    assert outcome.context_updates["tool.output"] == "hi\n"


async def test_a_timeout_that_is_none_fails_clearly(harness: NodeHarness) -> None:
    outcome = await harness.attempt(attrs={"shape": "parallelogram", "timeout": "soon"})
    assert "'soon' is not a duration" in outcome.failure_reason


async def test_the_nodes_own_status_file_is_its_word(harness: NodeHarness) -> None:
    async def step(work: NodeContext) -> Outcome:
        told = {
            "outcome": "PARTIAL_SUCCESS",
            "preferred_next_label": "Fix",
            "context_updates": {"x": 1},
        }
        (work.folder / "status.json").write_text(json.dumps(told))
        return Outcome(context_updates={"x": 0, "y": 2}, tokens=7)

    outcome = await attempt(harness, step)
    assert outcome == Outcome(
        status="partial_success",
        verdict_by="file",
        preferred_label="Fix",
        context_updates={"x": 1, "y": 2},
        tokens=7,
    )


async def test_a_status_file_cannot_make_a_failure_a_success(harness: NodeHarness) -> None:
    async def step(work: NodeContext) -> Outcome:
        (work.folder / "status.json").write_text('{"outcome": "success"}')
        raise AccessDenied("403")

    assert (await attempt(harness, step)).status == "fail"


@pytest.mark.parametrize(
    "written",
    ["", "{", "[]", '{"notes": "great"}', '{"outcome": "success", "context_updates": 3}'],
)
async def test_a_status_file_that_is_none_fails_the_node(
    harness: NodeHarness, written: str
) -> None:
    async def step(work: NodeContext) -> None:
        (work.folder / "status.json").write_text(written)

    outcome = await attempt(harness, step)
    assert outcome.status == "fail"
    assert "status.json" in outcome.failure_reason


async def test_a_status_file_that_is_a_link_is_not_followed(
    harness: NodeHarness, tmp_path: Path
) -> None:
    (tmp_path / "other.json").write_text('{"outcome": "success", "notes": "stolen"}')

    async def step(work: NodeContext) -> None:
        (work.folder / "status.json").symlink_to(tmp_path / "other.json")

    outcome = await attempt(harness, step)
    assert outcome.status == "fail"
    assert (tmp_path / "other.json").read_text().endswith('"stolen"}')


async def test_the_status_of_an_earlier_attempt_is_not_taken_for_this_ones(
    harness: NodeHarness,
) -> None:
    async def first(work: NodeContext) -> Outcome:
        (work.folder / "status.json").write_text('{"outcome": "fail", "notes": "not yet"}')
        return Outcome()

    async def second(_: NodeContext) -> None:
        return None

    assert (await attempt(harness, first)).failure_reason == "not yet"
    assert (await attempt(harness, second)).status == "success"


async def test_auto_status_says_that_none_was_written(harness: NodeHarness) -> None:
    async def step(_: NodeContext) -> None:
        return None

    outcome = await attempt(harness, step, auto_status=True)
    assert (outcome.status, outcome.notes) == ("success", works.AUTO_STATUS)


async def test_an_unwritable_folder_fails_before_anything_is_done(
    harness: NodeHarness, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("in the way")
    ran = False

    async def step(_: NodeContext) -> None:
        nonlocal ran
        ran = True

    outcome = await attempt(harness, step)
    assert "cannot be written" in outcome.failure_reason
    assert not ran


async def test_a_folder_that_goes_away_does_not_undo_what_was_done(
    harness: NodeHarness,
) -> None:
    async def step(work: NodeContext) -> Outcome:
        os.rmdir(work.folder)
        return Outcome(context_updates={"done": True})

    outcome = await attempt(harness, step)
    assert outcome.context_updates == {"done": True}
    assert "could not be written" in outcome.notes


async def test_secrets_of_the_environment_land_in_no_file(
    harness: NodeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "canary-secret-0123456789"
    monkeypatch.setenv("SOME_API_KEY", secret)

    async def step(work: NodeContext) -> Outcome:
        work.emit(Text(f"the key is {secret}"))
        return Outcome(notes=secret, context_updates={"leak": {"key": f"<{secret}>"}})

    outcome = await attempt(harness, step)
    assert outcome.context_updates == {"leak": {"key": "<[SOME_API_KEY redacted]>"}}
    assert b"redacted" in harness.written_bytes()
    assert secret.encode() not in harness.written_bytes()


async def test_events_are_kept_beside_the_node_and_passed_on(harness: NodeHarness) -> None:
    async def step(work: NodeContext) -> None:
        work.emit(Text("one"))
        work.emit(Text("two"))

    await attempt(harness, step)
    kept = [json.loads(line) for line in harness.read("events.ndjson").splitlines()]
    assert [event["delta"] for event in kept] == ["one", "two"]
    assert harness.events == [Text("one"), Text("two")]


async def test_simulated_work_answers_for_its_stage(harness: NodeHarness) -> None:
    async with NodeResources(simulate=True) as resources:
        outcome = await harness.attempt("plan", resources=resources, attrs={"prompt": "Plan it"})
    assert outcome.status == "success"
    assert outcome.context_updates["last_response"] == "[Simulated] Response for stage: plan"
    assert harness.read("prompt.md", "plan") == "Plan it"
    assert harness.read("response.md", "plan") == "[Simulated] Response for stage: plan"
