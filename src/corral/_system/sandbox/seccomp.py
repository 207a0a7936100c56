"""A seccomp filter: what a program in the sandbox cannot ask the kernel for.

- Sockets other than those of the internet and of netlink. A Unix socket on a read-only file system
  can still be connected to: that of Docker, of an SSH agent or of D-Bus would be a way out. A
  virtual machine's socket to its host belongs to no network namespace. Pairs of connected Unix
  sockets (``socketpair``) stay allowed if they stay connected: streams and sequenced packets. A
  datagram can be sent to any address, and the kernel makes datagram sockets of raw ones too.
- The kernel's keys (``keyctl``): a process inherits the user's session keyring.
- io_uring, which can open sockets without the system call that is filtered.
- Access to the first process of the sandbox (pid 1), which waits for the program and ends with it.
  A process that stops or changes it would keep the sandbox from ending. ``ptrace`` of others stays
  allowed: debuggers and leak detectors need it. Signals are no danger: the kernel ignores those
  that a first process does not handle. ``/proc/1`` is hidden by a mount.
- Further user namespaces: in one a program has all rights, and reaches parts of the kernel that
  only root reaches elsewhere. The flags of ``clone3`` are in memory, which a filter cannot read. So
  this call does not exist inside, and C libraries use ``clone``, as in containers. bubblewrap's
  ``--disable-userns`` (from version 0.8) is not used: with it the program is in a second user
  namespace, which has no right to the low ports that ``inner`` opens.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping

import msgspec

_LOAD = 0x20
"""Load a word of the call's data."""
_EQUAL = 0x15
_AT_LEAST = 0x35
_AND = 0x54
_RETURN = 0x06
_NUMBER, _ARCHITECTURE = 0, 4
"""Offsets in the call's data."""
_ARGUMENTS = (16, 24)
"""Offsets of the first two arguments. Both supported machines are little-endian, so the low half
comes first. The kernel uses no more than that of the arguments that are checked."""
_ALLOW = 0x7FFF0000
_ERROR = 0x00050000
_DENY = _ERROR | errno.EPERM
_NEW_USER = 0x10000000
"""The flag for a new user namespace."""
_ALL_BITS = 0xFFFFFFFF
_CLONE3 = 435
"""On every machine."""
_OTHER_ABI = 0x40000000
"""Numbers from here on are those of the x32 ABI on x86-64."""


class _Check(msgspec.Struct, frozen=True):
    """What an argument of a call must be."""

    argument: int
    values: tuple[int, ...]
    mask: int = _ALL_BITS
    allows: bool = True
    """The values are the only ones that are allowed. Otherwise they are denied."""


_FAMILIES = _Check(0, (2, 10, 16))
"""IPv4, IPv6 and netlink, which programs ask for the addresses of the machine."""
_NO_NEW_USER = _Check(0, (0,), mask=_NEW_USER)
_UNIX = _Check(0, (1,))
_CONNECTED = _Check(1, (1, 5), mask=0xF)
"""Streams and sequenced packets. The bits above are flags."""
_NOT_FIRST = _Check(0, (1,), allows=False)
_NOT_FIRST_AS_SECOND = _Check(1, (1,), allows=False)


class _Machine(msgspec.Struct, frozen=True):
    """Its identifier for the kernel's audit, and the numbers of its system calls."""

    architecture: int
    denied: tuple[int, ...]
    """``add_key``, ``request_key``, ``keyctl``; ``io_uring_setup``, ``_enter``, ``_register``."""
    socket: int
    socketpair: int
    ptrace: int
    by_pid: tuple[int, ...]
    """``process_vm_readv``, ``process_vm_writev``, ``pidfd_open``: the pid comes first."""
    by_flags: tuple[int, ...]
    """``clone``, ``unshare``: the flags come first."""


_MACHINES: Mapping[str, _Machine] = {
    "x86_64": _Machine(
        architecture=0xC000003E,
        denied=(248, 249, 250, 425, 426, 427),
        socket=41,
        socketpair=53,
        ptrace=101,
        by_pid=(310, 311, 434),
        by_flags=(56, 272),
    ),
    "aarch64": _Machine(
        architecture=0xC00000B7,
        denied=(217, 218, 219, 425, 426, 427),
        socket=198,
        socketpair=199,
        ptrace=117,
        by_pid=(270, 271, 434),
        by_flags=(220, 97),
    ),
}


def is_supported() -> bool:
    return os.uname().machine in _MACHINES


def build_filter() -> bytes:
    """The filter as an array of ``struct sock_filter``."""
    machine = _MACHINES[os.uname().machine]
    checks: dict[int, tuple[_Check, ...]] = {
        machine.socket: (_FAMILIES,),
        machine.socketpair: (_UNIX, _CONNECTED),
        machine.ptrace: (_NOT_FIRST_AS_SECOND,),
        **dict.fromkeys(machine.by_pid, (_NOT_FIRST,)),
        **dict.fromkeys(machine.by_flags, (_NO_NEW_USER,)),
    }
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, machine.architecture, yes=1),
        _step(_RETURN, _DENY),
        _step(_LOAD, _NUMBER),
        _step(_AT_LEAST, _OTHER_ABI, no=1),
        _step(_RETURN, _DENY),
    ]
    answers = {**dict.fromkeys(machine.denied, _DENY), _CLONE3: _ERROR | errno.ENOSYS}
    for number, answer in answers.items():
        steps += [_step(_EQUAL, number, no=1), _step(_RETURN, answer)]
    for number, each in checks.items():
        block = [step for check in each for step in _checked(check)]
        steps += [_step(_EQUAL, number, no=len(block) + 1), *block, _step(_RETURN, _ALLOW)]
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _checked(check: _Check) -> Iterator[bytes]:
    """Return ``_DENY`` if the argument is not as it must be, else continue after these steps."""
    yield _step(_LOAD, _ARGUMENTS[check.argument])
    yield _step(_AND, check.mask)
    last = len(check.values) - 1
    for index, value in enumerate(check.values):
        if check.allows:  # to after the step that denies
            yield _step(_EQUAL, value, yes=last - index + 1)
        else:  # to the step that denies; the last one goes past it
            yield _step(_EQUAL, value, yes=last - index, no=int(index == last))
    yield _step(_RETURN, _DENY)


def _step(code: int, operand: int, *, yes: int = 0, no: int = 0) -> bytes:
    """An operation. ``yes`` and ``no``: how many steps a comparison skips."""
    return struct.pack("HBBI", code, yes, no, operand)
