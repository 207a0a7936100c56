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

from corral._pipelines.execution import attempt as execution_attempt
from corral._pipelines.execution import attempt as works
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext, NodeResources
from corral._pipelines.scheduler.outcome import Outcome
from corral.errors import AccessDenied, ConfigError, NetworkFailed, RateLimited
from corral.events import Text

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
        (ConfigError("no such thing", hint="Fix it."), False),
    ],
)
async def test_a_corral_error_fails_the_node_with_its_message(
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
def test_a_keyboard_interrupt_outside_the_main_thread_does_not_end_a_worker(
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


def test_a_handler_that_does_not_stop_blocks_neither_the_run_nor_the_loop(
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
async def test_a_cancelled_attempt_cancels_its_handler(
    harness: NodeHarness, timeout: str | None
) -> None:
    started, ended = asyncio.Event(), False

    async def step(_: NodeContext) -> Outcome:
        nonlocal ended
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended = True
        return Outcome()

    task = asyncio.create_task(attempt(harness, step, **({"timeout": timeout} if timeout else {})))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


async def test_a_handler_that_cancels_itself_has_failed(
    harness: NodeHarness,
) -> None:
    async def step(_: NodeContext) -> Outcome:
        raise asyncio.CancelledError

    assert "cancelled itself" in (await attempt(harness, step)).failure_reason


@pytest.mark.parametrize("returned", ["success", {"status": "success"}, 42, True])
async def test_a_returned_value_that_is_not_an_outcome_is_an_error(
    harness: NodeHarness, returned: Any
) -> None:
    async def step(_: NodeContext) -> Outcome:
        return cast("Outcome", returned)

    outcome = await attempt(harness, step)
    assert f"returned a {type(returned).__name__}" in outcome.failure_reason
    assert outcome.retryable is False


async def test_an_outcome_with_wrong_types_is_an_error(harness: NodeHarness) -> None:
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
        10**309,
        object(),
    ],
    ids=["date", "number key", "set inside", "nan", "inf", "bytes", "half", "huge", "object"],
)
async def test_a_value_that_is_not_json_fails_the_node_with_its_key(
    harness: NodeHarness, value: Any
) -> None:
    async def step(_: NodeContext) -> Outcome:
        return Outcome(context_updates={"fine": 1, "bad.key": value})

    outcome = await attempt(harness, step)
    assert outcome.status == "fail"
    assert "'bad.key'" in outcome.failure_reason


async def test_a_value_nested_too_deep_is_rejected(harness: NodeHarness) -> None:
    async def step(_: NodeContext) -> Outcome:
        deep: Any = []
        for _level in range(100_000):
            deep = [deep]
        return Outcome(context_updates={"deep": deep})

    assert "nested" in (await attempt(harness, step)).failure_reason


async def test_a_too_large_outcome_names_its_largest_key(
    harness: NodeHarness,
) -> None:
    async def step(_: NodeContext) -> Outcome:
        return Outcome(context_updates={"small": 1, "large": "x" * 2_000_000})

    assert "'large'" in (await attempt(harness, step)).failure_reason


async def test_an_unknown_type_runs_by_its_shape(harness: NodeHarness) -> None:
    attrs = {"type": "tol", "shape": "parallelogram", "tool_command": "echo hi"}
    outcome = await harness.attempt(attrs=attrs)
    assert outcome.context_updates["tool.output"] == "hi\n"


async def test_an_invalid_timeout_fails_the_node(harness: NodeHarness) -> None:
    outcome = await harness.attempt(attrs={"shape": "parallelogram", "timeout": "soon"})
    assert "'soon' is not a duration" in outcome.failure_reason


async def test_the_status_file_of_a_node_is_its_report(harness: NodeHarness) -> None:
    async def step(work: NodeContext) -> Outcome:
        status = {
            "outcome": "PARTIAL_SUCCESS",
            "preferred_next_label": "Fix",
            "context_updates": {"x": 1},
        }
        (work.folder / "status.json").write_text(json.dumps(status))
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
async def test_an_invalid_status_file_fails_the_node(harness: NodeHarness, written: str) -> None:
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


async def test_the_status_of_an_earlier_attempt_is_not_read(
    harness: NodeHarness,
) -> None:
    async def first(work: NodeContext) -> Outcome:
        (work.folder / "status.json").write_text('{"outcome": "fail", "notes": "not yet"}')
        return Outcome()

    async def second(_: NodeContext) -> None:
        return None

    assert (await attempt(harness, first)).failure_reason == "not yet"
    assert (await attempt(harness, second)).status == "success"


async def test_auto_status_notes_that_no_status_was_written(harness: NodeHarness) -> None:
    async def step(_: NodeContext) -> None:
        return None

    outcome = await attempt(harness, step, auto_status=True)
    assert (outcome.status, outcome.notes) == ("success", works.AUTO_STATUS)


async def test_an_unwritable_folder_fails_before_the_handler_runs(
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


async def test_a_folder_that_disappears_does_not_change_the_outcome(
    harness: NodeHarness,
) -> None:
    async def step(work: NodeContext) -> Outcome:
        os.rmdir(work.folder)
        return Outcome(context_updates={"done": True})

    outcome = await attempt(harness, step)
    assert outcome.context_updates == {"done": True}
    assert "could not be written" in outcome.notes


async def test_secrets_of_the_environment_are_written_to_no_file(
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


async def test_events_are_stored_in_the_folder_of_the_node_and_passed_on(
    harness: NodeHarness,
) -> None:
    async def step(work: NodeContext) -> None:
        work.emit(Text("one"))
        work.emit(Text("two"))

    await attempt(harness, step)
    stored = [json.loads(line) for line in harness.read("events.ndjson").splitlines()]
    assert [event["delta"] for event in stored] == ["one", "two"]
    assert harness.events == [Text("one"), Text("two")]


async def test_a_simulated_node_has_an_answer(harness: NodeHarness) -> None:
    async with NodeResources(simulate=True) as resources:
        outcome = await harness.attempt("plan", resources=resources, attrs={"prompt": "Plan it"})
    assert outcome.status == "success"
    assert outcome.context_updates["last_response"] == "[Simulated] Response for stage: plan"
    assert harness.read("prompt.md", "plan") == "Plan it"
    assert harness.read("response.md", "plan") == "[Simulated] Response for stage: plan"
