"""A relay before a Postgres server, which cuts one connection after some messages."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

STARTUP, SSL_REQUEST, GSS_REQUEST = 196608, 80877103, 80877104


class Stream:
    """Messages of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._file = connection.makefile("rb")

    def _bytes(self, count: int) -> bytes:
        found = self._file.read(count)
        if len(found) < count:
            raise EOFError
        return found

    def start(self) -> bytes:
        """The first message of a client; encryption is declined."""
        while True:
            size, code = struct.unpack("!II", self._bytes(8))
            body = self._bytes(size - 8)
            if code == STARTUP:
                return struct.pack("!II", size, code) + body
            assert code in (SSL_REQUEST, GSS_REQUEST)
            self.connection.sendall(b"N")

    def message(self) -> tuple[bytes, bytes]:
        """Kind and the complete message."""
        head = self._bytes(5)
        size: int = struct.unpack("!I", head[1:])[0]
        return head[:1], head + self._bytes(size - 4)


def socket_of(url: str) -> str:
    """The path of the server's socket."""
    return f"{parse_qs(urlsplit(url).query)['host'][0]}/.s.PGSQL.5432"


class CuttingRelay:
    """``cut(n, m)``: of the connections from then on, the ``n``-th is cut when its client sends its
    ``m``-th message. ``away``: no connection is accepted for good. ``close`` it."""

    def __init__(self, url: str) -> None:
        self._server = socket_of(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{port}{urlsplit(url).path}"
        self.connections = 0
        self.is_away = False
        self._at: tuple[int, int] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, connection: int, message: int) -> None:
        self.connections, self._at = 0, (connection, message)

    def cut_nothing(self) -> None:
        self._at = None

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                self.connections += 1
                if self.is_away:
                    client.close()
                    continue
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                arguments = (client, self.connections)
                threading.Thread(target=self._relay, args=arguments, daemon=True).start()

    def _relay(self, client: socket.socket, number: int) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            messages = Stream(client)
            with suppress(EOFError, OSError):
                server.connect(self._server)
                count, message = 1, messages.start()
                answers = threading.Thread(target=_copy, args=(server, client), daemon=True)
                answers.start()
                while self._at != (number, count):
                    server.sendall(message)
                    count, message = count + 1, messages.message()[1]
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def _copy(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(65536):
            client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)
