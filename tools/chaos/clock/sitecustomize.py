"""Lets the wall clock of a Python process jump: first on its path, imported when Python starts.

``CHAOS_CLOCK`` is ``MOMENT,SECONDS``: from this moment on ``time.time()`` differs by so many
seconds. The monotonic clock does not jump, as it does not on a real machine.
"""

import os
import time

_given = os.environ.get("CHAOS_CLOCK")
if _given:
    _moment, _seconds = map(float, _given.split(","))
    _time, _time_ns = time.time, time.time_ns

    def _jumped() -> float:
        now = _time()
        return now + _seconds if now >= _moment else now

    def _jumped_ns() -> int:
        now = _time_ns()
        return now + int(_seconds * 1e9) if now >= _moment * 1e9 else now

    time.time, time.time_ns = _jumped, _jumped_ns
