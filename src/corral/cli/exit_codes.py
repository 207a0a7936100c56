"""The exit code of a command that ran agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.errors import classes_by_code

if TYPE_CHECKING:
    from corral.events import Done
    from corral.result import Result


def exit_code(end: Result | Done) -> int:
    """The exit code for the end of a run."""
    if end.status == "success":
        return 0
    if end.status == "denied":
        return 5
    kind = classes_by_code().get(end.error.code) if end.error else None
    return kind.cli_exit if kind else 1
