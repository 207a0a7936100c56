"""The conversation of a chat: its session, which may change its agent, model or policy.

A change opens a new session that resumes the old one. Where that is not possible, because the agent
is another one or cannot resume, the conversation so far is handed over with the next prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import msgspec

from corral.cli.exit_codes import exit_code
from corral.cli.ui.progress import Progress
from corral.cli.ui.questions import TerminalAsker
from corral.cli.ui.stdout import answer_printer
from corral.cli.ui.turn_output import print_turn
from corral.errors import CorralError, StorageFailed
from corral.events import Done, Event
from corral.run_kwargs import RunKwargs
from corral.sessions import store, transcript
from corral.sessions.session import Session
from corral.system import config, paths
from corral.system.git.file_history import FileHistory
from corral.system.terminal import is_interactive
from corral.system.threads import in_thread
from corral.values import Usage


class Spent(msgspec.Struct):
    """What the chat has used so far."""

    prompts: int = 0
    usage: Usage = Usage()
    usd: float = 0.0
    unpriced: int = 0
    """Prompts whose cost is not known."""

    def add(self, done: Done) -> None:
        self.prompts += 1
        self.usage = self.usage + done.usage
        if done.cost.usd is None:
            self.unpriced += 1
        else:
            self.usd += done.cost.usd

    def describe(self) -> str:
        parts = [f"{self.prompts} prompt{'s' if self.prompts != 1 else ''}"]
        parts.append(f"{self.usage.input or 0:,} tokens in, {self.usage.output or 0:,} out")
        if self.prompts > self.unpriced:
            more = f" and {self.unpriced} of unknown cost" if self.unpriced else ""
            parts.append(f"${self.usd:.4f}{more}")
        elif self.prompts:
            parts.append("unknown cost")
        return " · ".join(parts)


class Conversation:
    """``open`` it first. The event loop runs only during a turn."""

    def __init__(
        self, runner: asyncio.Runner, agent: str, options: RunKwargs, *, quiet: bool
    ) -> None:
        self._runner = runner
        self._agent: str = agent
        self._options = options
        self._quiet = quiet
        self._progress = Progress(enabled=False)
        self._asker = TerminalAsker(self._paused, options.get("cwd")) if is_interactive() else None
        self._session = Session(agent, {**options}, self._asker)
        self._shown = ""
        """The agent and model that were printed last."""
        self._ids: list[str] = []
        """The sessions of this chat, the newest last."""
        self.resume_token: str | None = None
        self.spent = Spent()
        self.code = 0
        """The exit code of the last turn."""
        self.files: FileHistory | None = None
        self.no_files = "no file was changed yet"
        """Why there is no history of files."""

    @property
    def session(self) -> Session:
        return self._session

    @property
    def agent(self) -> str:
        return self._session.prepared.agent.name

    @property
    def model(self) -> str | None:
        return self._session.prepared.run.model

    def open(self) -> None:
        self._runner.run(_enter(self._session))
        self._opened()
        if self._options.get("resume") is not None and not self.sends_history:
            self.resume_token = self._session.id

    def _opened(self) -> None:
        asks = self._asker is not None
        Progress(enabled=not self._quiet).begin(self._session.prepared, asks=asks)
        for name in (self._session.continued_from, self._session.id):
            if name is not None and name not in self._ids:
                self._ids.append(name)
        if self.files is None:
            own = paths.sessions() / self._session.id / "files"
            self.files = FileHistory(own, Path(self._session.prepared.cwd))

    def close(self) -> None:
        self._runner.run(self._session.__aexit__())

    def change(self, agent: str = "", **changes: object) -> None:
        """Continue with another agent, or with other options; None removes an option. Raises
        ``CorralError``: then nothing was changed."""
        options = cast("RunKwargs", {**self._options, **changes})
        for name in [name for name, value in changes.items() if value is None]:
            del options[name]  # type: ignore[misc]
        options.pop("resume", None)
        options.pop("fork", None)
        source = self._to_continue(agent or self._agent)
        if isinstance(source, str):
            options["resume"] = source
        new = Session(agent or self._agent, {**options}, self._asker)
        new.source = None if isinstance(source, str) else source
        self._runner.run(_enter(new))
        old, self._session = self._session, new
        self._runner.run(old.__aexit__())
        self._agent, self._options = agent or self._agent, options
        if "resume" not in options:
            self.resume_token = None
        if not self.spent.prompts:
            self.files = None  # the session that would have kept it is gone
        self._opened()

    def _to_continue(self, agent: str) -> str | store.SessionRecord | None:
        """What a session with this agent continues: the name of one that it can resume, one whose
        conversation is handed over, or nothing."""
        target = config.find_agent(agent)
        if target.name == self.agent and self.resume_token is not None:
            return self.resume_token
        for name in reversed(self._ids):
            with contextlib.suppress(CorralError):  # it has no turn yet, or is not stored
                found = store.find(name)
                if not found.has_transcript:
                    continue
                can_resume = found.meta.agent == target.name and target.resumes
                return name if can_resume and found.meta.session_id is not None else found
        return None

    def ask(self, text: str) -> None:
        """Send a prompt and print the answer. Raises ``CorralError``."""
        self._runner.run(self._ask(text))

    async def _ask(self, text: str) -> None:
        turn = self._session.prompt(text)
        await self._begin_files()
        begins = self._shown != f"{self.agent} {self.model}"
        progress = self._progress = Progress(enabled=not self._quiet, begins=begins)
        done = await print_turn(turn, answer_printer(progress=not self._quiet), progress)
        self._shown = f"{self.agent} {self.model}"
        if self.files is not None:
            try:
                await in_thread(self.files.end_turn)
            except (StorageFailed, OSError) as error:
                self.no_files = str(error)
        if done is None:
            return
        self.spent.add(done)
        self.resume_token = done.resume_token or self.resume_token
        self.code = exit_code(done)
        if done.status != "success" or done.files or done.denied:
            progress.summary(done, resume=False)

    async def _begin_files(self) -> None:
        """Store the files as they are, unless the agent can change none."""
        report = self._session.prepared.compiled.report
        denied = {row.capability for row in report if row.is_denied}
        if {"write", "shell"} <= denied:
            self.no_files = "the policy allows no changes of files"
            return
        if self.files is None:
            return
        try:
            await in_thread(self.files.begin_turn)
            self.no_files = "no file was changed"
        except (StorageFailed, OSError) as error:
            self.no_files = str(error)

    def history(self) -> list[transcript.TurnRecord]:
        """The stored turns of this chat."""
        return transcript.turns(self.events())

    def events(self) -> Iterator[Event]:
        """The stored events of this chat."""
        for name in self._ids:
            with contextlib.suppress(CorralError):  # it has no turn yet, or is not stored
                yield from store.find(name).events()

    @property
    def sends_history(self) -> bool:
        """Whether the conversation so far is sent with the next prompt."""
        return self._session.sends_history

    def _paused(self) -> AbstractContextManager[None]:
        return self._progress.paused()


async def _enter(session: Session) -> None:
    await session.__aenter__()
