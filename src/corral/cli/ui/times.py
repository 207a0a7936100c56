"""Moments in tables for people."""

from __future__ import annotations

import time


def when(moment: float | None) -> str:
    return "–" if not moment else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
