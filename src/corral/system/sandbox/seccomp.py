"""A seccomp filter: what a program in the sandbox cannot ask the kernel for.

- Sockets other than those of the internet and of netlink. A Unix socket on a read-only file system
  can still be connected to: that of Docker, of an SSH agent or of D-Bus would be a way out. A
  virtual machine's socket to its host belongs to no network namespace. Pairs of connected Unix
  sockets (``socketpair``) stay allowed: they lead nowhere else. Those of datagrams do not, because
  a datagram can be sent to any address.
- The kernel's keys (``keyctl``): a process inherits the user's session keyring.
- io_uring, which can open sockets without the system call that is filtered.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping

import msgspec

_LOAD = 0x20
"""Load a word of the call's data."""
_EQUAL = 0x15
_AT_LEAST = 0x35
_AND = 0x54
_RETURN = 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in the call's data. Both supported machines are little-endian, so the low half of an
argument comes first."""
_ALLOW = 0x7FFF0000
_DENY = 0x00050000 | errno.EPERM
_FAMILIES = (2, 10, 16)
"""IPv4, IPv6 and netlink, which programs ask for the addresses of the machine."""
_TYPE_BITS, _DATAGRAM = 0xF, 2
_IO_URING = (425, 426, 427)
_OTHER_ABI = 0x40000000
"""Numbers from here on are those of the x32 ABI on x86-64."""


class _Machine(msgspec.Struct, frozen=True):
    """Its identifier for the kernel's audit, and the numbers of its system calls."""

    architecture: int
    socket: int
    socketpair: int
    keys: tuple[int, int, int]
    """``add_key``, ``request_key``, ``keyctl``."""


_MACHINES: Mapping[str, _Machine] = {
    "x86_64": _Machine(0xC000003E, 41, 53, (248, 249, 250)),
    "aarch64": _Machine(0xC00000B7, 198, 199, (217, 218, 219)),
}
_Step = tuple[int, int, int | str | None, int | str | None]
"""Operation, operand, where to go if true, where to go if false. None: the next one; a text: the
step of that label."""


def is_supported() -> bool:
    return os.uname().machine in _MACHINES


def build_filter() -> bytes:
    """The filter as an array of ``struct sock_filter``."""
    machine = _MACHINES[os.uname().machine]
    denied = (*_IO_URING, *machine.keys)
    socket: list[_Step] = [
        (_LOAD, _FIRST_ARGUMENT, None, None),
        *((_EQUAL, family, _ALLOW, None) for family in _FAMILIES[:-1]),
        (_EQUAL, _FAMILIES[-1], _ALLOW, _DENY),
    ]
    pair: list[_Step] = [
        (_LOAD, _SECOND_ARGUMENT, None, None),
        (_AND, _TYPE_BITS, None, None),
        (_EQUAL, _DATAGRAM, _DENY, _ALLOW),
    ]
    head: list[_Step] = [
        (_LOAD, _ARCHITECTURE, None, None),
        (_EQUAL, machine.architecture, None, _DENY),
        (_LOAD, _NUMBER, None, None),
        (_AT_LEAST, _OTHER_ABI, _DENY, None),
        *((_EQUAL, number, _DENY, None) for number in denied),
        (_EQUAL, machine.socket, "socket", None),
        (_EQUAL, machine.socketpair, "pair", _ALLOW),
    ]
    labels = {"socket": len(head), "pair": len(head) + len(socket)}
    return _encode([*head, *socket, *pair], labels)


def _encode(steps: list[_Step], labels: Mapping[str, int]) -> bytes:
    ends = {_ALLOW: len(steps), _DENY: len(steps) + 1}

    def skipped(index: int, target: int | str | None) -> int:
        if target is None:
            return 0
        found = labels[target] if isinstance(target, str) else ends[target]
        return found - index - 1

    program = [
        struct.pack("HBBI", code, skipped(index, yes), skipped(index, no), operand)
        for index, (code, operand, yes, no) in enumerate(steps)
    ]
    return b"".join([*program, *(struct.pack("HBBI", _RETURN, 0, 0, end) for end in ends)])
