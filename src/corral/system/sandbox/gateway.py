"""Connections from inside the sandbox to the endpoints that it may reach.

The sandbox has its own network, which consists of a loopback interface. Corral opens listening
sockets there (``listeners``), or gets them from the program ``inner``. ``Gateway`` accepts
connections from them in corral's event loop, connects each to its endpoint outside, through the
user's proxy if there is one (``outside``), and copies bytes both ways. One endpoint may be a proxy,
which is corral itself (``host_proxy``). No process is needed for this, and no other program of the
machine can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence

from corral.errors import CorralError
from corral.system.sandbox import listeners
from corral.system.sandbox.box import PROXY, Box, Endpoint, Wrapped

_log = logging.getLogger(__name__)

LONGEST_END = 5.0
"""Seconds for the end of connections that were cancelled."""


class Gateway:
    """Belongs to the loop in which it is made. ``control`` is closed here."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wrapped: Wrapped,
        control: socket.socket,
        box: Box,
    ) -> None:
        self._loop = loop
        self._box = box
        self._control = control
        self._addresses = wrapped.addresses
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_entered = wrapped.is_entered
        control.setblocking(False)

    async def open(self) -> None:
        """Open the sockets and let the program start, or wait for ``inner`` in the background.
        Without effect if the sandbox could not be built: then its command exits. Raises
        ``SandboxFailed``."""
        if not self._is_entered:
            self._loop.add_reader(self._control.fileno(), self._receive)
            return
        text = b""
        while (info := listeners.parse_info(text)) is None:
            if not (part := await self._read_control()):
                return
            text += part
        self._serve(listeners.open_inside(info, self._addresses))
        with contextlib.suppress(OSError):
            self._control.send(b".")
        self._close_control()

    async def _read_control(self) -> bytes:
        try:
            return await self._loop.sock_recv(self._control, 4096)
        except OSError:
            return b""

    def _receive(self) -> None:
        try:
            _, numbers, _, _ = socket.recv_fds(self._control, 1, len(self._addresses))
        except BlockingIOError:
            return
        except OSError:
            numbers = []
        self._close_control()
        self._serve([listeners.from_number(number) for number in numbers])

    def _serve(self, opened: Sequence[socket.socket]) -> None:
        for listener, address in zip(opened, self._addresses, strict=False):
            listener.setblocking(False)
            self._listeners.append(listener)
            self._loop.add_reader(listener.fileno(), self._accept, listener, address.endpoint)

    def _accept(self, listener: socket.socket, endpoint: Endpoint) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = listener.accept()
            accepted.setblocking(False)
            task = self._loop.create_task(_forward(accepted, endpoint, self._box))
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

    async def wait_closed(self) -> None:
        """Wait, after ``close``, until the connections have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LONGEST_END)


async def _forward(accepted: socket.socket, endpoint: Endpoint, box: Box) -> None:
    # Loaded when the agent runs already, not on the way to its start.
    from corral.system.sandbox.outside import open_outside, relay

    with contextlib.closing(accepted), contextlib.suppress(OSError):
        inside = await asyncio.open_connection(sock=accepted)
        if endpoint == PROXY:
            from corral.system.sandbox.host_proxy import HostProxy

            await HostProxy(box.hosts, box.endpoints).serve(inside)
            return
        try:
            outside = await open_outside(endpoint)
        except (OSError, CorralError) as error:
            _log.warning("the sandbox cannot reach %s: %s", endpoint.host, error)
            inside[1].transport.abort()
            return
        await relay(inside, outside)
