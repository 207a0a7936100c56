"""Comparisons of scripted agents, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.scripted_agent import PROGRAM

import corral
from corral._comparison.summary import AttemptRow

FLASH, PRO = "gemini-cli@gemini-2.5-flash", "gemini-cli@gemini-2.5-pro"
"""Two agents. ``ONLY_PRO`` makes a line of the script for one of them."""
ONLY_PRO = "grep -q gemini-2.5-pro /proc/$PPID/cmdline"
WORKS = f"init\nsh if {ONLY_PRO}; then echo fixed > file; fi\ntext done\nresult"
"""A script with which only ``PRO`` does its task."""


def use_scripted_agents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``gemini-cli`` the scripted program, for child processes too."""
    config = folder / "corral.toml"
    config.write_text(f'[agents.gemini-cli]\nprogram = "{PROGRAM}"\n')
    monkeypatch.setenv("CORRAL_CONFIG", str(config))
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")


def compare(task: Any, agents: Any, cwd: Path, **given: Any) -> corral.ComparisonSummary:
    """Run a comparison to its end, in memory."""
    options: dict[str, Any] = {"policy": "all", "durable": False, "cwd": cwd, **given}
    run: Callable[..., corral.ComparisonSummary] = corral.compare_sync
    return run(task, agents, **options)


def by_task(found: corral.ComparisonSummary) -> dict[str, AttemptRow]:
    """The attempts of a comparison of one agent, by task."""
    return {row.task: row for row in found.attempts}
