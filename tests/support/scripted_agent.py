"""Runs of a scripted program in place of Gemini CLI, through the public API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Unpack

from corral.run_kwargs import RunKwargs

PROGRAM = Path(__file__).parents[1] / "programs" / "scripted_gemini.py"
GOOD = "init\ntext hello\nresult"


def scripted_options(workspace: Path, **options: Unpack[RunKwargs]) -> RunKwargs:
    """Options that make ``gemini-cli`` run the scripted program."""
    complete: RunKwargs = {
        "cwd": workspace,
        "program": PROGRAM,
        "timeout": 30,
        "grace": 1,
        **options,
        "env": {"GEMINI_API_KEY": "scripted-key-0123456789", **options.get("env", {})},
    }
    return complete


def marked_processes() -> list[str]:
    """Command lines of the processes that a run of this process left: ours by their mark."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if int(pid) != os.getpid() and b"CORRAL_RUN_MARK=" in environ:
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
        except OSError:
            continue
    return found


def child_pids() -> list[int]:
    """Pids of this process's children, zombies included."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children]


def open_descriptors() -> set[str]:
    """What this process has open, by what it points to."""
    found: set[str] = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd}:{os.readlink(f'/proc/self/fd/{fd}')}")
        except OSError:
            continue
    return found
