"""What is stored of a turn: its events, the diff of what it changed, and the session's record.

A disk that is full costs what would be stored, never the run: each failure becomes a warning of the
turn.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from corral.core.nesting import decode_json
from corral.errors import CorralError
from corral.events import Error, Event, Init, Vendor
from corral.protocol.ndjson import TurnEnd
from corral.sessions.event_normalizer import EventNormalizer
from corral.sessions.prepared_run import PreparedRun
from corral.sessions.store import POOLED, SessionRecord, title_of
from corral.system import paths
from corral.system.environment import SecretRedactor
from corral.system.threads import NoThread, in_thread
from corral.values import FileChanged, Json, Usage, subtract_by_model

if TYPE_CHECKING:
    from corral.system.git.changes import Snapshot


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
        self.has_transcript = run.record
        """Whether the events are stored."""
        self.is_kept = run.keep and (run.record or not record.is_pooled)
        """Whether the session's record is stored, so that it can be resumed."""
        if record.is_temporary and self.is_kept:
            self.is_kept = self.has_transcript = False
            from corral.sessions.turn_warnings import not_stored

            self.warnings.append(not_stored())
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
            from corral.sessions.turn_warnings import transcript_lost

            self.warnings.append(transcript_lost(record.folder, error))

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
        return [
            Vendor(
                name,
                data,
                seq=init.seq,
                ts=init.ts,
                run_id=init.run_id,
                session_id=init.session_id,
                agent=init.agent,
                node=init.node,
                label=init.label,
            )
            for name, data in named.items()
        ]

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
            from corral.system.git.file_diffs import diff_since  # loads difflib

            file = self._record.diff_file(self._record.meta.turns + 1)
            text = self._redactor.clean_text(diff_since(before, files))
            paths.make_dir(file.parent)
            paths.write_private(file, text.encode("utf-8", "replace"))

        try:
            await in_thread(write)
        except (OSError, NoThread) as error:
            from corral.sessions.turn_warnings import diff_lost

            self.warnings.append(diff_lost(error))

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
        meta.updated = time.time()
        meta.status = error.status if error else "success"
        meta.model = (finish.model if finish else None) or meta.model
        meta.title = meta.title or self.title
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
            from corral.sessions.turn_warnings import session_lost

            self.warnings.append(session_lost(record.folder, problem))
            return False
        return self.is_kept and meta.session_id is not None


def _is_cut_short(error: CorralError | None) -> bool:
    return error is not None and error.status in ("interrupted", "timeout")
