"""Connections from inside the sandbox to the endpoints that it may reach.

The sandbox has its own network, which consists of a loopback interface. The program
``inner`` listens there and sends the listening sockets to corral. ``Gateway`` accepts connections
from them in corral's event loop, connects each to its endpoint outside and copies bytes both ways.
No process is needed for this, and no other program of the machine can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from corral.system.sandbox.box import Address, Endpoint

CHUNK = 1 << 16


class Gateway:
    """Belongs to the loop in which it is made. ``control`` is closed here."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        control: socket.socket,
        addresses: Sequence[Address],
    ) -> None:
        self._loop = loop
        self._control = control
        self._addresses = addresses
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        control.setblocking(False)
        loop.add_reader(control.fileno(), self._receive)

    def _receive(self) -> None:
        try:
            _, numbers, _, _ = socket.recv_fds(self._control, 1, len(self._addresses))
        except BlockingIOError:
            return
        except OSError:
            numbers = []
        self._close_control()
        for number, address in zip(numbers, self._addresses, strict=False):
            listener = socket.socket(fileno=number)
            listener.setblocking(False)
            self._listeners.append(listener)
            self._loop.add_reader(number, self._accept, listener, address.endpoint)

    def _accept(self, listener: socket.socket, endpoint: Endpoint) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            task = self._loop.create_task(_forward(accepted, endpoint))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _close_control(self) -> None:
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()

    def close(self) -> None:
        """Close all sockets. Connections end at the next turn of the loop."""
        if self._loop.is_closed():
            self._control.close()
        else:
            self._close_control()
        for listener in self._listeners:
            if not self._loop.is_closed():
                self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        for task in self._tasks:
            task.cancel()


async def _forward(accepted: socket.socket, endpoint: Endpoint) -> None:
    with contextlib.closing(accepted), contextlib.suppress(OSError):
        inside_reader, inside_writer = await asyncio.open_connection(sock=accepted)
        try:
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except OSError:
            inside_writer.transport.abort()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(inside_reader, writer))
                group.create_task(_copy(reader, inside_writer))
        finally:
            # What is buffered is still sent.
            writer.close()
            inside_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of input, then pass the end on."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
