"""Sessions as the API shows them: in the list of runs, and one in detail. Blocking."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from msgspec.structs import replace

from corral._agents import registry
from corral._core.terminal_text import plain
from corral._metering import prices
from corral._models.registry import canonical, is_model_name, vendor_of
from corral._runs.log_windows import PAGE
from corral._sessions import store
from corral._system import clock, fs, paths
from corral._view.items import MAX_INPUT, tokens, total_cost
from corral._view.live_runs import ACTIVE, KnownState, LiveRuns, state_of
from corral._view.records import Facts, LogInfo, Pending, SessionDetail, Summary
from corral._view.session_logs import (
    DETAIL_BUDGET,
    LIST_BUDGET,
    LogFacts,
    SessionLogs,
    read_end,
)
from corral.errors import CorralError, ResumeLost
from corral.values import as_text, as_texts

NEW_SECONDS = 3.0
"""A log that was written this short a time ago may be of a process that has not reported yet."""
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.~-]*")

PERSON_QUESTION = "question"
"""The id of the question to an agent that is a person."""


def log_path(id: str) -> Path:
    """The log of a session. Raises ``ResumeLost`` if there is no such session."""
    return open_session(id).folder / store.EVENTS


def open_session(id: str) -> store.SessionRecord:
    """The session with exactly this id; one in its first seconds has no metadata yet. Raises
    ``ResumeLost``."""
    if _ID.fullmatch(id):
        folder = paths.sessions() / id
        record = store.open_folder(folder) or unsaved(folder)
        if record is not None:
            return record
    raise ResumeLost(f"there is no session {plain(id, 100)!r}")


def unsaved(folder: Path) -> store.SessionRecord | None:
    """The session of a folder without metadata, which are written when the agent has answered."""
    try:
        created = (folder / store.EVENTS).stat().st_ctime
    except OSError:
        return None
    meta = store.Meta(folder.name, "", "", created, created)
    return store.SessionRecord(folder, meta)


class SessionViews:
    """Makes summaries and details of sessions."""

    def __init__(self, logs: SessionLogs) -> None:
        self._logs = logs

    def summary(
        self, record: store.SessionRecord, live: LiveRuns, *, snippet: str = "", budget: int = 0
    ) -> Summary:
        """A session in the list of runs."""
        facts = self._logs.facts(record.folder / store.EVENTS, budget or LIST_BUDGET)
        meta = _complete(record.meta, facts)
        running = live.runs.get(("session", meta.id))
        pending = pending_of(record, live)
        now = clock.now()
        is_new = not facts.is_finished and now - facts.modified < NEW_SECONDS
        status = record.meta.status
        if facts.last is not None:
            status = facts.last.info.status if facts.is_finished else None
        known = KnownState(
            status=status,
            reason="" if facts.last is None else facts.last.info.error or "",
            live=_is_live(record, facts, live, is_new=is_new) or bool(running and pending),
            live_state=running.state if running else "",
            until=running.until if running else None,
            permissions=sum(each.kind == "permission" for each in pending),
            questions=sum(each.kind == "question" for each in pending),
            last_event=facts.modified or None,
            is_new=is_new,
        )
        shown_state = state_of(known, now)
        usd, source = total_cost(turn.cost for turn in facts.turns)
        title = " ".join(plain(meta.title, 200).split())
        return Summary(
            kind="session",
            id=meta.id,
            title=title,
            agent=meta.agent,
            model=meta.model,
            cwd=meta.cwd,
            label=meta.label,
            state=shown_state.state,
            state_text=shown_state.text,
            created=meta.created,
            updated=max(meta.updated, facts.modified),
            last_event=facts.modified or None,
            turns=max(meta.turns, len(facts.turns)),
            tokens=facts.usage.total,
            cost_usd=usd,
            cost_source=source,
            live=shown_state.state in ACTIVE and (running is not None or not facts.is_finished),
            pending=len(pending),
            snippet=plain(snippet, 300),
        )

    def detail(self, record: store.SessionRecord, live: LiveRuns) -> SessionDetail:
        """One session, which may be stored anywhere."""
        path = record.folder / store.EVENTS
        summary = self.summary(record, live, budget=DETAIL_BUDGET)
        facts = self._logs.facts(path, 0)
        running = live.runs.get(("session", record.meta.id))
        is_running = running is not None and not facts.is_finished
        end = read_end(path)
        for turn in facts.turns:
            turn.info.has_diff = fs.is_file(record.diff_file(turn.info.number))
        return SessionDetail(
            summary=summary,
            turns=[turn.info for turn in facts.turns],
            facts=_facts(record, facts, live),
            pending=pending_of(record, live),
            log=LogInfo(
                size=facts.size,
                pages=-(-facts.size // PAGE),
                page_bytes=PAGE,
                turns_complete=facts.is_complete,
            ),
            plan=end.plan or [],
            usage=tokens(facts.usage),
            context=end.context,
            context_window=_window(summary.agent, end.model or summary.model),
            budgets=[*(running.budgets if running and is_running else record.meta.budgets)],
        )


def pending_of(record: store.SessionRecord, live: LiveRuns) -> list[Pending]:
    """What of a session waits for a person."""
    found = live.pending_of("session", record.meta.id)
    if record.meta.status == store.WAITING and not found:
        prompt = store.open_prompt(record)
        if prompt is not None:
            found = [
                Pending(
                    kind="question",
                    run_kind="session",
                    run_id=record.meta.id,
                    request_id=PERSON_QUESTION,
                    title=record.meta.title,
                    text=plain(prompt, MAX_INPUT),
                    since=record.meta.updated,
                )
            ]
    return found


def _complete(meta: store.Meta, facts: LogFacts) -> store.Meta:
    """The metadata with what only the log has of a turn that runs."""
    init = next((turn.init for turn in reversed(facts.turns) if turn.init is not None), None)
    if init is None:
        return meta
    return replace(
        meta,
        agent=meta.agent or init.agent,
        cwd=meta.cwd or init.cwd or "",
        label=meta.label or init.label,
        model=meta.model or facts.turns[-1].info.model,
        title=meta.title or facts.turns[0].info.prompt,
    )


def _is_live(record: store.SessionRecord, facts: LogFacts, live: LiveRuns, *, is_new: bool) -> bool:
    """Whether a process works on the session now."""
    running = live.runs.get(("session", record.meta.id))
    if running is not None and running.state != "idle":
        return not facts.is_finished or facts.last is None
    if facts.is_finished or is_new:
        return False
    return fs.is_locked(record.folder / store.LOCK)


def _facts(record: store.SessionRecord, facts: LogFacts, live: LiveRuns) -> Facts:
    meta = _complete(record.meta, facts)
    process = live.processes.get(("session", meta.id))
    running = live.runs.get(("session", meta.id))
    error = facts.last.error if facts.last is not None else None
    known = error.facts if error is not None else {}
    argv = as_texts(known.get("argv")) or [*(process.argv if process else ())]
    result = Facts(
        agent=meta.agent,
        model=meta.model,
        cwd=meta.cwd,
        argv=[plain(word, 2_000) for word in argv],
        stderr_tail=plain(as_text(known.get("stderr")), 20_000),
        pid=process.pid if process else None,
        can_steer=running is not None and running.can_steer and not facts.is_finished,
        session_id=meta.session_id,
        resume_command=None if meta.lost else f"corral run --resume {meta.id}",
        native_resume_command=_native_resume(record, meta, facts),
    )
    init = next((turn.init for turn in reversed(facts.turns) if turn.init is not None), None)
    if init is not None:
        result.version, result.auth = init.agent_version, init.auth
        result.sandbox, result.sandbox_reason = init.sandbox, init.sandbox_reason
        result.capabilities = [*init.capabilities]
        result.tools = [plain(name, 200) for name in init.tools[:500]]
    reports = (turn.policy_report for turn in facts.turns)
    result.policy_report = next(filter(None, reports), "")
    return result


def _window(agent: str, model: str | None) -> int | None:
    """How many tokens the model of an agent takes, if it is known."""
    if not model:
        return None
    full = canonical(model)
    try:
        if not is_model_name(full):
            full = f"{registry.find(agent).vendor or vendor_of(model)}:{model}"
        entry = prices.catalogue().lookup(full)
    except CorralError:  # an agent that is not known here, or a models.toml that cannot be read
        return None
    return None if entry is None else entry.window


def _native_resume(record: store.SessionRecord, meta: store.Meta, facts: LogFacts) -> str | None:
    """The command line that continues a session in the agent's own program: the one that ran, if
    it is still there, because corral's own installation is not on ``PATH``."""
    try:
        agent = registry.find(meta.agent)
    except CorralError:  # an agent that is not known here
        return None
    words = agent.native_resume
    if not words or meta.session_id is None or meta.lost:
        return None
    ran = next((turn.program for turn in facts.turns if turn.program), "")
    ours = ran if fs.is_file(ran) and os.path.basename(ran) in words else words[2]
    is_billed_to_key = any(
        turn.init is not None and turn.init.auth == "api_key" for turn in facts.turns
    )
    settings = agent.native_key_settings if is_billed_to_key else ()
    words = (*words[:2], ours, *settings, *words[3:])
    session, home = meta.session_id, str(record.home)
    filled = (word.replace("{session}", session).replace("{home}", home) for word in words)
    folder = f"cd {shlex.quote(meta.cwd)} && " if meta.cwd else ""
    return plain(folder + shlex.join(filled))
