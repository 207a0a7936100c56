"""Finds the session that ``resume`` names: one of the same agent, or of another one."""

from __future__ import annotations

from collections.abc import Mapping

from corral.errors import ConfigError, ResumeLost
from corral.sessions import store
from corral.sessions.prepared_run import PreparedRun
from corral.sessions.store import SessionRecord
from corral.system import config


def split_resume(
    agent: str, options: Mapping[str, object]
) -> tuple[SessionRecord | None, Mapping[str, object]]:
    """The session to resume if it is one of another agent, and the options without it: its
    conversation continues in a new session, and the old one never changes."""
    name = options.get("resume")
    if not isinstance(name, str) or "\0" in name:  # an error of the options
        return None, options
    record = store.find(name)
    if record.meta.agent == config.find_agent(agent).name:
        return None, options
    return record, {key: each for key, each in options.items() if key not in ("resume", "fork")}


def find_resumed(prepared: PreparedRun) -> SessionRecord:
    """The session of the same agent. Raises ``ResumeLost`` if it cannot be continued here."""
    record = store.find(prepared.run.resume or "last")
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
