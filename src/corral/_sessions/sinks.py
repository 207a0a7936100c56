"""What a turn leaves behind, and what others see of it. A sink never fails a turn: what it cannot
do becomes a warning of the turn.

- ``TurnRecorder`` stores the events, the diff of what changed, and the session's record. A disk
  that is full costs what would be stored, never the run.
- ``TurnFiles`` finds the changed files: a snapshot of the workspace is taken before the agent may
  change it, and another one at the end. If another turn works in the same folder meanwhile
  (``FolderClaim``), the snapshots show the changes of both: then only files that the
  turn's own tools reported are listed, and the list is not complete. Corral's own files are never
  listed.
- ``TurnPublisher`` shows the turn to other processes, and sends its messages (``notify``). A turn
  becomes visible when it takes longer than ``PUBLISH_AFTER``, or at once when others are asked.
  Most code for that is in ``session_link`` and ``corral._publishing``, which are loaded only then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakMethod

import msgspec
from msgspec.structs import replace

from corral._core.nesting import decode_json
from corral._protocol.ndjson import TurnEnd
from corral._sessions.event_normalizer import EventNormalizer, with_envelope_of
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.store import POOLED, SessionRecord, title_of
from corral._system import clock, fs, paths
from corral._system.environment import SecretRedactor, is_scripted
from corral._system.folder_claims import FolderClaim
from corral._system.threads import NoThread, in_thread
from corral.errors import CorralError
from corral.events import Done, Error, Event, Init, Vendor
from corral.values import (
    PUBLISH_AFTER,
    FileChanged,
    Json,
    Usage,
    printable_path,
    subtract_by_model,
    weak_callback,
)

if TYPE_CHECKING:
    from corral._publishing.link import SessionLink
    from corral._system.git.changes import Snapshot


class TurnRecorder:
    """Stores one turn of a session. ``warnings`` are for the end of the turn."""

    def __init__(
        self, prepared: PreparedRun, record: SessionRecord, prompt: str, redactor: SecretRedactor
    ) -> None:
        run = prepared.run
        self._prepared = prepared
        self._record = record
        self._prompt = prompt
        self._redactor = redactor
        self._previous_session_id = record.meta.session_id
        self.warnings: list[Error] = []
        self.has_transcript: bool = run.record
        """Whether the events are stored."""
        self.is_kept: bool = run.keep and (run.record or not record.is_pooled)
        """Whether the session's record is stored, so that it can be resumed."""
        if record.is_temporary and self.is_kept:
            self.is_kept = self.has_transcript = False
            text = f"the session is not stored: {paths.sessions()} cannot be written"
            advice = "set CORRAL_HOME to another folder"
            self.warnings.append(warning("session_lost", f"{text}: {advice}"))
        if run.label is not None:
            record.meta.label = run.label

    @property
    def title(self) -> str:
        return title_of(self._prompt, self._redactor)

    def redacted(self, value: Json) -> Json:
        """A value that has not passed the redaction of the stream."""
        if value is None or not self._redactor.values:
            return value
        return decode_json(self._redactor.clean(msgspec.json.encode(value)))

    def add(self, batch: list[Event]) -> None:
        """Append events to the transcript."""
        record = self._record
        if not self.has_transcript and not record.may_be_continued:
            return
        try:
            if self.has_transcript:
                record.append_events(batch)
            else:
                record.append_unnamed(batch)
        except OSError as error:
            self.has_transcript = record.may_be_continued = False
            what = "the transcript ends here"
            self.warnings.append(write_warning("transcript_lost", what, record.folder, error))

    def prompt_events(self, init: Init) -> list[Event]:
        """The prompt and what is sent with it, for the transcript and for telemetry."""
        run = self._prepared.run
        named: dict[str, Json] = {"prompt": self._redactor.clean_text(self._prompt)}
        files: dict[str, Json] = {
            "image": [*run.images],
            "audio": [*run.audio],
            "file": [*run.attachments],
        }
        if any(files.values()):
            named["prompt_files"] = self.redacted(files)
        if self._record.meta.turns == 0:
            # What the session was started with, for those who look at it later.
            report: Json = msgspec.to_builtins(self._prepared.compiled.report)
            program = self._prepared.program.path
            named["run_facts"] = self.redacted({"program": program, "policy": report})
        return [with_envelope_of(Vendor(name, data), init) for name, data in named.items()]

    def save_title(self) -> None:
        """Save the record of a turn that others can see from now on."""
        meta = self._record.meta
        meta.title = meta.title or self.title
        if self.is_kept and not self._record.is_temporary:
            with contextlib.suppress(OSError):  # reported at the turn's end
                self._record.save()

    def save_session_id(self, normalizer: EventNormalizer) -> None:
        """Save the session's id as soon as the agent works: this process may be killed before the
        turn ends."""
        meta = self._record.meta
        has_started = normalizer.session_id is not None and (
            normalizer.answered or normalizer.worked
        )
        is_kept = self.is_kept and not self._record.is_pooled
        if has_started and is_kept and meta.session_id != normalizer.session_id:
            meta.session_id = normalizer.session_id
            with contextlib.suppress(OSError):  # reported at the turn's end
                self._record.save()

    async def save_diff(self, before: Snapshot | None, files: tuple[FileChanged, ...]) -> None:
        """Store how the turn changed files, with the transcript."""
        if not self.has_transcript or before is None or not files:
            return

        def write() -> None:
            from corral._system.git.changes import diff_since  # loads difflib

            file = self._record.diff_file(self._record.meta.turns + 1)
            text = self._redactor.clean_text(diff_since(before, files))
            paths.make_dir(file.parent)
            paths.write_private(file, text.encode("utf-8", "replace"))

        try:
            await in_thread(write)
        except (OSError, NoThread) as error:
            text = f"the diff of the files is not stored: {error}"
            self.warnings.append(warning("transcript_lost", text))

    def own_usage(self, finish: TurnEnd) -> TurnEnd:
        """The turn's end; if the agent reports the usage of all turns together, reduced to that of
        this turn."""
        meta = self._record.meta
        reported = finish.usage
        if not self._prepared.agent.cumulative_usage or reported == Usage():
            return finish
        by_model, before = finish.usage_by_model, meta.spent_by_model
        finish = replace(
            finish,
            usage=reported - meta.spent,
            usage_by_model=subtract_by_model(by_model, before),
        )
        meta.spent, meta.spent_by_model = reported, by_model
        return finish

    def is_resumable(self, normalizer: EventNormalizer, error: CorralError | None) -> bool:
        """Whether the agent's conversation contains this turn and can be continued."""
        if normalizer.session_id is None or self._record.is_pooled:
            return False
        agent, finish = self._prepared.agent, normalizer.finish
        if agent.open_turns:
            return True
        if _is_cut_short(error):
            has_content = normalizer.worked or (
                normalizer.answered and agent.keeps_unfinished == "with_text"
            )
            return has_content or agent.keeps_unfinished == "always"
        return finish is not None and (finish.ok or normalizer.answered or normalizer.worked)

    def save_end(
        self, normalizer: EventNormalizer, error: CorralError | None, *, has_started: bool
    ) -> bool:
        """Save the record at the turn's end; ``has_started``: the agent ran. Returns whether the
        session can be resumed."""
        meta, record = self._record.meta, self._record
        finish, budget = normalizer.finish, self._prepared.budget
        meta.turns += 1
        meta.updated = clock.now()
        meta.status = error.status if error else "success"
        meta.model = (finish.model if finish else None) or meta.model
        meta.title = meta.title or self.title
        from corral._system.git.scan import project_of  # its rules are not needed to start

        meta.project = project_of(meta.project or meta.cwd)
        meta.scripted = meta.scripted or is_scripted(self._prepared.run.env)
        meta.budgets = () if budget is None else budget.states()
        is_resumable = self.is_resumable(normalizer, error)
        meta.session_id = normalizer.session_id if is_resumable else self._previous_session_id
        if record.is_pooled:
            meta.lost = POOLED
        elif has_started and meta.session_id is None and _is_cut_short(error):
            meta.lost = meta.status
        try:
            if self.is_kept:
                record.save()
        except OSError as problem:
            what = "the session cannot be resumed"
            self.warnings.append(write_warning("session_lost", what, record.folder, problem))
            return False
        return self.is_kept and meta.session_id is not None


def _is_cut_short(error: CorralError | None) -> bool:
    return error is not None and error.status in ("interrupted", "timeout")


KEPT_CONTENTS = 4 * 1024 * 1024
"""Bytes of files that are kept in memory during a recorded turn, for the diff of what it changes.
Files that git has as they are do not count."""


class TurnFiles:
    """``claim`` first, ``look`` before the agent may change files, ``compare`` at the end,
    ``release`` in any case."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._claim: FolderClaim | None = None
        self.before: Snapshot | None = None
        """What was there before; None if files are not tracked."""

    async def look(self, *, keeps_contents: bool) -> None:
        """Take the first snapshot. ``keeps_contents``: a diff is wanted later."""

        def take() -> Snapshot:
            from corral._system.git import changes  # in the thread, while the agent starts

            return changes.take_snapshot(
                Path(self._cwd), room=KEPT_CONTENTS if keeps_contents else 0
            )

        self.before = await in_thread(take)

    def claim(self) -> None:
        self._claim = FolderClaim(self._cwd)

    def release(self) -> bool:
        """Returns whether another turn worked in the folder too. May be called more than once."""
        return self._claim is None or self._claim.release()

    def existed(self, path: str) -> bool | None:
        """Whether the file was there before; None if that is not known."""
        return None if self.before is None else self.before.has(path)

    async def compare(
        self, normalizer: EventNormalizer, warnings: list[Error]
    ) -> tuple[tuple[FileChanged, ...], bool]:
        """What changed, and whether that is everything. Without snapshots it is what the agent's
        tools reported. What could not be done is added to ``warnings``."""
        reported = tuple(
            FileChanged(printable_path(path), kind, by_tool=True)
            for path, kind in normalizer.written.items()
        )
        if self.before is None:
            return reported, False
        from corral._system.git import changes

        before, written = self.before, normalizer.written

        def look_again() -> tuple[tuple[FileChanged, ...], bool]:
            after = changes.take_snapshot_after(before)
            folder = fs.real_path(before.root)
            has_own = bool(paths.own_files_in([folder]))
            changed = tuple(
                file
                for file in changes.compare(before, after, written)
                if not (has_own and paths.is_own(fs.real_path(file.path), [folder]))
            )
            return changed, before.complete and after.complete

        try:
            changed, complete = await in_thread(look_again)
        except NoThread as error:  # the answer is there, and is worth more than its files
            warnings.append(warning("files_unknown", f"{error.message}: {error.hint}"))
            return reported, False
        # Released after the snapshot: a turn that started meanwhile may have changed files, too.
        if self.release():
            return tuple(file for file in changed if file.by_tool), False
        return changed, complete


class TurnPublisher:
    """``start`` when the turn starts, ``stop`` when it has ended."""

    def __init__(
        self,
        prepared: PreparedRun,
        record: SessionRecord,
        recorder: TurnRecorder,
        cancel: Callable[[], None],
        steer: WeakMethod[Callable[[str], None]] | None,
    ) -> None:
        """``cancel`` is a method of the turn; it is held weakly."""
        self._prepared = prepared
        self._record = record
        self._recorder = recorder
        self._cancel = weak_callback(cancel)
        self._steer = steer
        self._timer: asyncio.TimerHandle | None = None
        self._is_started = False

    def start(self) -> None:
        link = self._record.link
        self._record.publish = WeakMethod(self.publish)
        delay = 0.0 if link is not None and link.entry is not None else PUBLISH_AFTER
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(delay, weak_callback(self._publish_now))
        self._is_started = True

    def publish(self) -> SessionLink:
        """Make the turn visible now."""
        from corral._sessions.session_link import publish_turn

        self._recorder.save_title()
        return publish_turn(
            self._prepared,
            self._record,
            self._recorder.title,
            self._cancel,
            self._steer,
            self._recorder.has_transcript,
        )

    def _publish_now(self) -> None:
        self._timer = None
        with contextlib.suppress(OSError, ImportError):
            self.publish()  # without a free descriptor it stays invisible

    def show_limit(self, until: float | None) -> None:
        """Show that the turn waits for a rate limit until then, or (None) that it goes on."""
        link = self._record.link if until is None else self.publish()
        if link is not None:
            link.show_limit(until)

    def stop(self) -> None:
        """The turn has ended. May be called more than once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_started:
            self._is_started = False
            if self._record.link is not None:
                self._record.link.turn_ended()

    def notify(self, about: str | Done) -> None:
        """Tell somebody that a person is asked this, or that the turn has ended."""
        if self._prepared.run.notify is not None:
            from corral._sessions import session_link

            whose = self._prepared, self._record, self._recorder.title
            if isinstance(about, Done):
                session_link.notify_end(*whose, about)
            else:
                session_link.notify_question(*whose, about)

    def take_warnings(self) -> list[Error]:
        """About messages that could not be sent so far."""
        link = self._record.link
        if link is None:
            return []
        problems, link.problems = link.problems, ()
        return [warning("notify_failed", f"not notified: {problem}") for problem in problems]


def warning(code: str, message: str) -> Error:
    return Error(code, message, recoverable=True, level="warning", phase="response")


def write_warning(code: str, what: str, folder: Path, error: OSError) -> Error:
    """The warning that something could not be written."""
    why = f"cannot write in {folder}: {error.strerror or error}"
    return warning(code, f"{what}: {why}: free some space, or set CORRAL_HOME to another disk")
