"""Messages to somebody elsewhere, and the tokens with which they answer."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import pytest
from support.live_runs import pending_request
from support.scripted_acp import agent
from support.webhook import Webhook, webhook

import corral
from corral import live, pipelines, runs
from corral._publishing import control, notify, tokens
from corral._publishing.notify import RunFacts
from corral.errors import ConfigError
from corral.events import Error
from corral.run_kwargs import RunKwargs

ASK = "ask execute make it"
UNREACHABLE = "http://127.0.0.1: 127.0.0.1:9 cannot be reached: Connection refused"
GATE = """digraph gate {
    start [shape=Mdiamond]
    ask [shape=hexagon, label="Ship it?"]
    done [shape=Msquare]
    start -> ask
    ask -> done [label="[Y] Yes"]
    ask -> done [label="[N] No"]
}"""


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE", 0.01)


async def run(workspace: Path, orders: str, **options: Unpack[RunKwargs]) -> corral.Result:
    given: RunKwargs = {"cwd": workspace, "timeout": 60, "grace": 1, **options}
    return await corral.run(agent(), orders, **given)


def end(status: str = "success") -> notify.RunMessage:
    facts = RunFacts(kind="session", id="s-1")
    return notify.end_message(facts, notify.RunEnd(status=status))


async def test_a_webhook_is_asked_and_its_token_answers_once(
    workspace: Path, hook: Webhook
) -> None:
    task = asyncio.create_task(run(workspace, ASK, notify=hook.url, label="nightly"))
    message = (await asyncio.to_thread(hook.next)).message
    assert (message["version"], message["event"]) == (1, "permission")
    assert message["asked"]["text"] == "make it"
    assert (message["run"]["kind"], message["run"]["label"]) == ("session", "nightly")
    token = message["answer"]["token"]
    assert message["answer"]["command"] == f"corral runs answer --token {token} --allow"
    used = await asyncio.to_thread(runs.answer_with_token_sync, token, decision="allow_once")
    assert used.run == message["run"]["id"]
    with pytest.raises(live.LiveError, match="already used"):
        await asyncio.to_thread(runs.answer_with_token_sync, token, decision="deny")
    result = await task
    assert result.text == "[b-once]"
    last = (await asyncio.to_thread(hook.next)).message
    assert (last["version"], last["event"], last["ended"]["status"]) == (1, "end", "success")
    assert last["ended"]["text"] == "[b-once]"


async def test_a_token_is_bound_to_its_request_and_can_be_tried_again(
    workspace: Path, hook: Webhook
) -> None:
    task = asyncio.create_task(run(workspace, "ask-twice", notify=hook.url, notify_on="person"))
    first = (await asyncio.to_thread(hook.next)).message["answer"]["token"]
    with pytest.raises(live.LiveError, match="answered with a decision"):
        await asyncio.to_thread(runs.answer_with_token_sync, first)
    request = await pending_request()
    await asyncio.to_thread(control.answer, request.run, "deny")
    second = (await asyncio.to_thread(hook.next)).message["answer"]["token"]
    with pytest.raises(live.LiveError, match="already answered"):
        await asyncio.to_thread(runs.answer_with_token_sync, first, decision="allow_once")
    await asyncio.to_thread(runs.answer_with_token_sync, second, decision="allow_once")
    assert "".join((await task).text.split()) == "[c-no][b-once]"
    assert hook.received.empty()


def test_a_forged_expired_or_foreign_token_is_refused() -> None:
    says = tokens.Token(
        kind="session", run="s-1", request_id="1", expires=time.time() + 60, key="k"
    )
    good = tokens.make(says)
    assert tokens.read(good) == says
    body, _, signature = good.partition(".")
    for bad in ("", "x", "a.b", f"{body}.{signature[:-4]}AAAA", f"{body[:-4]}AAAA.{signature}"):
        with pytest.raises(live.LiveError, match=r"not valid|not a token"):
            tokens.read(bad)
    late = tokens.Token(kind="session", run="s", request_id="1", expires=time.time() - 1, key="k")
    with pytest.raises(live.LiveError, match="has expired"):
        tokens.read(tokens.make(late))
    with pytest.raises(live.LiveError, match="s-1 is not running"):
        runs.answer_with_token_sync(good, decision="deny")
    assert tokens.read(good) == says  # it was not used


async def test_a_webhook_checks_who_sent_the_message(
    hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRAL_NOTIFY_SECRET", "shared")
    assert await notify.deliver(hook.url, end()) is None
    got = hook.next()
    signed = got.headers["X-Corral-Timestamp"].encode() + b"." + got.body
    digest = hmac.digest(b"shared", signed, "sha256").hex()
    assert got.headers["X-Corral-Signature"] == f"sha256={digest}"


async def test_a_message_is_sent_again_only_if_that_may_help(hook: Webhook) -> None:
    hook.answers = [500, 429]
    assert await notify.deliver(hook.url, end()) is None
    assert hook.received.qsize() == 3
    hook.answers = [404]
    assert await notify.deliver(hook.url, end()) == "http://127.0.0.1: HTTP status 404"
    assert hook.received.qsize() == 4


async def test_a_command_gets_the_message_on_stdin(tmp_path: Path) -> None:
    plain = tmp_path / "a file"
    for target, file in (
        (f"tee '{plain}'", plain),
        (f"cat > '{tmp_path}/b' && echo done", tmp_path / "b"),
    ):
        assert await notify.deliver(target, end()) is None
        assert json.loads(file.read_text())["run"] == {"kind": "session", "id": "s-1"}
    assert await notify.deliver("sh -c 'echo broken >&2; exit 3'", end()) == (
        "sh: exit code 3: broken"
    )
    assert await notify.deliver("/no/such/program", end()) == (
        "/no/such/program: /no/such/program was not found"
    )
    noisy = "sh -c 'printf \"a\\033[2J\\007b\" >&2; exit 1'"
    assert await notify.deliver(noisy, end()) == r"sh: exit code 1: a\x07b"


async def test_a_command_that_does_not_end_runs_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "ATTEMPT_TIMEOUT", 1.0)
    started = tmp_path / "started"
    target = f"sleep 600 & echo $! $$ >> '{started}'; yes >&2"
    assert await notify.deliver(target, end()) == "sleep: it did not end within 1 s"
    (pids,) = started.read_text().splitlines()
    assert not [pid for pid in pids.split() if Path(f"/proc/{pid}").exists()]


async def test_a_command_that_leaves_a_process_behind_has_ended(tmp_path: Path) -> None:
    """The process has the command's stderr, which does not end as long as it runs."""
    pid = tmp_path / "pid"
    assert await notify.deliver(f"sleep 600 & echo $! > '{pid}'", end()) is None
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


async def test_a_redirect_is_not_followed(hook: Webhook) -> None:
    hook.answers, hook.location = [302], "file:///etc/passwd"
    assert await notify.deliver(hook.url, end()) == "http://127.0.0.1: HTTP status 302"
    hook.answers, hook.location = [307], hook.url
    assert await notify.deliver(hook.url, end()) == "http://127.0.0.1: HTTP status 307"
    assert hook.received.qsize() == 2


async def test_a_message_has_no_known_secret(workspace: Path, hook: Webhook) -> None:
    await run(
        workspace,
        "ask execute use key-4711-0815",
        notify=hook.url,
        env={"MY_API_KEY": "key-4711-0815"},
        answer_timeout=1.0,
    )
    asked, ended = hook.next(), hook.next()
    assert "use [MY_API_KEY redacted]" in asked.message["asked"]["text"]
    assert b"4711" not in asked.body + ended.body


async def test_a_target_that_fails_costs_a_warning_and_not_the_run(
    workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = "http://127.0.0.1:9/"
    events: list[corral.Event] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = await corral.run(
            agent(),
            ASK,
            cwd=workspace,
            notify=nowhere,
            answer_timeout=1.0,
            on_event=events.append,
        )
    assert (result.status, result.text) == ("success", "[c-no]")
    reported = [each.message for each in events if isinstance(each, Error)]
    assert reported == [f"not notified: {UNREACHABLE}"]
    assert [str(each.message) for each in caught] == reported  # of the end
    # Python prints warnings of loggers to stderr, where the user would read it again.
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("target", ["", " ", "'open quote", "http://"])
async def test_an_invalid_target_is_refused_before_the_run(workspace: Path, target: str) -> None:
    with pytest.raises(ConfigError):
        await run(workspace, "text x", notify=target)


@pytest.mark.deep
async def test_a_waiting_pipeline_tells_its_question_and_the_token_answers_it(
    workspace: Path, hook: Webhook
) -> None:
    first = await pipelines.run(GATE, cwd=workspace, simulate=True, notify=hook.url)
    assert first.status == "waiting"
    message = hook.next().message
    assert (message["event"], message["run"]["kind"]) == ("question", "pipeline")
    assert message["asked"]["text"] == "Ship it?"
    token = message["answer"]["token"]
    with pytest.raises(ConfigError, match="is not a choice"):
        await runs.answer_with_token(token, answer="perhaps")
    with pytest.raises(live.LiveError, match="corral runs answer"):
        runs.answer_with_token_sync(token, answer="Y")
    await runs.answer_with_token(token, answer="Y", comment="well done")
    second = await runs.resume(first.run)
    assert second.status == "success"
    assert second.context["human.gate.text"] == "well done"
    assert hook.next().message["ended"]["status"] == "success"


async def test_a_batch_tells_its_end_and_its_tasks_do_not(workspace: Path, hook: Webhook) -> None:
    options: RunKwargs = {"notify": hook.url, "cwd": workspace}
    await corral.batch(["a", "b"], "text {{task}}", agent=agent(), durable=False, **options)
    message = hook.next().message
    assert (message["event"], message["run"]["kind"]) == ("end", "batch")
    assert message["ended"]["text"] == "2 of 2 tasks succeeded, 0 failed"
    assert hook.received.empty()
