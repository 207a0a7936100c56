"""``label`` and ``usage_by_model``: they tell sessions and models apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import scripted_acp
from support.scripted_agent import GOOD, scripted_options
from support.stream_checks import check_stream

import corral
from corral import Usage, errors
from corral._protocol.acp.conversation import turn_end
from corral._protocol.acp.quirks import DEFAULT_QUIRKS
from corral._protocol.ndjson import TurnEnd
from corral._sessions import store
from corral._sessions.event_normalizer import EventNormalizer
from corral.events import Done, Init
from corral.result import combine_results
from corral.values import Cost, Json, add_by_model, subtract_by_model

FULL = Usage(input=10, output=5, coverage="complete")


async def test_a_label_is_on_every_event_in_the_result_and_on_disk(workspace: Path) -> None:
    orders = "raw a banner\ninit\ntext a\nuse read_file a.txt\nused read_file\ntext b\nresult"
    options = scripted_options(workspace, label="review 7")
    async with corral.session("gemini-cli", **options) as session:
        events = check_stream([event async for event in session.prompt(orders)])
        second = await session.run(GOOD)
    assert {event.label for event in events} == {"review 7"}
    assert {json.loads(corral.to_json(event))["label"] for event in events} == {"review 7"}
    assert [corral.from_json(corral.to_json(event)) for event in events] == events
    assert corral.result_from_events(events).label == second.label == "review 7"
    [stored] = store.all_sessions()
    assert stored.meta.label == "review 7"


@pytest.mark.deep
async def test_a_resumed_session_keeps_its_label_unless_another_is_given(workspace: Path) -> None:
    first = await corral.run("gemini-cli", GOOD, **scripted_options(workspace, label="one"))
    options = scripted_options(workspace, resume=first.resume_token)
    assert (await corral.run("gemini-cli", GOOD, **options)).label == "one"
    options = scripted_options(workspace, resume=first.resume_token, label="two")
    assert (await corral.run("gemini-cli", GOOD, **options)).label == "two"
    [found] = store.all_sessions()
    assert found.meta.label == "two"


async def test_without_a_label_there_is_none(workspace: Path) -> None:
    seen: list[corral.Event] = []
    result = await corral.run(
        "gemini-cli", GOOD, on_event=seen.append, **scripted_options(workspace)
    )
    assert result.label is None
    assert not any(b'"label"' in corral.to_json(event) for event in seen)


@pytest.mark.parametrize("label", ["", "  ", "a\0b", "\ud800", "x" * 201, 7])
async def test_an_invalid_label_is_refused(workspace: Path, label: Any) -> None:
    options = scripted_options(workspace, label=label)
    with pytest.raises(errors.ConfigError, match="label"):
        await corral.run("gemini-cli", GOOD, **options)


async def test_a_prompt_of_a_pool_has_its_own_label(workspace: Path) -> None:
    agent = scripted_acp.agent()
    async with corral.pool(agent, cwd=workspace, timeout=30, label="pool") as pool:
        assert (await pool.run("text x", track_files=False)).label == "pool"
        seen: list[corral.Event] = []
        result = await pool.run("text x", label="mine", on_event=seen.append, track_files=False)
    assert result.label == "mine"
    assert {event.label for event in seen} == {"mine"}


async def test_the_models_of_the_gemini_cli_are_distinguished(workspace: Path) -> None:
    models = {
        "small": {"total_tokens": 12, "input_tokens": 10, "output_tokens": 2, "cached": 0},
        "large": {"total_tokens": 30, "input_tokens": 20, "output_tokens": 6, "cached": 5},
        "idle": {"total_tokens": 0, "input_tokens": 0, "output_tokens": 0, "cached": 0},
    }
    stats = {"total_tokens": 42, "input_tokens": 30, "output_tokens": 8, "models": models}
    line = json.dumps({"type": "result", "status": "success", "stats": stats})
    orders = f"init\ntext x\nraw {line}"
    result = await corral.run("gemini-cli", orders, **scripted_options(workspace))
    assert result.usage_by_model == {
        "small": Usage(input=10, output=2, reasoning=0, cache_read=0, coverage="complete"),
        "large": Usage(input=20, output=10, reasoning=4, cache_read=5, coverage="complete"),
    }
    assert result.model == "large"
    plain = json.loads(msgspec.json.encode(result))
    assert plain["usage_by_model"]["large"]["cache_read"] == 5


def test_the_quota_of_an_acp_agent_is_reported_by_model_in_each_spelling() -> None:
    reported: Json = {
        "stopReason": "end_turn",
        "_meta": {
            "quota": {
                "model_usage": [
                    {"model": "a", "token_count": {"input_tokens": 7, "output_tokens": 2}},
                    {
                        "model": "b",
                        "token_count": {
                            "totalTokens": 1590,
                            "inputTokens": 1234,
                            "cachedInputTokens": 200,
                            "cachedWriteTokens": 100,
                            "outputTokens": 56,
                            "reasoningOutputTokens": 3,
                        },
                    },
                    {"model": "c"},
                ]
            }
        },
    }
    assert turn_end(reported, DEFAULT_QUIRKS, Usage(), Cost(), []).usage_by_model == {
        "a": Usage(input=7, output=2, coverage="partial"),
        "b": Usage(
            input=1534, output=56, reasoning=3, cache_read=200, cache_write=100, coverage="complete"
        ),
    }


def test_an_impossible_usage_of_one_model_is_unknown() -> None:
    guard = EventNormalizer(Init(), started=0.0)
    wrong = Usage(input=-4, output=2, coverage="complete")
    events = guard.take([Init(), TurnEnd(ok=True, usage_by_model={"m": wrong})], 0.0)
    events += guard.close(1.0, None)
    assert "implausible_usage" in [getattr(event, "code", None) for event in events]
    done = events[-1]
    assert isinstance(done, Done)
    assert done.usage_by_model == {"m": Usage(output=2, coverage="partial")}


def test_counters_of_a_session_become_those_of_a_turn() -> None:
    assert subtract_by_model({"a": FULL + FULL, "b": FULL, "c": FULL}, {"a": FULL, "b": FULL}) == {
        "a": FULL,
        "c": FULL,
    }


def test_turns_of_one_run_are_added_up_by_model() -> None:
    assert add_by_model({"a": FULL}, {"a": FULL, "b": FULL}) == {"a": FULL + FULL, "b": FULL}
    one = corral.Result(status="success", usage_by_model={"a": FULL})
    assert combine_results(one, one).usage_by_model == {"a": FULL + FULL}
