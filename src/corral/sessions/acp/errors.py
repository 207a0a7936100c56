"""The error of an agent's process that ended, and of a call that the agent answered with one."""

from __future__ import annotations

from corral.agents.spec import TurnEnding
from corral.errors import CorralError, ProcessFailed, StreamBroken
from corral.protocol.acp.methods import failed_turn_end
from corral.protocol.jsonrpc import Failure
from corral.protocol.ndjson import TurnEnd
from corral.sessions.prepared_run import PreparedRun
from corral.system.process.process import Exit


def exit_error(prepared: PreparedRun, ended: Exit, stderr: str) -> CorralError:
    """Why the agent ended by itself: the sandbox, what the agent says about it, or unknown."""
    ending = TurnEnding(
        code=ended.code,
        signal=ended.signal,
        stderr=stderr,
        finish=None,
        answered=False,
        run=prepared.run,
    )
    found = prepared.sandbox_error(ending) or prepared.agent.explain(ending)
    error = found or StreamBroken("the agent ended by itself")
    error.exit_code, error.signal = ended.code, ended.signal
    return error


def call_error(prepared: PreparedRun, failure: Failure | None, stderr: str) -> CorralError:
    """Why a call failed; ``failure`` is the agent's reply."""
    finish = TurnEnd(ok=False, kind="0", message="")
    if failure is not None:
        finish = failed_turn_end(failure.code, failure.message, failure.data)
    ending = TurnEnding(
        code=0, signal=None, stderr=stderr, finish=finish, answered=False, run=prepared.run
    )
    return prepared.agent.explain(ending) or ProcessFailed(finish.message or "the call failed")
