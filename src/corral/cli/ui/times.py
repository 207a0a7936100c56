"""Dates in tables."""

from __future__ import annotations

import time


def format_time(moment: float | None) -> str:
    return "–" if not moment else time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
