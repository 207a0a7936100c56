"""Real agents connected to scripted models, and checks that several agents share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeAlias, Unpack

import pytest
from support.gemini_tools import FifoSignal, processes_matching, sent_json
from support.stream_checks import check_stream

import corral
from corral import Session
from corral.agents import registry
from corral.events import Event, Text, Thinking
from corral.options import RunKwargs
from corral.result import Result, result_from_events
from corral.sessions.permissions import Asker
from corral.testing import Lane, ModelServer, Request, Turn

KEY = "canary-key-0123456789abcdef"

Script: TypeAlias = Sequence[Turn] | Callable[[Request], Turn]


class RealAgent:
    """A subclass names the agent, its environment and its default options."""

    agent: ClassVar[str]
    default_options: ClassVar[RunKwargs] = {}

    def __init__(self, program: str, server: ModelServer, workspace: Path, name: str) -> None:
        self.program = program
        self.server = server
        self.workspace = workspace
        self._name = "".join(c if c.isalnum() else "-" for c in name)
        self._count = 0
        self.lane: Lane
        """Of the last conversation."""

    def env(self, url: str) -> dict[str, str]:
        """The variables that connect the agent to a model at this URL."""
        raise NotImplementedError

    @property
    def requests(self) -> list[Request]:
        return self.lane.requests

    @property
    def failures(self) -> list[str]:
        """Failures of the last script. The server is shared, so others are left out."""
        return [failure for failure in self.server.failures if self.lane.name in failure]

    def options(self, script: Script, **options: Unpack[RunKwargs]) -> RunKwargs:
        """The options that connect a run to this script."""
        self._count += 1
        self.lane = self.server.lane(f"{self._name}-{self._count}", script)
        whole: RunKwargs = {
            "cwd": self.workspace,
            "program": self.program,
            "timeout": 90,
            **self.default_options,
            **options,
            "env": {**self.env(self.lane.url), **options.get("env", {})},
        }
        return whole

    async def events(
        self,
        script: Script,
        prompt: str = "do it",
        ask: Asker | None = None,
        **options: Unpack[RunKwargs],
    ) -> list[Event]:
        whole = self.options(script, **options)
        async with corral.session(self.agent, ask=ask, **whole) as session:
            return check_stream([event async for event in session.prompt(prompt)])

    async def run(
        self,
        script: Script,
        prompt: str = "do it",
        ask: Asker | None = None,
        **options: Unpack[RunKwargs],
    ) -> Result:
        return result_from_events(await self.events(script, prompt, ask, **options))


def forget_keys(agent: str, patch: pytest.MonkeyPatch) -> None:
    """Remove the API keys of this machine from the environment."""
    for name in registry.find(agent).env_names:
        patch.delenv(name, raising=False)


async def cancel_while_running(
    session: Session, sign: str, rung: FifoSignal, *, at_once: bool = True
) -> Result:
    """A turn that is cancelled when its command has rung. Of the command, which has ``sign``
    in its line, nothing is left then; ``at_once`` or, of a peer that ends it by itself, soon."""
    turn = session.prompt("do it")
    reading = asyncio.create_task(turn.collect())
    await asyncio.to_thread(rung.wait)
    assert processes_matching(sign)
    turn.cancel()
    async with asyncio.timeout(30):
        result = await reading
        while processes_matching(sign) and not at_once:
            await asyncio.sleep(0.01)
    assert processes_matching(sign) == []
    assert result.status == "interrupted"
    return result


async def check_three_prompts(
    real: RealAgent, agent: str, prompt: str, **options: Unpack[RunKwargs]
) -> list[Result]:
    """An answer with thoughts, one more in the session, and one that resumes it: told in pieces,
    counted each for itself, with all that was said before, and nothing is left running."""
    usage = {"input": 120, "cached": 20, "output": 7, "thoughts": 3}
    script = [
        Turn(thoughts="weighing", text=("Hel", "lo."), usage=usage),
        Turn(text="again", usage=usage),
        Turn(text="third", usage=usage),
    ]
    options["system_prompt"] = "Be KIND."
    whole = real.options(script, **options)
    async with corral.session(agent, **whole) as session:
        events = check_stream([event async for event in session.prompt(prompt)])
        again = await session.run("second question")
    first = result_from_events(events)
    assert "".join(e.delta for e in events if isinstance(e, Text)) == "Hello."
    assert "".join(e.delta for e in events if isinstance(e, Thinking)) == "weighing"
    assert again.session_id == first.session_id
    assert real.requests[0].last_text.endswith(prompt)
    assert "Be KIND." in sent_json(real.requests[:1])
    whole["resume"] = again.resume_token
    third = await corral.run(agent, "third question", **whole)
    assert [first.final_text, again.text, third.text] == ["Hello.", "again", "third"]
    for result in (first, again, third):
        told = (result.usage.input, result.usage.output, result.usage.cache_read)
        assert told == (120, 10, 20)
    said = [text for m in real.requests[-1].history if m.role == "model" for text in m.texts]
    assert said == ["Hello.", "again"]
    assert processes_matching(str(real.workspace.parent)) == []
    assert real.failures == []
    return [first, again, third]


@pytest.fixture(autouse=True)
def seed(workspace: Path) -> Path:
    """A file that exists before the run."""
    file = workspace / "seed.txt"
    file.write_text("seed words\n")
    return file
