"""The walk for links, which some agents need before they start."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from support.scripted_agent import scripted_options

import corral
from corral import Policy
from corral._core.protected_paths import Links
from corral._sessions.prepare import prepare
from corral._system.path_guard import PathGuard
from corral.errors import StartupTimeout
from corral.run_kwargs import RunKwargs


@pytest.fixture
def own(workspace: Path) -> RunKwargs:
    return {**scripted_options(workspace), "policy": Policy(write="allow")}


@pytest.mark.parametrize("limit", [{"startup_timeout": 1e-9}, {"timeout": 1e-9}])
async def test_a_walk_that_takes_too_long_is_an_error(
    own: RunKwargs, workspace: Path, limit: RunKwargs
) -> None:
    for number in range(1_100):
        (workspace / str(number)).touch()
    assert (await prepare("gemini-cli", own).find_links()).complete
    with pytest.raises(StartupTimeout, match="1,000 files and folders were looked at"):
        prepare("gemini-cli", {**own, **limit}).links()
    chosen: RunKwargs = {**own, **limit}
    with pytest.raises(StartupTimeout, match="the links in the workspace"):
        await corral.run("gemini-cli", "Hi", **chosen)


class Walk:
    """A walk that lasts until the test ends it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.end = threading.Event(), threading.Event()
        monkeypatch.setattr(PathGuard, "links", self._links)

    def _links(self, **_: object) -> Links:
        self.started.set()
        assert self.end.wait(60)
        return Links()


async def test_the_event_loop_goes_on_during_the_walk(
    own: RunKwargs, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(monkeypatch)
    waiting = asyncio.ensure_future(prepare("gemini-cli", own).find_links())
    while not walk.started.is_set():
        await asyncio.sleep(0.01)
    walk.end.set()
    assert await waiting == Links()


async def test_a_run_that_is_cancelled_does_not_wait_for_the_walk(
    own: RunKwargs, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(monkeypatch)
    async with corral.session("gemini-cli", **own) as session:
        turn = session.prompt("Hi")
        ended = asyncio.ensure_future(turn.collect())
        while not walk.started.is_set():
            await asyncio.sleep(0.01)
        turn.cancel()
        assert (await ended).status == "interrupted"
    assert not walk.end.is_set()
    walk.end.set()
