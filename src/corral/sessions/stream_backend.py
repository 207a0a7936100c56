"""An agent that is started for each prompt and writes JSON lines until it exits."""

from __future__ import annotations

import asyncio
import weakref

from corral.agents.profile import Ending, Launch
from corral.errors import CorralError, PolicyNotLoaded, StreamBroken
from corral.io import folders
from corral.io.environment import Eraser
from corral.io.ledger import Ledger
from corral.io.process import Exit, Process
from corral.sessions.backend import Fail
from corral.sessions.furnish import furnish
from corral.sessions.guard import Guard
from corral.sessions.line_ear import LineEar
from corral.sessions.prepare import Prepared
from corral.sessions.store import Kept
from corral.wire.stream import Item, Stream


class StreamBackend:
    """One process. See ``Backend`` for what each method promises."""

    def __init__(self, prepared: Prepared, kept: Kept, prompt: str, eraser: Eraser) -> None:
        self._prepared = prepared
        self._kept = kept
        self._prompt = prompt
        self._eraser = eraser
        agent = prepared.agent
        if agent.translator is None:
            raise RuntimeError(f"{agent.name} is no stream agent")
        self._stream = Stream(agent.frames, agent.translator(), clean=eraser.clean)
        self._ear = LineEar(weakref.WeakMethod(self._hear))
        self._launch: Launch | None = None
        self._process: Process | None = None
        self._ending: asyncio.Task[Exit] | None = None
        self._exit = Exit(None, None)
        self._fail: Fail | None = None
        self._beside: list[Item] = []
        self.notes: tuple[str, ...] = ()

    @property
    def session_id(self) -> str | None:
        return self._kept.meta.session_id

    @property
    def started(self) -> bool:
        return self._process is not None

    async def prepare(self) -> None:
        prepared, kept = self._prepared, self._kept
        place = prepared.place(kept.folder)
        resume = kept.meta.session_id
        launch = prepared.agent.launch(prepared.run, place, self._prompt, resume)
        furnish(launch, prepared, kept)
        self._launch, self.notes = launch, launch.notes

    async def begin(self, fail: Fail) -> None:
        launch, prepared = self._launch, self._prepared
        if launch is None:
            raise RuntimeError("prepare first")
        self._fail = fail
        self._process = await Process.start(
            launch.argv,
            cwd=prepared.cwd,
            env={**prepared.environment.values, **launch.env},
            stdin=launch.stdin,
            stdout=prepared.agent.stdout,
            scratch=self._kept.tmp,
            ledger=Ledger(folders.ledger(), prepared.agent.name),
            on_stderr=self._ear.feed,
        )

    async def receive(self) -> list[Item] | None:
        if self._process is None:
            return None
        chunk = await self._process.listen()
        items = self._stream.receive(chunk) if chunk else []
        if self._beside:
            items = [*self._beside, *items]
            self._beside = []
        return None if chunk == b"" and not items else items

    def end_soon(self) -> None:
        if self._process is not None and self._ending is None:
            grace = self._prepared.run.grace
            self._ending = asyncio.get_running_loop().create_task(self._process.end(grace))

    async def finish(self) -> list[Item]:
        await self.close()
        return self._stream.end()

    async def close(self) -> None:
        if self._process is not None:
            self._exit = await self._process.end(self._prepared.run.grace)
            self._ear.end()
        if self._ending is not None:
            await asyncio.wait([self._ending])

    def explain(self, guard: Guard, *, lingered: bool) -> CorralError | None:
        ending = Ending(
            code=0 if lingered else self._exit.code,
            signal=None if lingered else self._exit.signal,
            stderr=self.stderr,
            finish=guard.finish,
            answered=guard.answered,
            run=self._prepared.run,
        )
        return self._prepared.agent.explain(ending)

    def add_facts(self, error: CorralError) -> None:
        noise = self._prepared.agent.noise
        lines = [line for line in self.stderr.splitlines() if not line.startswith(noise)]
        error.stderr = "\n".join(lines)[-4000:]
        error.exit_code, error.signal = self._exit.code, self._exit.signal
        if self._launch is not None:
            error.argv = tuple(self._eraser.clean_text(word) for word in self._launch.argv)
        if isinstance(error, StreamBroken):
            error.frame = self._stream.last_line[:2000].decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self._eraser.clean_text(self._process.stderr) if self._process else ""

    def _hear(self, line: str) -> None:
        """A line of stderr."""
        agent, line = self._prepared.agent, self._eraser.clean_text(line)
        if self._fail is not None and any(sign in line for sign in agent.fatal_stderr):
            self._fail(
                PolicyNotLoaded(
                    f"{agent.name} did not take the policy, and was ended at once: {line}",
                    hint="Report this with the policy you gave: corral wrote the file.",
                )
            )
        item = agent.read_stderr(line) if agent.read_stderr else None
        if item is not None:
            self._beside.append(item)
            if self._process is not None:
                self._process.nudge()
