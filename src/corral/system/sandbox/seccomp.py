"""A seccomp filter: programs in the sandbox open no Unix sockets and use no io_uring.

A Unix socket on a read-only file system can still be connected to: that of Docker, of an SSH agent
or of D-Bus would be a way out. io_uring can open sockets without the system call that is
filtered. Pairs of connected Unix sockets (``socketpair``) stay allowed: they lead nowhere else.
"""

from __future__ import annotations

import errno
import os
import struct

_LOAD = 0x20
"""Load a word of the call's data."""
_EQUAL = 0x15
_AT_LEAST = 0x35
_RETURN = 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in the call's data. Both supported machines are little-endian, so the low half of an
argument comes first."""
_ALLOW = 0x7FFF0000
_DENY = 0x00050000 | errno.EPERM
_AF_UNIX = 1
_IO_URING = (425, 426, 427)
_OTHER_ABI = 0x40000000
"""Numbers from here on are those of the x32 ABI on x86-64."""

_MACHINES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine → its identifier for the kernel's audit, and the number of ``socket``."""


def is_supported() -> bool:
    return os.uname().machine in _MACHINES


def build_filter() -> bytes:
    """The filter as an array of ``struct sock_filter``."""
    architecture, socket_number = _MACHINES[os.uname().machine]
    # (operation, operand, where to go if true, where to go if false); None: the next one.
    steps: list[tuple[int, int, int | None, int | None]] = [
        (_LOAD, _ARCHITECTURE, None, None),
        (_EQUAL, architecture, None, _DENY),
        (_LOAD, _NUMBER, None, None),
        (_AT_LEAST, _OTHER_ABI, _DENY, None),
        *((_EQUAL, number, _DENY, None) for number in _IO_URING),
        (_EQUAL, socket_number, None, _ALLOW),
        (_LOAD, _FIRST_ARGUMENT, None, None),
        (_EQUAL, _AF_UNIX, _DENY, _ALLOW),
    ]
    ends = [_ALLOW, _DENY]

    def skipped(index: int, target: int | None) -> int:
        return 0 if target is None else len(steps) - index - 1 + ends.index(target)

    program = [
        struct.pack("HBBI", code, skipped(index, yes), skipped(index, no), operand)
        for index, (code, operand, yes, no) in enumerate(steps)
    ]
    return b"".join([*program, *(struct.pack("HBBI", _RETURN, 0, 0, end) for end in ends)])


def open_filter() -> int:
    """A descriptor of the filter, for a child to read."""
    number = os.memfd_create("corral-seccomp", 0)
    os.write(number, build_filter())
    os.lseek(number, 0, os.SEEK_SET)
    return number
