"""One turn: a prompt in, lawful events out, and nothing left behind.

The events are pulled: the agent's output is read only while somebody waits for
the next event, so a slow reader slows the agent and memory stays flat. There is
no queue and no task but the one that ends the agent when it must end early.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

from corral.agents.profile import Ending
from corral.content import FileChanged
from corral.errors import (
    CorralError,
    Interrupted,
    PolicyNotLoaded,
    StreamBroken,
)
from corral.events import Error, Event, Init
from corral.io import folders, workspace
from corral.io.environment import Eraser
from corral.io.ledger import Ledger
from corral.io.process import Exit, Process
from corral.result import Fold, Result
from corral.sessions.deadlines import Deadlines
from corral.sessions.furnish import furnish
from corral.sessions.guard import Guard
from corral.sessions.line_ear import LineEar
from corral.sessions.prepare import Prepared
from corral.sessions.store import Kept
from corral.wire.stream import Item, Stream

_running: weakref.WeakSet[Turn] = weakref.WeakSet()
"""Turns under way in this process, to tell when two shared a folder."""


class Turn:
    """Iterate it for the events, or ``await turn.collect()`` for the result alone."""

    def __init__(
        self, prepared: Prepared, kept: Kept, prompt: str, before: Turn | None = None
    ) -> None:
        """``before`` is ended when this one starts, should it still be under way."""
        self._prepared = prepared
        self._kept = kept
        self._prompt = prompt
        self._previous = before
        self._eraser = Eraser(prepared.environment.secrets)
        self._stream = Stream(
            prepared.agent.frames, prepared.agent.translator(), clean=self._eraser.clean
        )
        self._stderr = LineEar(weakref.WeakMethod(self._hear))
        self._process: Process | None = None
        self._guard: Guard | None = None
        self._deadlines: Deadlines | None = None
        self._before: workspace.Snapshot | None = None
        self._argv: tuple[str, ...] = ()
        self._beside: list[Item] = []
        self._late_items: list[Item] = []
        self._recording = prepared.run.record
        self._failure: CorralError | None = None
        self._lingered = False
        self._shared = False
        self._ending: asyncio.Task[Exit] | None = None
        self._state = "new"
        self.notes: tuple[str, ...] = ()
        """What was chosen on the caller's behalf, once the turn has started."""
        self.result: Result | None = None
        """Set by ``collect``."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        # Owns nothing: left half-way it is only garbage. The session ends the agent.
        while batch := await self.next_batch():
            for event in batch:
                yield event

    async def collect(self) -> Result:
        """Run to the end and fold the events."""
        folding = Fold()
        while batch := await self.next_batch():
            for event in batch:
                folding.add(event)
        self.result = folding.result()
        return self.result

    async def next_batch(self) -> list[Event]:
        """The next events that came together; empty once ``done`` was handed out."""
        if self._state == "new":
            await self._start()
        while self._state == "running":
            batch = await self._read()
            if batch:
                self._record(batch)
                return batch
        return []

    def _record(self, batch: list[Event]) -> None:
        """A disk that fills up costs the transcript, not the run."""
        if not self._recording:
            return
        try:
            self._kept.record(batch)
        except OSError as error:
            self._recording = False
            text = f"the transcript ends here: {error.strerror}"
            self._beside.append(_warning("transcript_lost", text))

    def cancel(self) -> None:
        """End the agent; the stream then ends with ``done`` as interrupted."""
        self._fail(Interrupted("the run was cancelled"))

    async def close(self) -> None:
        """End the agent wherever it stands. Nothing of it is left when this returns."""
        self._state = "closed"
        _running.discard(self)
        if self._deadlines is not None:
            self._deadlines.stop()
        if self._process is not None:
            await self._process.end(self._prepared.run.grace)
        if self._ending is not None:
            await asyncio.wait([self._ending])

    async def _start(self) -> None:
        if self._previous is not None:
            await self._previous.close()
            self._previous = None
        prepared, kept, run = self._prepared, self._kept, self._prepared.run
        agent, resume = prepared.agent, kept.meta.session_id
        launch = agent.launch(run, prepared.place(kept.folder), self._prompt, resume)
        self.notes = launch.notes
        self._argv = tuple(self._eraser.clean_text(word) for word in launch.argv)
        furnish(launch, prepared, kept)
        if run.track_files:
            self._before = await asyncio.to_thread(workspace.look, Path(prepared.cwd))
        self._guard = Guard(
            Init(
                model=run.model,
                cwd=prepared.cwd,
                agent_version=prepared.program.version,
                capabilities=agent.capabilities,
                resumed=resume is not None,
                run_id=f"{kept.meta.id}.{kept.meta.turns + 1}",
                agent=agent.name,
                session_id=resume,
            ),
            started=time.time(),
            existed=self._before.has if self._before else _unknown,
        )
        self._process = await Process.start(
            launch.argv,
            cwd=prepared.cwd,
            env={**prepared.environment.values, **launch.env},
            stdin=launch.stdin,
            stdout=agent.stdout,
            scratch=kept.tmp,
            ledger=Ledger(folders.ledger(), agent.name),
            on_stderr=self._stderr.feed,
        )
        self._state = "running"
        self._deadlines = Deadlines(run, self._late)
        self._meet_others()

    async def _read(self) -> list[Event]:
        process, guard, deadlines = self._process, self._guard, self._deadlines
        if process is None or guard is None or deadlines is None:
            raise RuntimeError("the turn was not started")
        deadlines.listen()
        chunk = await process.listen()
        if chunk == b"":
            return await self._finish(process, guard)
        deadlines.hear()
        items = self._stream.receive(chunk) if chunk else []
        if self._beside:
            items = [*self._beside, *items]
            self._beside = []
        batch = guard.take(items, time.time())
        if guard.finish is not None:
            deadlines.finish()
        return batch

    async def _finish(self, process: Process, guard: Guard) -> list[Event]:
        run, kept = self._prepared.run, self._kept
        batch = guard.take([*self._beside, *self._stream.end()], time.time())
        ended = await process.end(run.grace)
        if self._deadlines is not None:
            self._deadlines.stop()
        if self._ending is not None:
            await asyncio.wait([self._ending])
        self._state = "over"
        _running.discard(self)
        error = self._failure or self._explain(ended, process, guard)
        if error is not None:
            self._add_facts(error, ended, process)
        files, complete = await self._files(guard)
        resumable = guard.session_id is not None and guard.finish is not None
        resumable = self._remember(guard, error, resumable=resumable) and resumable
        batch += guard.take(self._afterthoughts(guard), time.time())
        batch += guard.close(
            time.time(),
            error,
            files=files,
            files_complete=complete,
            resume_token=kept.meta.id if resumable and run.keep else None,
        )
        return batch

    def _explain(self, ended: Exit, process: Process, guard: Guard) -> CorralError | None:
        code, signal = (0, None) if self._lingered else (ended.code, ended.signal)
        ending = Ending(
            code=code,
            signal=signal,
            stderr=self._eraser.clean_text(process.stderr),
            finish=guard.finish,
            answered=guard.answered,
            run=self._prepared.run,
        )
        return self._prepared.agent.explain(ending)

    def _add_facts(self, error: CorralError, ended: Exit, process: Process) -> None:
        noise = self._prepared.agent.noise
        said = self._eraser.clean_text(process.stderr).splitlines()
        error.stderr = "\n".join(line for line in said if not line.startswith(noise))[-4000:]
        error.exit_code, error.signal = ended.code, ended.signal
        error.argv = self._argv
        error.agent_version = self._prepared.program.version
        if isinstance(error, StreamBroken):
            error.frame = self._stream.last_line[:2000].decode("utf-8", "replace")
        if error.retry_after is not None:
            error.resets_at = time.time() + error.retry_after

    async def _files(self, guard: Guard) -> tuple[tuple[FileChanged, ...], bool]:
        if self._before is None:
            told = (FileChanged(path, kind, by_tool=True) for path, kind in guard.written.items())
            return tuple(told), False
        after = await asyncio.to_thread(workspace.look_again, self._before)
        changed = workspace.compare(self._before, after, guard.written)
        return changed, self._before.complete and after.complete and not self._shared

    def _remember(self, guard: Guard, error: CorralError | None, *, resumable: bool) -> bool:
        meta = self._kept.meta
        meta.turns += 1
        meta.updated = time.time()
        meta.status = error.status if error else "success"
        meta.model = (guard.finish.model if guard.finish else None) or meta.model
        head = " ".join(self._prompt[:200].split())[:80]
        meta.title = meta.title or self._eraser.clean_text(head)
        if resumable:
            meta.session_id = guard.session_id
        try:
            if self._prepared.run.keep:
                self._kept.save()
        except OSError as problem:
            text = f"the session cannot be resumed: {problem.strerror}"
            self._late_items.append(_warning("session_lost", text))
            return False
        return True

    def _afterthoughts(self, guard: Guard) -> list[Item]:
        items = [*self._late_items]
        wanted = self._prepared.run.model
        used = guard.finish.model if guard.finish else None
        if wanted and used and wanted != used and wanted not in self._prepared.agent.model_aliases:
            items.append(_warning("model_differs", f"asked for {wanted}, but {used} answered"))
        if self._lingered:
            items.append(_warning("lingered", "the agent stayed after its last word and was ended"))
        return items

    def _late(self, error: CorralError | None) -> None:
        self._lingered = error is None
        if error is not None:
            self._fail(error)
        else:
            self._end_soon()

    def _fail(self, error: CorralError) -> None:
        if self._failure is None and self._state == "running":
            self._failure = error
            self._end_soon()

    def _end_soon(self) -> None:
        if self._process is not None and self._ending is None:
            grace = self._prepared.run.grace
            self._ending = asyncio.get_running_loop().create_task(self._process.end(grace))

    def _hear(self, line: str) -> None:
        """A line of stderr."""
        agent = self._prepared.agent
        if any(sign in line for sign in agent.fatal_stderr):
            self._fail(
                PolicyNotLoaded(
                    f"{agent.name} did not take the policy, and was ended at once:"
                    f" {self._eraser.clean_text(line)}",
                    hint="Report this with the policy you gave: corral wrote the file.",
                )
            )
        item = agent.read_stderr(self._eraser.clean_text(line)) if agent.read_stderr else None
        if item is not None:
            self._beside.append(item)
            if self._process is not None:
                self._process.nudge()

    def _meet_others(self) -> None:
        ours = self._prepared.cwd + os.sep
        for other in _running:
            theirs = other._prepared.cwd + os.sep
            if ours.startswith(theirs) or theirs.startswith(ours):
                self._shared = other._shared = True
        _running.add(self)


def _unknown(_path: str) -> bool | None:
    return None


def _warning(code: str, message: str) -> Error:
    return Error(code, message, recoverable=True, level="warning", phase="response")
