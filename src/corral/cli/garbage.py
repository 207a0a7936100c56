"""Garbage collection of the command line: off while a command loads, on while it works."""

from __future__ import annotations

import gc


def enable_gc() -> None:
    """Loading is done, and the run may be long. What is loaded stays: it is not examined again."""
    gc.freeze()
    gc.enable()
