"""Connections from inside the sandbox to the endpoints that it may reach.

Theory of operation
-------------------
The sandbox has its own network, which consists of a loopback interface. Corral opens listening
sockets there, or gets them from the program ``inner``. ``Gateway`` accepts connections from them in
corral's event loop, connects each to its endpoint outside, through the user's proxy if there is one
(``host_proxy.open_outside``), and copies bytes both ways. One endpoint may be a proxy, which is
corral itself (``host_proxy``). No process is needed for this, and no other program of the machine
can connect.

A socket belongs to the network of the thread that opens it, wherever it is used later. ``bwrap``
reports its first process inside (``--info-fd``) and then waits (``--block-fd``). Meanwhile corral
enters the network of that process, opens the sockets there, and lets ``bwrap`` continue: they exist
before the program runs, and no part of corral runs inside.

- With the right to do that (root, unless its container forbids it) a thread enters, opens the
  sockets and ends. The other threads stay where they are.
- Without it, the user namespace that owns this network must be entered first, which gives all
  rights inside and none outside. The kernel says which one that is: before ``bwrap`` waits, the
  process inside goes on to a second user namespace, which owns nothing. The kernel lets only a
  process with one thread enter. So a fork of corral does it and sends the sockets back.
- A fork copies the tables of all memory, and a fork of a process with threads may block for ever.
  So a large corral, and one with threads, uses the program ``inner`` instead. It takes four times
  the CPU time of a fork of a small process.

The loopback interface may not be up yet when the sockets are bound, so they are bound without a
check of the address (IP_FREEBIND).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
from collections.abc import Sequence

import msgspec

from corral._system import platform
from corral._system.sandbox.box import PROXY, Box, InnerAddress, SandboxEndpoint, Wrapped
from corral.errors import CorralError, SandboxFailed
from corral.values import decode_as

LARGEST_FORK = 128 << 20
"""Bytes of memory of a process that is forked. A fork of more costs as much as the other way."""
_FREEBIND = 15
_BACKLOG = 128


class SandboxInfo(
    msgspec.Struct, frozen=True, rename={"pid": "child-pid", "network": "net-namespace"}
):
    """What ``bwrap`` says of the sandbox."""

    pid: int
    network: int
    """The number of its network namespace."""


def can_enter_cheaply() -> bool:
    """Whether to open them from outside now."""
    return platform.can_enter_networks() or platform.can_fork(LARGEST_FORK)


def parse_info(text: bytes) -> SandboxInfo | None:
    """None if the text is not complete. Raises ``SandboxFailed`` if this ``bwrap`` does not say
    what is needed."""
    if b"}" not in text:
        return None
    try:
        return decode_as(text, SandboxInfo)
    except msgspec.MsgspecError as error:
        raise SandboxFailed(f"bubblewrap says {error} of the sandbox") from error


def open_inside(info: SandboxInfo, addresses: Sequence[InnerAddress]) -> list[socket.socket]:
    """One socket for each address; none if the sandbox has ended already. Blocks for a few
    milliseconds. Raises ``SandboxFailed`` if that is not permitted."""
    try:
        with contextlib.ExitStack() as files:
            network = os.open(f"/proc/{info.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            files.callback(os.close, network)
            if os.fstat(network).st_ino != info.network:
                return []  # it ended, and another process got its number
            if platform.can_enter_networks():
                return _in_thread((network,), addresses)
            owner = platform.owner_of_namespace(network)
            files.callback(os.close, owner)
            return _in_fork((owner, network), addresses)
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError as error:
        raise SandboxFailed(
            f"cannot listen in the network of the sandbox: {error.strerror}"
        ) from error


def _listen(spaces: Sequence[int], addresses: Sequence[InnerAddress]) -> list[socket.socket]:
    """Enter the namespaces, for ever, and open the sockets."""
    for space in spaces:
        platform.enter_namespace(space)
    opened: list[socket.socket] = []
    try:
        for address in addresses:
            opened.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            opened[-1].setsockopt(socket.SOL_IP, _FREEBIND, 1)
            opened[-1].bind((address.ip, address.endpoint.port))
            opened[-1].listen(_BACKLOG)
    except OSError:
        for each in opened:
            each.close()
        raise
    return opened


def _in_thread(spaces: Sequence[int], addresses: Sequence[InnerAddress]) -> list[socket.socket]:
    opened: list[socket.socket] = []
    errors: list[OSError] = []

    def work() -> None:
        try:
            opened.extend(_listen(spaces, addresses))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="corral-sandbox")
    try:
        thread.start()
    except RuntimeError as error:  # the limit of processes or of memory
        raise OSError(errno.EAGAIN, str(error)) from error
    thread.join()
    if errors:
        raise errors[0]
    return opened


def _in_fork(spaces: Sequence[int], addresses: Sequence[InnerAddress]) -> list[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            pid = os.fork()
            if pid == 0:  # the fork never leaves this block
                try:
                    opened = _listen(spaces, addresses)
                    socket.send_fds(theirs, [b"."], [listener.fileno() for listener in opened])
                except OSError as error:
                    theirs.send((error.errno or 0).to_bytes(4, "big"))
                finally:
                    os._exit(0)
        try:
            data, numbers, _, _ = socket.recv_fds(ours, 4, len(addresses), socket.MSG_CMSG_CLOEXEC)
        finally:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    if not numbers:
        code = int.from_bytes(data, "big")
        raise OSError(code, os.strerror(code) if code else "the process that should do it ended")
    return [from_number(number) for number in numbers]


def from_number(number: int) -> socket.socket:
    """The socket of a received descriptor, which other programs do not inherit."""
    os.set_inheritable(number, False)
    return socket.socket(fileno=number)


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
        while (info := parse_info(text)) is None:
            try:
                part = await self._loop.sock_recv(self._control, 4096)
            except OSError:
                return
            if not part:
                return
            text += part
        self._serve(open_inside(info, self._addresses))
        with contextlib.suppress(OSError):
            self._control.send(b".")
        self._close_control()

    def _receive(self) -> None:
        try:
            _, numbers, _, _ = socket.recv_fds(self._control, 1, len(self._addresses))
        except BlockingIOError:
            return
        except OSError:
            numbers = []
        self._close_control()
        self._serve([from_number(number) for number in numbers])

    def _serve(self, opened: Sequence[socket.socket]) -> None:
        for listener, address in zip(opened, self._addresses, strict=False):
            listener.setblocking(False)
            self._listeners.append(listener)
            self._loop.add_reader(listener.fileno(), self._accept, listener, address.endpoint)

    def _accept(self, listener: socket.socket, endpoint: SandboxEndpoint) -> None:
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


async def _forward(accepted: socket.socket, endpoint: SandboxEndpoint, box: Box) -> None:
    # Loaded when the agent runs already, not on the way to its start.
    from corral._system.sandbox.host_proxy import HostProxy, open_outside, relay

    with contextlib.closing(accepted), contextlib.suppress(OSError):
        inside = await asyncio.open_connection(sock=accepted)
        if endpoint == PROXY:
            await HostProxy(box.hosts, box.endpoints).serve(inside)
            return
        try:
            outside = await open_outside(endpoint)
        except (OSError, CorralError) as error:
            _log.warning("the sandbox cannot reach %s: %s", endpoint.host, error)
            inside[1].transport.abort()
            return
        await relay(inside, outside)
