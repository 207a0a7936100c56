"""Landlock, the second choice on Linux: a program can write only where it may.

It needs no privileges and no user namespaces. It covers writing to files only: reading, the network
and the sockets of this machine stay as they are. ``restrict.py`` runs before the program, restricts
itself and executes the program, which inherits the restriction with all that it starts.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from importlib import resources

from corral.system import platform
from corral.system.sandbox.box import Box, Wrapped

_CREATE_RULESET = 444
_VERSION = 1


@functools.cache
def version() -> int:
    """The version of the kernel's interface; 0 if it has none."""
    if not platform.LINUX:
        return 0
    found: int = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION)
    return max(found, 0)


def wrap(box: Box) -> Wrapped:
    writable = [*box.writable, "/dev"]
    source = resources.files("corral.system.sandbox").joinpath("restrict.py").read_text("utf-8")
    found = [os.path.realpath(path) for path in writable if os.path.exists(path)]
    head = (sys.executable, "-SIc", source, str(version()), str(len(found)), *found)
    return Wrapped(argv=head)
