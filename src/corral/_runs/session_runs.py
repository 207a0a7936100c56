"""Sessions as runs."""

from __future__ import annotations

from collections.abc import Iterator

from corral._runs import transcript
from corral._runs.run_record import Run, RunDetails, Sources, State
from corral._sessions import index, store
from corral._sessions.warm import names as warm_names
from corral._system import clock, paths
from corral._system.git.scan import project_of
from corral.errors import ConfigError, ResumeLost, StorageFailed
from corral.values import Cost

_ENDS: dict[str, tuple[State, str, str]] = {
    "success": ("success", "", ""),
    "waiting": ("waiting", "a person is asked", ""),
    "interrupted": ("interrupted", "its turn was interrupted", "interrupted"),
    "timeout": ("failed", "its turn timed out", "timeout"),
    "denied": ("failed", "a permission was denied", "permission_denied"),
    "max_turns": ("failed", "its limit of turns is reached", "max_turns"),
    "max_budget": ("failed", "its budget is spent", "budget_exceeded"),
    "incomplete": ("failed", "the answer is not complete", "incomplete"),
}
"""Status of the last turn -> state, reason and code, where the transcript has none."""
MARKS = {"success": "✓", "error": "✗", "denied": "⊘", "cancelled": "–"}
"""Of the status of a tool call."""


def list_runs(sources: Sources) -> Iterator[Run]:
    """The stored sessions, and those of running processes that are not stored."""
    if sources.db is not None:
        return
    listed: set[str] = set()
    for match in search(index.Query(grep=sources.text or None)):
        listed.add(match.meta.id)
        yield _run(match, sources)
    for id, live in sources.live.items():
        if live.kind == "session" and id not in listed and not sources.text:
            yield Run(
                id=id,
                kind="session",
                state=sources.state_of(id) or "running",
                title=live.title,
                project=project_of(live.cwd),
                parent=live.part_of.partition("/")[0].partition("#")[0],
                needs=len(live.pending),
                started=live.since,
                updated=live.since,
                agent=live.agent,
                model=live.model or "",
                label=live.label or "",
            )


def search(query: index.Query) -> list[index.SessionMatch]:
    """The stored sessions. Without an index (a home that cannot be written), all are read."""
    try:
        return index.search(query)
    except StorageFailed:
        if query.grep:
            raise
        return [index.SessionMatch(record.meta) for record in store.all_sessions()]


def _run(match: index.SessionMatch, sources: Sources) -> Run:
    meta, facts = match.meta, match.facts
    # Without a status, no turn of it has ended, and no process has it.
    state, reason, code = _ENDS.get(meta.status or "interrupted", ("failed", "its turn failed", ""))
    running = sources.state_of(meta.id)
    if running is not None:
        state, reason, code = running, "", ""
    elif state in ("failed", "interrupted"):
        reason, code = facts.reason or reason, facts.code or code
    is_free = meta.scripted
    return Run(
        id=meta.id,
        kind="session",
        state=state,
        title=meta.title,
        project=project_of(meta.project or meta.cwd),
        parent=meta.parent,
        place=meta.place,
        reason=reason,
        code=code,
        usage=facts.usage,
        cost=Cost() if is_free or facts.cost is None else Cost(facts.cost, facts.source),
        scripted=is_free,
        verdict=facts.verdict,
        needs=sources.needs_of(meta.id) or int(state == "waiting" and not _is_answered(meta)),
        started=meta.created,
        ended=None if running else meta.updated,
        updated=meta.updated,
        tries=max(1, meta.turns),
        agent=meta.agent,
        model=meta.model or "",
        label=meta.label or "",
        folder=str(paths.sessions() / meta.id),
    )


def _is_answered(meta: store.Meta) -> bool:
    """Whether the person has answered, and the session has not gone on since."""
    question = store.open_question(store.find(meta.id))
    return question is not None and question.read_answer() is not None


def show(run: Run) -> RunDetails:
    """The turns of a session. Raises ``ResumeLost`` if it was not recorded."""
    record = store.find(run.id)
    if not record.has_transcript:
        raise ResumeLost(
            f"session {run.id} has no transcript",
            hint="It was run with record=False, or is the question of a person.",
        )
    turns = transcript.turns(record.events())
    for turn in turns:
        turn.diff = record.diff(turn.number)
    meta = record.meta
    name = next((each.name for _, each in warm_names.all_names() if each.session == meta.id), "")
    head = [f"name       {name}"] if name else []
    lines = [*head, f"folder     {meta.cwd}", *_chain(meta)]
    for turn in turns:
        lines += _turn_lines(turn)
    diffs = tuple(turn.diff for turn in turns if turn.diff)
    return RunDetails(run=run, content=turns, lines=tuple(lines), diffs=diffs)


def _turn_lines(turn: transcript.TurnRecord) -> Iterator[str]:
    yield ""
    yield f"── {clock.local_minute(turn.started)} · {transcript.summary(turn)}"
    yield from (f"> {line}" for line in turn.prompt.splitlines())
    yield ""
    for part in turn.parts:
        if isinstance(part, str):
            yield from (part.strip(), "")
        else:
            why = f": {part.error}" if part.error else ""
            yield f"{MARKS.get(part.status, '?')} {' '.join(part.title.split())}{why}"
    yield from (f"  {file.kind:8} {file.path}" for file in turn.files)
    if turn.verdict:
        yield f"  {turn.verdict}"
    yield from (f"  gap      {gap}" for gap in turn.gaps)


def _chain(meta: store.Meta) -> Iterator[str]:
    """The sessions that this one continues, the nearest first, and those that continue it."""
    known = {each.meta.id: each.meta for each in store.all_sessions()}
    seen = {meta.id}
    before = meta
    while (name := before.continued_from) is not None and name not in seen:
        seen.add(name)
        earlier = known.get(name)
        count = f"{before.continued_turns} turn{'s' * (before.continued_turns != 1)}"
        yield f"continues  {name} · {earlier.agent if earlier else 'deleted'} · after {count}"
        if earlier is None:
            break
        before = earlier
    for other in known.values():
        if other.continued_from == meta.id:
            yield f"continued  in {other.id} · {other.agent}"


def delete(run: Run) -> None:
    """Delete a session with its transcript. Raises ``ConfigError`` if a run has it open."""
    record = store.find(run.id)
    if store.is_in_use(record):
        raise ConfigError(f"session {run.id} is in use", hint="End its run first.")
    record.close(keep=False)
    warm_names.forget({run.id})
