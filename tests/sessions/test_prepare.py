"""The checks before an agent starts."""

from __future__ import annotations

import gc
import inspect
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.scripted_agent import scripted_options

import corral
from corral._sessions.prepare import prepare
from corral.errors import ConfigError, UnknownProvider


@pytest.mark.parametrize(
    ("mode", "has_asker", "interactive"),
    [
        ("prompt", True, True),
        ("prompt", False, False),
        ("auto", False, True),
        ("auto", True, True),
        ("deny", True, False),
        ("deny", False, False),
    ],
)
def test_a_run_is_interactive_if_its_questions_can_be_allowed(
    workspace: Path, mode: str, has_asker: bool, interactive: bool
) -> None:
    options: dict[str, object] = {**scripted_options(workspace), "permission_mode": mode}
    prepared = prepare("gemini-acp", options, has_asker=has_asker)
    assert prepared.run.interactive is interactive


async def test_a_session_is_interactive_if_it_has_an_asker(workspace: Path) -> None:
    options = scripted_options(workspace)
    async with corral.session("gemini-acp", **options) as alone:
        assert not alone.prepared.run.interactive
    async with corral.session("gemini-acp", ask=lambda _: "deny", **options) as asking:
        assert asking.prepared.run.interactive


def test_a_caller_cannot_set_interactive(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="unknown option 'interactive'"):
        prepare("gemini-acp", {**scripted_options(workspace), "interactive": True})


@pytest.mark.parametrize("start", [corral.run, corral.run_sync, corral.session, corral.pool])
def test_every_entry_point_takes_the_agent_first_and_optionally(start: Any) -> None:
    first = next(iter(inspect.signature(start).parameters.values()))
    assert (first.name, first.default) == ("agent", None)


def test_without_an_agent_the_model_chooses_it(workspace: Path) -> None:
    with pytest.raises(UnknownProvider):
        corral.run_sync(prompt="Hi", model="nobody:model", cwd=workspace)
    with pytest.raises(UnknownProvider):
        corral.session(model="nobody:model")
    with pytest.raises(UnknownProvider):
        corral.pool(model="nobody:model")


def test_runs_do_not_share_what_differs_or_what_each_uses_up(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = scripted_options(workspace)
    first = prepare("gemini-cli", {**options, "on_limit": "wait"})
    second = prepare("gemini-cli", {**options, "on_limit": "wait"})
    assert second.limit_waits is not None
    assert second.limit_waits is not first.limit_waits
    monkeypatch.setenv("GEMINI_API_KEY", "another-key-of-this-test")
    third = prepare("gemini-cli", {**options, "on_limit": "wait"})
    assert third.environment != second.environment


def test_a_run_that_ended_is_not_held_for_the_next_one(workspace: Path) -> None:
    """Its environment has secrets."""
    prepared = prepare("gemini-cli", scripted_options(workspace))
    gone = weakref.ref(prepared.environment)
    del prepared
    gc.collect()
    assert gone() is None
