"""How the real CLI fails, and what a caller sees of it: one error, of its own kind."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gemini_tools import read, steps

from corral import errors, result_from_events
from corral.events import Done, Error, Init
from corral.testing import Turn, fail, say

if TYPE_CHECKING:
    from support.real_gemini import Gemini

pytestmark = pytest.mark.gemini_cli

KEY_INVALID = "API key not valid. Please pass a valid API key."


@pytest.mark.parametrize(
    ("turn", "kind", "words"),
    [
        pytest.param(
            fail(400, KEY_INVALID), errors.AuthenticationFailed, "API key not valid", id="bad key"
        ),
        pytest.param(fail(400, "no such field"), errors.InvalidRequest, "no such field", id="400"),
        pytest.param(
            fail(401, "who?"), errors.AuthenticationFailed, "who?", id="401", marks=pytest.mark.slow
        ),
        pytest.param(fail(403, "not for you"), errors.AccessDenied, "not for you", id="403"),
        pytest.param(fail(404, "no such model"), errors.ModelNotFound, "gemini-2.5", id="404"),
        pytest.param(fail(429, "slow down"), errors.RateLimited, "slow down", id="429"),
        pytest.param(
            fail(429, "spent", quota_id="GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
            errors.QuotaSpent,
            "",
            id="daily quota",
        ),
        pytest.param(fail(500, "our fault"), errors.ServerFailed, "our fault", id="500"),
        pytest.param(
            fail(503, "overloaded"),
            errors.ServerFailed,
            "overloaded",
            id="503",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Turn(text=["half ", "of it"], cut=1), errors.NetworkFailed, "connection", id="cut"
        ),
        pytest.param(Turn(malformed="json"), errors.StreamBroken, "", id="malformed"),
        pytest.param(
            Turn(malformed="html"), errors.StreamBroken, "", id="html", marks=pytest.mark.slow
        ),
    ],
)
async def test_a_failure_of_the_model_is_an_error_of_its_own_kind(
    gemini: Gemini, turn: Turn, kind: type[errors.CorralError], words: str
) -> None:
    events = await gemini.events([turn, turn, turn, turn])

    assert isinstance(events[0], Init)
    done = events[-1]
    assert isinstance(done, Done)
    assert done.error is not None
    assert done.error.code == kind.code
    assert done.status == kind.status
    assert words in done.error.message
    assert done.error.facts["agent_version"] == "0.61.0"
    assert len(gemini.requests) == 1
    with pytest.raises(kind) as caught:
        result_from_events(events).raise_for_status()
    assert type(caught.value) is kind
    assert caught.value.exit_code not in (None, 0)
    assert caught.value.argv


@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        pytest.param(Turn(), errors.EmptyAnswer, id="empty"),
        pytest.param(Turn(finish="SAFETY"), errors.ContentRefused, id="safety"),
        pytest.param(
            Turn(finish="MALFORMED_FUNCTION_CALL"), errors.StreamBroken, id="malformed call"
        ),
    ],
)
async def test_an_answer_that_is_none_is_no_success_although_the_cli_exits_with_0(
    gemini: Gemini, turn: Turn, kind: type[errors.CorralError]
) -> None:
    result = await gemini.run(lambda _request: turn)

    with pytest.raises(kind) as caught:
        result.raise_for_status()
    assert type(caught.value) is kind
    assert caught.value.exit_code == 0
    assert not result.ok


async def test_a_second_try_is_announced_and_can_succeed(gemini: Gemini) -> None:
    script = [fail(429, "slow down", retry_after=0.1), say("at last")]
    events = await gemini.events(script, retries=2)

    result = result_from_events(events)
    assert result.ok
    assert result.text == "at last"
    warnings = [e for e in events if isinstance(e, Error)]
    assert [(w.code, w.level, w.recoverable) for w in warnings] == [("retrying", "warning", True)]
    assert "slow down" in warnings[0].message
    assert len(gemini.requests) == 2


async def test_a_server_that_is_not_there_is_a_network_failure(gemini: Gemini) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = await gemini.run([], env={"GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}"})

    with pytest.raises(errors.NetworkFailed) as caught:
        result.raise_for_status()
    assert caught.value.retryable
    assert "GOOGLE_GEMINI_BASE_URL" in (caught.value.hint or "")


async def test_the_turn_limit_ends_the_run_as_such(gemini: Gemini, workspace: Path) -> None:
    (workspace / "seed.txt").write_text("seed\n")
    result = await gemini.run(steps(read("seed.txt")), max_turns=1)

    assert result.status == "max_turns"
    assert len(gemini.requests) == 1
    with pytest.raises(errors.TurnLimit, match="turn limit of 1"):
        result.raise_for_status()


async def test_a_sandbox_that_cannot_be_had_is_said_so(gemini: Gemini, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("node", "sh"):
        (tools / name).symlink_to(shutil.which(name) or name)

    result = await gemini.run([], sandbox=True, env={"PATH": str(tools)})

    with pytest.raises(errors.SandboxFailed, match="docker or podman"):
        result.raise_for_status()
    assert gemini.requests == []


async def test_a_session_that_the_cli_has_lost_cannot_be_resumed(
    gemini: Gemini, tmp_path: Path
) -> None:
    first = await gemini.run([say("one")])
    assert first.resume_token
    shutil.rmtree(tmp_path / "corral-home" / "sessions" / first.resume_token / "home")

    second = await gemini.run([say("two")], resume=first.resume_token)

    with pytest.raises(errors.ResumeLost):
        second.raise_for_status()
    assert gemini.requests == []


async def test_resuming_what_is_not_there_or_from_elsewhere_is_refused_before_the_start(
    gemini: Gemini, tmp_path: Path
) -> None:
    with pytest.raises(errors.ResumeLost, match="20260101-000000-abcdef"):
        await gemini.run([], resume="20260101-000000-abcdef")
    first = await gemini.run([say("one")])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    with pytest.raises(errors.ResumeLost, match="another folder") as caught:
        await gemini.run([], resume=first.resume_token, cwd=elsewhere)

    assert str(gemini.workspace) in (caught.value.hint or "")
    assert gemini.requests == []
