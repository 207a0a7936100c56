"""Warnings of a turn that goes on, or has an answer, although something is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corral.errors import CorralError, StreamBroken
from corral.events import Error
from corral.sessions.prepared_run import PreparedRun
from corral.system import paths

if TYPE_CHECKING:
    from corral.system.sandbox.repository_guard import GitNotice


def warning(code: str, message: str) -> Error:
    return Error(code, message, recoverable=True, level="warning", phase="response")


def not_stored() -> Error:
    text = f"the session is not stored: {paths.sessions()} cannot be written"
    return warning("session_lost", f"{text}: set CORRAL_HOME to another folder")


def session_lost(folder: Path, error: OSError) -> Error:
    text = f"the session cannot be resumed: {_write_error(folder, error)}"
    return warning("session_lost", text)


def transcript_lost(folder: Path, error: OSError) -> Error:
    return warning("transcript_lost", f"the transcript ends here: {_write_error(folder, error)}")


def recording_lost(prepared: PreparedRun, error: OSError) -> Error:
    path, why = prepared.run.record_to, error.strerror or str(error)
    text = f"the recording {path} is not complete: {why}: free some space, and record it again"
    return warning("recording_lost", text)


def diff_lost(error: Exception) -> Error:
    return warning("transcript_lost", f"the diff of the files is not stored: {error}")


def files_unknown(error: CorralError) -> Error:
    return warning("files_unknown", f"{error.message}: {error.hint}")


def not_notified(problem: str) -> Error:
    return warning("notify_failed", f"not notified: {problem}")


def model_differs(requested: str, used: str) -> Error:
    return warning("model_differs", f"asked for {requested}, but {used} answered")


def repository(notice: GitNotice) -> Error:
    return warning(notice.code, notice.message)


def lingered() -> Error:
    return warning("lingered", "the agent did not exit after its answer; it was ended")


def too_deep(cause: RecursionError) -> StreamBroken:
    """The error of JSON that cannot be read."""
    error = StreamBroken(
        "the agent sent JSON that is nested too deeply to be read",
        hint="Run the prompt again; if it happens again, report it to the agent's developers.",
    )
    error.__cause__ = cause
    return error


def _write_error(folder: Path, error: OSError) -> str:
    why = error.strerror or str(error)
    return f"cannot write in {folder}: {why}: free some space, or set CORRAL_HOME to another disk"
