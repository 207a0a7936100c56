"""Landlock, the second choice on Linux: a program can write only where it may.

It needs no privileges and no user namespaces. It covers writing to files only: reading, the network
and the sockets of this machine stay as they are, and so do the mode, owner, times and attributes of
files. ``restrict.py`` runs before the program, restricts itself and executes the program, which
inherits the restriction with all that it starts. Root loses its capabilities: with them it could
write to a disk, or make the device of one.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from corral.system import platform
from corral.system.sandbox.box import Box, Wrapped, program_text

OLDEST = 3
"""The first version that can forbid to empty a file."""
_CREATE_RULESET = 444
_VERSION = 1
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")
"""Devices that programs write to. Not ``shm``: other programs have their memory there."""


@functools.cache
def version() -> int:
    """The version of the kernel's interface; 0 if it has none."""
    if not platform.LINUX:
        return 0
    found: int = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION)
    return max(found, 0)


def is_usable() -> bool:
    """Whether this kernel's Landlock forbids every way to write."""
    return version() >= OLDEST


def wrap(box: Box) -> Wrapped:
    writable = [*box.writable, *(f"/dev/{name}" for name in _DEVICES)]
    found = [os.path.realpath(path) for path in writable if os.path.exists(path)]
    head = (
        sys.executable,
        "-SIc",
        program_text("restrict.py"),
        str(version()),
        str(len(found)),
        *found,
    )
    return Wrapped(argv=head)
