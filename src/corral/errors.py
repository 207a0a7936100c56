"""The errors: one tree, two trunks.

::

    CorralError
    ├── CallerError                 the caller's fault: mend the call
    │   ├── ConfigError             an option, a file or a value that cannot be
    │   │   ├── PromptError         empty, missing, too long
    │   │   ├── UnknownAgent        no agent of that name
    │   │   ├── UnknownProvider     no vendor of models of that name
    │   │   ├── MissingKey          a vendor's key that the environment does not hold
    │   │   ├── MediaInvalid        an image, audio or document that cannot be sent
    │   │   └── PipelineInvalid     a pipeline that cannot run: its text, or what lint finds
    │   ├── PolicyError
    │   │   └── PolicyNotEnforceable
    │   └── SchemaInvalid           the schema asked for is not one
    └── RemoteError                 the other side's: the agent, the model, the machine
        ├── NotInstalled
        │   └── BrokenInstall
        ├── VersionTooOld
        ├── ResumeLost
        ├── UntrustedFolder
        ├── SandboxFailed           asked for, and not to be had here
        ├── SettingsRejected        the agent would not take its settings
        ├── PolicyNotLoaded         the agent did not take the policy: nothing was run on
        ├── AuthenticationFailed
        ├── AccessDenied
        ├── PermissionRefused       the agent gave up its turn where it got no leave
        ├── ModelNotFound
        ├── InvalidRequest          the model's API refused the request as such
        ├── InputRejected           the agent refused the prompt or an argument
        ├── RateLimited             ``resets_at``, where told
        │   └── QuotaSpent
        ├── ContextLengthExceeded
        ├── ContentRefused
        ├── EmptyAnswer
        ├── NetworkFailed
        ├── ServerFailed
        ├── TimedOut
        │   ├── StartupTimeout
        │   ├── IdleTimeout
        │   └── TotalTimeout
        ├── TurnLimit
        ├── ToolFailed              a tool that the run cannot go on without
        ├── BudgetSpent
        ├── SchemaNotMet
        │   └── NoObject            a model's answer that never fitted its schema
        ├── ReplayMismatch          a recording was asked something else
        ├── StreamBroken            truncated or malformed output
        ├── ProcessFailed           a bad exit that nothing else explains
        │   └── KilledBySignal
        ├── StorageFailed           full disk, unwritable folder
        └── Interrupted             cancelled by us

Every error carries the phase it happened in, whether trying again can help,
a hint that says what to do now, and the facts at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

from corral import events

Phase = Literal[
    "config", "spawn", "handshake", "request", "stream", "tool", "response", "budget", "pipeline"
]

FACTS = ("exit_code", "signal", "stderr", "frame", "argv", "agent_version", "retry_after",
         "resets_at", "provider", "http_status", "provider_code")  # fmt: skip


class CorralError(Exception):
    """The root. ``str(error)`` is the message, with the hint on a line of its own."""

    code: ClassVar[str] = "error"
    """Stable, for events and logs."""
    cli_exit: ClassVar[int] = 1
    """What ``corral`` exits with when this ends it."""
    status: ClassVar[events.Status] = "error"
    """The status of ``done`` when this ends a run."""
    phase: Phase = "stream"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        phase: Phase | None = None,
        retryable: bool | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        stderr: str | None = None,
        frame: str | None = None,
        argv: Sequence[str] = (),
        agent_version: str | None = None,
        retry_after: float | None = None,
        resets_at: float | None = None,
        provider: str | None = None,
        http_status: int | None = None,
        provider_code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if phase is not None:
            self.phase = phase
        if retryable is not None:
            self.retryable = retryable
        self.exit_code = exit_code
        self.signal = signal
        self.stderr = stderr
        """The last lines the program wrote there."""
        self.frame = frame
        """The last raw line it wrote on stdout."""
        self.argv = tuple(argv)
        """As it was started, secrets struck out."""
        self.agent_version = agent_version
        self.retry_after = retry_after
        """Seconds, as the other side told."""
        self.resets_at = resets_at
        """The same as a moment, in seconds since the epoch."""
        self.provider = provider
        """Of models: the vendor that failed, the status of its answer, its own word for it."""
        self.http_status = http_status
        self.provider_code = provider_code
        self.result: Any = None
        """The ``Result`` of the run that this error ended, where there was one."""

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def event(self) -> events.Error:
        """This error as it appears in the stream."""
        facts: dict[str, events.Json] = {}
        for name in FACTS:
            value = getattr(self, name)
            if value is not None and value != ():
                facts[name] = list(value) if name == "argv" else value
        return events.Error(
            code=self.code,
            message=self.message,
            retryable=self.retryable,
            hint=self.hint,
            phase=self.phase,
            facts=facts,
        )


class CallerError(CorralError, ValueError):
    """The caller's fault. Raised before anything is spent, spawned or overwritten."""

    code = "caller"
    cli_exit = 2
    phase: Phase = "config"


class ConfigError(CallerError):
    code = "config"


class PromptError(ConfigError):
    code = "prompt"


class UnknownAgent(ConfigError, KeyError):
    code = "unknown_agent"

    __str__ = CorralError.__str__


class UnknownProvider(ConfigError, KeyError):
    code = "unknown_provider"

    __str__ = CorralError.__str__


class MissingKey(ConfigError):
    code = "missing_key"
    cli_exit = 6


class MediaInvalid(ConfigError):
    code = "media"


class PolicyError(CallerError):
    code = "policy"


class PolicyNotEnforceable(PolicyError):
    code = "policy_not_enforceable"


class SchemaInvalid(CallerError):
    code = "schema_invalid"


class PipelineInvalid(ConfigError):
    code = "pipeline_invalid"
    phase: Phase = "pipeline"


class RemoteError(CorralError):
    code = "remote"


class NotInstalled(RemoteError):
    code = "not_installed"
    cli_exit = 12
    phase: Phase = "spawn"


class BrokenInstall(NotInstalled):
    code = "broken_install"


class VersionTooOld(RemoteError):
    code = "version_too_old"
    cli_exit = 12
    phase: Phase = "spawn"


class ResumeLost(RemoteError):
    code = "resume_lost"
    cli_exit = 4
    phase: Phase = "handshake"


class UntrustedFolder(RemoteError):
    code = "untrusted_folder"
    cli_exit = 5
    phase: Phase = "spawn"


class SandboxFailed(RemoteError):
    code = "sandbox"
    phase: Phase = "spawn"


class SettingsRejected(RemoteError):
    code = "settings_rejected"
    phase: Phase = "handshake"


class PolicyNotLoaded(RemoteError):
    code = "policy_not_loaded"
    cli_exit = 5
    phase: Phase = "handshake"


class AuthenticationFailed(RemoteError):
    code = "authentication"
    cli_exit = 6
    phase: Phase = "request"


class AccessDenied(RemoteError):
    code = "access_denied"
    cli_exit = 6
    phase: Phase = "request"


class PermissionRefused(RemoteError):
    code = "permission_refused"
    cli_exit = 5
    status = "denied"
    phase: Phase = "tool"


class ModelNotFound(RemoteError):
    code = "model_not_found"
    phase: Phase = "request"


class InvalidRequest(RemoteError):
    code = "invalid_request"
    phase: Phase = "request"


class InputRejected(RemoteError):
    code = "input_rejected"
    phase: Phase = "handshake"


class RateLimited(RemoteError):
    code = "rate_limit"
    cli_exit = 7
    phase: Phase = "request"
    retryable = True


class QuotaSpent(RateLimited):
    code = "quota_spent"
    retryable = False


class ContextLengthExceeded(RemoteError):
    code = "context_length"
    phase: Phase = "request"


class ContentRefused(RemoteError):
    code = "content_refused"
    phase: Phase = "response"


class EmptyAnswer(RemoteError):
    code = "empty_answer"
    phase: Phase = "response"
    retryable = True


class NetworkFailed(RemoteError):
    code = "network"
    phase: Phase = "request"
    retryable = True


class ServerFailed(RemoteError):
    code = "server"
    phase: Phase = "request"
    retryable = True


class TimedOut(RemoteError):
    code = "timeout"
    cli_exit = 3
    status = "timeout"
    retryable = True


class StartupTimeout(TimedOut):
    code = "startup_timeout"
    phase: Phase = "handshake"


class IdleTimeout(TimedOut):
    code = "idle_timeout"


class TotalTimeout(TimedOut):
    code = "total_timeout"


class TurnLimit(RemoteError):
    code = "turn_limit"
    cli_exit = 8
    status = "max_turns"
    phase: Phase = "budget"


class ToolFailed(RemoteError):
    code = "tool_failed"
    phase: Phase = "tool"


class BudgetSpent(RemoteError):
    code = "budget_spent"
    cli_exit = 8
    status = "max_budget"
    phase: Phase = "budget"


class SchemaNotMet(RemoteError):
    code = "schema_not_met"
    cli_exit = 9
    phase: Phase = "response"


class NoObject(SchemaNotMet):
    """``frame`` holds the last text."""

    code = "no_object"


class StreamBroken(RemoteError):
    code = "stream_broken"
    cli_exit = 11
    status = "incomplete"
    retryable = True


class ReplayMismatch(RemoteError):
    code = "replay_mismatch"


class ProcessFailed(RemoteError):
    code = "process_failed"


class KilledBySignal(ProcessFailed):
    code = "killed_by_signal"


class StorageFailed(RemoteError):
    code = "storage"
    phase: Phase = "spawn"


class Interrupted(RemoteError):
    code = "interrupted"
    cli_exit = 130
    status = "interrupted"


def from_event(error: events.Error, result: object = None) -> CorralError:
    """The exception behind an ``error`` event, of its own class, with all its facts."""
    kind = by_code().get(error.code, RemoteError)
    facts = {name: value for name, value in error.facts.items() if name in FACTS}
    raised = kind(
        error.message,
        hint=error.hint,
        phase=cast("Phase | None", error.phase),
        retryable=error.retryable,
        **cast("dict[str, Any]", facts),
    )
    raised.result = result
    return raised


def by_code() -> dict[str, type[CorralError]]:
    """Every class of the tree under its code. What other modules add to it is their own: it
    is made of more than an event carries."""
    found: dict[str, type[CorralError]] = {}
    pending: list[type[CorralError]] = [CorralError]
    while pending:
        kind = pending.pop()
        found[kind.code] = kind
        pending.extend(k for k in kind.__subclasses__() if k.__module__ == __name__)
    return found
