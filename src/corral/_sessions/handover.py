"""Finds the session that ``resume`` names, and begins a session that continues one of another
agent.

The conversation is read from the transcript of the old session, which does not change. The new
session stores it in ``handover.json``: it can be handed over again when the old one is deleted.

It reaches the agent with its first prompt, as text (``first_prompt``), or as messages if the agent
keeps its history as such (``InProcess.takes_messages``). It is sent again as long as the agent has
stored no conversation of its own: after a first turn that failed at its start.

Secrets are redacted in the transcript; those of the new run are redacted here as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from corral._agents.spec import AgentSpec
from corral._metering import prices
from corral._models.registry import canonical, is_model_name
from corral._sessions import handed_conversation as conversations
from corral._sessions import store
from corral._sessions.handed_conversation import HandedConversation
from corral._sessions.prepared_run import PreparedRun
from corral._sessions.store import SessionRecord
from corral._system import config, fs, paths
from corral._system.environment import SecretRedactor
from corral.errors import ConfigError, ResumeLost
from corral.events import Event, Init

UNKNOWN_WINDOW = 128_000
"""Tokens of the context window of a model that is not known."""
CHARACTERS_PER_TOKEN = 4
SHARE = 0.25
"""The part of the context window that an old conversation may fill."""
SMALLEST, LARGEST = 4_000, 400_000
"""Characters of a conversation, whatever the window is."""
STORED = 1_000_000
"""Characters of a conversation that are stored with the session that continues it."""
MAX_CHAIN = 50
"""Sessions that are followed backwards."""


def begin(
    prepared: PreparedRun, source: SessionRecord, *, is_here: bool = False, has_cwd: bool = False
) -> SessionRecord:
    """A new session that continues ``source``. Nothing is written yet. Blocking.

    ``is_here``: this process has it open, and no turn of it is under way. ``has_cwd``: the caller
    chose the folder. Raises ``ConfigError`` if it is in use, ``ResumeLost`` if it has no
    transcript, or belongs to another folder that the caller did not choose."""
    old = source.meta
    if not is_here and store.is_in_use(source):
        raise ConfigError(
            f"session {old.id} is in use by another run",
            hint="Wait for it to end; `corral sessions stop NAME` ends a named session.",
        )
    if not has_cwd:
        _check_folder(old, prepared)
    conversation = conversation_of(source)
    if not conversation.turns:
        raise ResumeLost(
            f"session {old.id} has no transcript to continue from",
            hint="It was run with record=False, or ended before its first turn began. Start a new"
            " session and give the prompt again.",
        )
    redactor = SecretRedactor(prepared.environment.redacted)
    fitted = replace(conversations.fit(conversation, STORED), moved=old.cwd != prepared.cwd)
    record = store.create(prepared.agent.name, prepared.cwd)
    record.handover = conversations.from_json(redactor.clean(msgspec.json.encode(fitted)))
    record.meta.continued_from, record.meta.continued_turns = old.id, old.turns
    record.meta.label = old.label
    return record


def _check_folder(old: store.Meta, prepared: PreparedRun) -> None:
    if old.cwd == prepared.cwd:
        return
    if not store.has_folder(old):
        raise ResumeLost(
            f"session {old.id} began in a folder that does not exist any more: {old.cwd}",
            hint="Name the folder in which it continues: cwd=FOLDER (--cwd).",
        )
    raise ResumeLost(
        f"session {old.id} began in another folder",
        hint=f"Continue it with cwd={old.cwd} (--cwd), or name another folder.",
    )


def conversation_of(
    record: SessionRecord, depth: int = 0, turns: int | None = None
) -> HandedConversation:
    """The conversation of a stored session, with the sessions that it continues. ``turns``: only
    so many. Blocking."""
    meta, events, before = record.meta, record.events(), None
    with suppress(msgspec.MsgspecError):  # what is damaged is lost
        if (stored := record.stored_handover()) is not None:
            before = conversations.from_json(stored)
    if before is None and meta.continued_from and depth < MAX_CHAIN:
        parent = store.open_folder(paths.sessions() / meta.continued_from)
        if parent is not None:
            before = conversation_of(parent, depth + 1, meta.continued_turns)
    return conversations.read(
        events if turns is None else _first_turns(events, turns),
        about=(meta.id, meta.agent, meta.cwd),
        before=before,
        diff=record.diff,
    )


def _first_turns(events: Iterator[Event], count: int) -> Iterator[Event]:
    for event in events:
        count -= isinstance(event, Init)
        if count < 0:
            return
        yield event


def first_prompt(given: HandedConversation, prompt: str, prepared: PreparedRun) -> str:
    """The prompt with the conversation before it, in what the agent and its model have room
    for."""
    limit = prepared.agent.prompt_limit - len(prompt.encode("utf-8", "replace"))
    size = room(prepared.agent, prepared.run.model)
    text = conversations.prompt_text(conversations.fit(given, size), prompt)
    while len(text.encode("utf-8", "replace")) > limit and size > SMALLEST:
        size //= 2
        text = conversations.prompt_text(conversations.fit(given, size), prompt)
    return text


def room(agent: AgentSpec, model: str | None) -> int:
    """How many characters of an old conversation the agent's model gets."""
    name = canonical(model or "")
    if name and not is_model_name(name) and agent.vendor:
        name = f"{agent.vendor}:{name}"
    entry = prices.catalogue().lookup(name)
    window = (entry.window if entry is not None else None) or UNKNOWN_WINDOW
    return max(SMALLEST, min(LARGEST, int(window * CHARACTERS_PER_TOKEN * SHARE)))


def split_resume(
    agent: str, options: Mapping[str, object]
) -> tuple[SessionRecord | None, Mapping[str, object]]:
    """The session to resume if it is one of another agent, and the options without it: its
    conversation continues in a new session, and the old one never changes."""
    name = options.get("resume")
    if not isinstance(name, str) or "\0" in name:  # an error of the options
        return None, options
    record = store.find(name, fs.real_path(str(options.get("cwd") or ".")))
    if record.meta.agent == config.find_agent(agent).name:
        return None, options
    return record, {key: value for key, value in options.items() if key not in ("resume", "fork")}


def find_resumed(prepared: PreparedRun) -> SessionRecord:
    """The session of the same agent. Raises ``ResumeLost`` if it cannot be continued here."""
    record = store.find(prepared.run.resume or "last", prepared.cwd)
    meta = record.meta
    if meta.agent != prepared.agent.name:
        raise ConfigError(f"session {meta.id} is of {meta.agent}, not of {prepared.agent.name}")
    if meta.session_id is None:
        raise store.no_conversation(meta)
    if meta.cwd != prepared.cwd:
        raise ResumeLost(
            f"session {meta.id} began in another folder",
            hint=f"Resume it with cwd={meta.cwd} (--cwd).",
        )
    return record
