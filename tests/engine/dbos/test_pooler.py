"""Connection poolers, with a small one that speaks the protocol of Postgres."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from urllib.parse import parse_qs, urlsplit

import pytest
from support.postgres_relay import Stream

from corral._engine.dbos import database
from corral._engine.dbos.leases import ServerLeases
from corral.errors import ConfigError

pytestmark = pytest.mark.postgres


class Pooler:
    """As pgbouncer: a client has a connection to the server for a transaction or for a session.
    Connections that were released last are used first."""

    def __init__(self, server: str, mode: str, stack: ExitStack) -> None:
        self._server, self._mode, self._stack = server, mode, stack
        self._lock = threading.Lock()
        self._idle: list[Stream] = []
        self._welcome = b""
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._stack.enter_context(self._listener.accept()[0])
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(Stream(client),), daemon=True).start()

    def _serve(self, client: Stream) -> None:
        held: Stream | None = None
        with suppress(EOFError, OSError):
            startup = client.start()
            held = self._take(startup)
            self._give(held)
            held = None
            # Every client has the same key, which is of no process of the server.
            key = b"K" + struct.pack("!III", 12, 4711, 4711)
            client.connection.sendall(self._welcome + key + b"Z\0\0\0\5I")
            while True:
                kind, message = client.message()
                if kind == b"X":
                    break
                held = held or self._take(startup)
                held.connection.sendall(message)
                if kind in b"QS" and self._answer(held, client) and self._mode == "transaction":
                    self._give(held)
                    held = None
        if held is not None:
            held.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, server: Stream, client: Stream) -> bool:
        """Whether no transaction is open after it."""
        while True:
            kind, message = server.message()
            client.connection.sendall(message)
            if kind == b"Z":
                return message[-1:] == b"I"

    def _take(self, startup: bytes) -> Stream:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        opened = socket.socket(socket.AF_UNIX)
        self._stack.enter_context(opened)
        opened.connect(self._server)
        server = Stream(opened)
        opened.sendall(startup)
        welcome = b""
        while True:
            kind, message = server.message()
            if kind == b"Z":
                break
            assert kind != b"E", message
            welcome += message if kind != b"K" else b""
        self._welcome = welcome
        return server

    def _give(self, server: Stream) -> None:
        with self._lock:
            self._idle.append(server)


@pytest.fixture
def pooler(new_postgres: str) -> Iterator[Callable[[str], str]]:
    """Starts a pooler in this mode; returns the address of a new database behind it."""
    parts = urlsplit(new_postgres)
    path = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
    with ExitStack() as stack:

        def start(mode: str) -> str:
            port = Pooler(path, mode, stack).port
            return f"postgresql://postgres@127.0.0.1:{port}{parts.path}"

        yield start


def test_a_pooler_that_shares_connections_is_refused(pooler: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match="transaction mode") as error:
        database.prepare(database.find(pooler("transaction")))
    assert "session mode" in str(error.value.hint)


def test_a_pooler_that_shares_connections_is_refused_while_others_use_it(
    pooler: Callable[[str], str],
) -> None:
    import psycopg

    url = pooler("transaction")
    is_over = threading.Event()

    def query() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as other:
            while not is_over.is_set():
                other.execute("SELECT 1")

    others = [threading.Thread(target=query) for _ in range(4)]
    for each in others:
        each.start()
    try:
        with pytest.raises(ConfigError, match="transaction mode"):
            database.prepare(database.find(url))
    finally:
        is_over.set()
        for each in others:
            each.join()


def test_a_pooler_with_a_connection_for_each_client_is_used(pooler: Callable[[str], str]) -> None:
    import psycopg

    url = pooler("session")
    with psycopg.connect(url) as server:
        database.check_pooler(database.find(url), server)
    holder, other = ServerLeases(url), ServerLeases(url)
    holder.hold("first")
    try:
        with other.claim("first") as is_dead:
            assert not is_dead
        holder.release()
        while True:  # the pooler ends the connection a moment later
            with other.claim("first") as is_dead:
                if is_dead:
                    break
    finally:
        other.release()
