"""The sessions that an agent itself has stored: listed, and loaded into a new process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from corral.errors import (
    ConfigError,
    InputRejected,
    InvalidRequest,
    ProcessFailed,
    ResumeLost,
    ServerFailed,
    StartupTimeout,
    StreamBroken,
)
from corral.protocol.acp.methods import SessionInfo, read_session, read_session_list
from corral.sessions.permissions import Asker
from corral.sessions.prepared_run import PreparedRun
from corral.values import AgentSession

if TYPE_CHECKING:
    from corral.sessions.acp.connection import AcpSession, Connection

PAGES = 100
"""Pages of a session list that are read: a list may never end."""

_LOAD_FAILURES = (InputRejected, InvalidRequest, ProcessFailed, ServerFailed, StreamBroken)
"""Errors that an agent has in answer to a conversation that it cannot load."""


async def list_sessions(connection: Connection, cwd: str | None) -> list[AgentSession]:
    """The stored sessions of one folder or of all. Raises ``ConfigError`` if the agent does not
    list them."""
    agent = connection.agent
    if agent is None or "list" not in agent.session_methods:
        raise ConfigError(f"{connection.prepared.agent.name} does not list its sessions")
    found: list[AgentSession] = []
    cursor: str | None = None
    for _ in range(PAGES):
        sent = connection.acp.list_sessions(cwd, cursor)
        settled = await connection.call(sent, connection.handshake_timeout)
        page, cursor = read_session_list(settled.result)
        found += page
        if cursor is None:
            break
    return found


async def load_session(
    connection: Connection, session_id: str, prepared: PreparedRun, ask: Asker | None
) -> tuple[AcpSession, SessionInfo]:
    """A session of an earlier process, for the prompts of ``prepared``. Raises ``ConfigError`` if
    the agent cannot load sessions, and ``ResumeLost`` if it cannot load this one."""
    agent = connection.agent
    if agent is None or not connection.can_load:
        raise ConfigError(f"{connection.prepared.agent.name} cannot resume a session")
    session = connection.add_session(session_id, prepared, ask)
    servers = connection.check_servers(prepared.run.mcp_servers)
    if agent.can_load:
        sent = connection.acp.load_session(session_id, prepared.cwd, servers)
    else:
        sent = connection.acp.resume_session(session_id, prepared.cwd, servers)
    try:
        settled = await connection.call(sent, connection.handshake_timeout)
    except BaseException as error:
        connection.drop_session(session)
        if connection.dead is None and isinstance(error, _LOAD_FAILURES):
            raise ResumeLost(
                f"the agent cannot load the conversation: {error.message}",
                hint="Start a new session.",
            ) from error
        raise
    # History may follow the reply that announces it.
    chosen, timeout = connection.prepared.run.quiet_period, connection.handshake_timeout
    quiet = connection.quirks.quiet_period if chosen is None else chosen
    until = asyncio.get_running_loop().time() + timeout
    while await connection.wait_for_update(session, quiet, until):
        pass
    if asyncio.get_running_loop().time() >= until:
        connection.drop_session(session)
        raise StartupTimeout(
            f"the history of the session did not end within {timeout:g}s",
            hint="Raise startup_timeout, or start a new session.",
        )
    session.inbox.clear()
    return session, read_session(settled.result, session_id)
