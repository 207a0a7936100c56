"""All errors that corral raises.

::

    CorralError
    ├── CallerError                 the caller must change the call
    │   ├── ConfigError             an invalid option, file or value
    │   │   ├── PromptError         empty, missing, too long
    │   │   ├── UnknownAgent        no agent with that name
    │   │   ├── UnknownProvider     no model vendor with that name
    │   │   ├── MissingKey          a vendor's key is not in the environment
    │   │   ├── MediaInvalid        an image, audio or document that cannot be sent
    │   │   ├── PipelineInvalid     a syntax error in the pipeline, or a lint error
    │   │   └── FormatUnsupported   stored by another version of corral, in another format
    │   ├── PolicyError
    │   │   └── PolicyNotEnforceable
    │   ├── SchemaInvalid           the requested JSON Schema cannot be used
    │   └── NotPermitted            a caller of a server asked for more than is permitted
    └── RemoteError                 the agent, the model or the machine failed
        ├── NotInstalled
        │   └── BrokenInstall
        ├── VersionTooOld
        ├── NotProven               a version that was not tested, and did not pass the probe
        ├── ResumeLost
        ├── UntrustedFolder
        ├── SandboxFailed           the requested sandbox is not available here
        ├── SettingsRejected        the agent rejected its settings
        ├── PolicyNotLoaded         the agent did not load the policy; it was stopped
        ├── AuthenticationFailed
        ├── AccessDenied
        ├── PermissionRefused       the agent stopped because permission was denied
        ├── ModelNotFound
        ├── InvalidRequest          the model's API rejected the request
        ├── InputRejected           the agent rejected the prompt or an argument
        ├── RateLimited             with ``resets_at``, if known
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
        │   └── RepeatedCalls       the model makes the same tool calls over and over
        ├── ToolFailed              a tool failed that the run needs
        ├── StepError               a step of a workflow failed
        ├── BudgetExceeded
        ├── PriceUnknown
        ├── SchemaNotMet
        │   └── NoObject            no answer of the model fitted the schema
        ├── ReplayMismatch          the run differs from its recording
        ├── StreamBroken            truncated or malformed output
        ├── ProcessFailed           an exit code without another explanation
        │   └── KilledBySignal
        ├── StorageFailed           full disk, unwritable folder
        └── Interrupted             cancelled by corral or its caller

Every error has the phase in which it happened, whether a retry can help, a hint that says what to
do, and the known facts.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypedDict, Unpack, get_args

import msgspec

from corral import events
from corral.values import Json, convert_to

__all__ = [
    "AccessDenied", "AuthenticationFailed", "BrokenInstall", "BudgetExceeded", "CallerError",
    "ConfigError", "ContentRefused", "ContextLengthExceeded", "CorralError", "EmptyAnswer",
    "ErrorFacts", "FormatUnsupported", "IdleTimeout", "InputRejected", "Interrupted",
    "InvalidRequest", "KilledBySignal", "MediaInvalid", "MissingKey", "ModelNotFound",
    "NetworkFailed", "NoObject", "NotInstalled", "NotPermitted", "NotProven",
    "PermissionRefused", "Phase", "PipelineInvalid", "PolicyError", "PolicyNotEnforceable",
    "PolicyNotLoaded", "PriceUnknown", "ProcessFailed", "PromptError", "QuotaSpent",
    "RateLimited", "RemoteError", "RepeatedCalls", "ReplayMismatch", "ResumeLost",
    "SandboxFailed", "SchemaInvalid", "SchemaNotMet", "ServerFailed", "SettingsRejected",
    "StartupTimeout", "StepError", "StorageFailed", "StreamBroken", "TimedOut", "ToolFailed",
    "TotalTimeout", "TurnLimit", "UnknownAgent", "UnknownProvider", "UntrustedFolder",
    "VersionTooOld",
]  # fmt: skip

Phase = Literal[
    "config", "spawn", "handshake", "request", "stream", "tool", "response", "budget", "pipeline"
]

PHASES: dict[str, Phase] = {phase: phase for phase in get_args(Phase)}


class ErrorFacts(TypedDict, total=False):
    """What is known about an error. All are keywords and attributes of ``CorralError``.

    ::

        facts: errors.ErrorFacts = {"exit_code": 1, "provider": "gemini"}
        raise errors.ServerFailed("the service is overloaded", **facts)
    """

    exit_code: int | None
    signal: int | None
    stderr: str | None
    """The last lines that the program wrote to stderr."""
    frame: str | None
    """The last raw line that it wrote to stdout."""
    argv: Sequence[str]
    """The command line, with secrets redacted."""
    agent_version: str | None
    retry_after: float | None
    """Seconds to wait, as reported by the other side."""
    resets_at: float | None
    """The same as a point in time, in seconds since the epoch."""
    provider: str | None
    """For models: the vendor."""
    http_status: int | None
    provider_code: str | None
    """For models: the vendor's own error code."""


FACTS = tuple(ErrorFacts.__annotations__)


class CorralError(Exception):
    """The base class. ``str(error)`` is the message, with the hint on its own line.

    ::

        try:
            corral.run_sync("gemini-cli", "Fix the test", check=True)
        except corral.errors.RateLimited as error:
            print(error.retry_after)
        except corral.CorralError as error:
            print(error.code, error.message, error.hint)
    """

    code: ClassVar[str] = "error"
    """A stable identifier, for events and logs."""
    cli_exit: ClassVar[int] = 1
    """The exit code of ``corral`` after this error."""
    status: ClassVar[events.Status] = "error"
    """The status of the ``done`` event after this error."""
    phase: Phase = "stream"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        phase: Phase | None = None,
        retryable: bool | None = None,
        **facts: Unpack[ErrorFacts],
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if phase is not None:
            self.phase = phase
        if retryable is not None:
            self.retryable = retryable
        unknown = facts.keys() - set(FACTS)
        if unknown:
            raise TypeError(f"not facts of an error: {', '.join(sorted(unknown))}")
        self.exit_code: int | None = facts.get("exit_code")
        self.signal: int | None = facts.get("signal")
        self.stderr: str | None = facts.get("stderr")
        self.frame: str | None = facts.get("frame")
        self.argv: tuple[str, ...] = tuple(facts.get("argv", ()))
        self.agent_version: str | None = facts.get("agent_version")
        self.retry_after: float | None = facts.get("retry_after")
        self.resets_at: float | None = facts.get("resets_at")
        self.provider: str | None = facts.get("provider")
        self.http_status: int | None = facts.get("http_status")
        self.provider_code: str | None = facts.get("provider_code")
        self.result: Any = None
        """The result of the run that ended with this error, if there was one: a ``Result``, or the
        ``PipelineOutput`` of a pipeline."""

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def event(self) -> events.Error:
        """The ``error`` event for this error."""
        facts: dict[str, Json] = {}
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
    """The call is wrong. Raised before anything is spent, started or overwritten."""

    code = "caller"
    cli_exit = 2
    phase: Phase = "config"


class ConfigError(CallerError):
    """An option, a file or a value is invalid."""

    code = "config"


class PromptError(ConfigError):
    """The prompt is empty, missing or too long."""

    code = "prompt"


class UnknownAgent(ConfigError, KeyError):
    """There is no agent with this name."""

    code = "unknown_agent"

    def __str__(self) -> str:
        return CorralError.__str__(self)


class UnknownProvider(ConfigError, KeyError):
    """There is no model vendor with this name."""

    code = "unknown_provider"

    def __str__(self) -> str:
        return CorralError.__str__(self)


class MissingKey(ConfigError):
    """The API key of a vendor is not set. ``corral models list`` names the variable of each
    vendor."""

    code = "missing_key"
    cli_exit = 6


class MediaInvalid(ConfigError):
    """An image, audio or document cannot be sent."""

    code = "media"


class PolicyError(CallerError):
    """The policy is invalid."""

    code = "policy"


class PolicyNotEnforceable(PolicyError):
    """The agent cannot enforce the policy. Nothing was started."""

    code = "policy_not_enforceable"


class SchemaInvalid(CallerError):
    """The requested type or JSON Schema cannot be used."""

    code = "schema_invalid"


class PipelineInvalid(ConfigError):
    """The pipeline has a syntax error or a lint error."""

    code = "pipeline_invalid"
    phase: Phase = "pipeline"


class FormatUnsupported(ConfigError):
    """A run, session or recording was stored by another version of corral, in a format that this
    one does not read or continue. Nothing was changed."""

    code = "format_unsupported"


class NotPermitted(CallerError):
    """A caller of a server asked for more than it is permitted. Nothing was started."""

    code = "not_permitted"


class RemoteError(CorralError):
    """The agent, the model or the machine failed."""

    code = "remote"


class NotInstalled(RemoteError):
    """The agent's program was not found. ``corral agents install NAME`` installs the tested
    version; the option ``program`` names another one."""

    code = "not_installed"
    cli_exit = 12
    phase: Phase = "spawn"


class BrokenInstall(NotInstalled):
    """The agent's program is there, but does not start. Start it by itself to see why, or remove
    it and run ``corral agents install NAME``."""

    code = "broken_install"


class VersionTooOld(RemoteError):
    """The agent's program is older than corral supports. ``corral agents install NAME`` installs
    the tested version. The option ``program`` names it if another one comes first on ``PATH``."""

    code = "version_too_old"
    cli_exit = 12
    phase: Phase = "spawn"


class NotProven(RemoteError):
    """The agent's program is of a version that was not tested, and it did not pass the probe, or
    there was none. No real call was made."""

    code = "not_proven"
    cli_exit = 12
    phase: Phase = "spawn"


class ResumeLost(RemoteError):
    """The conversation to continue does not exist any more. ``corral runs list`` has those
    that are stored. Without ``resume`` a new one is started."""

    code = "resume_lost"
    cli_exit = 4
    phase: Phase = "handshake"


class UntrustedFolder(RemoteError):
    """The agent does not trust the folder. It has settings that the agent would obey: read them,
    and set ``inherit="project"`` if you trust them."""

    code = "untrusted_folder"
    cli_exit = 5
    phase: Phase = "spawn"


class SandboxFailed(RemoteError):
    """The requested sandbox is not available here. ``corral agents doctor`` says why, and what
    to do."""

    code = "sandbox"
    phase: Phase = "spawn"


class SettingsRejected(RemoteError):
    """The agent rejected its settings. Its version may not be one that corral was tested with:
    ``corral agents install NAME`` installs that."""

    code = "settings_rejected"
    phase: Phase = "handshake"


class PolicyNotLoaded(RemoteError):
    """The agent did not load the policy. It was stopped."""

    code = "policy_not_loaded"
    cli_exit = 5
    phase: Phase = "handshake"


class AuthenticationFailed(RemoteError):
    """The credentials were refused, or there are none. ``corral agents doctor NAME`` says what the
    agent accepts and what was found. Most agents take an API key from the environment, or use
    their own sign-in."""

    code = "authentication"
    cli_exit = 6
    phase: Phase = "request"


class AccessDenied(RemoteError):
    """The credentials are valid, but not for this model or action. Name another model, or let
    the vendor enable it for your account."""

    code = "access_denied"
    cli_exit = 6
    phase: Phase = "request"


class PermissionRefused(RemoteError):
    """The agent stopped because permission was denied. ``result.denied`` has the calls. Allow
    more with ``policy``, or answer the requests with ``ask``."""

    code = "permission_refused"
    cli_exit = 5
    status: ClassVar[events.Status] = "denied"
    phase: Phase = "tool"


class ModelNotFound(RemoteError):
    """The vendor has no such model, or not for this account. ``corral models list`` has the
    models that corral knows."""

    code = "model_not_found"
    phase: Phase = "request"


class InvalidRequest(RemoteError):
    """The model's API rejected the request. The message is the API's."""

    code = "invalid_request"
    phase: Phase = "request"


class InputRejected(RemoteError):
    """The agent rejected the prompt or an argument. The message is the agent's."""

    code = "input_rejected"
    phase: Phase = "handshake"


class RateLimited(RemoteError):
    """Too many requests. ``retry_after`` and ``resets_at`` say how long to wait, if known."""

    code = "rate_limit"
    cli_exit = 7
    phase: Phase = "request"
    retryable = True


class QuotaSpent(RateLimited):
    """The quota of the account is spent. A retry does not help."""

    code = "quota_spent"
    retryable = False


class ContextLengthExceeded(RemoteError):
    """The conversation is too long for the model. Start a new session, send less, or name a
    model with a larger context window."""

    code = "context_length"
    phase: Phase = "request"


class ContentRefused(RemoteError):
    """The model or its vendor refused the prompt or the answer. Change the prompt, or name
    another model."""

    code = "content_refused"
    phase: Phase = "response"


class EmptyAnswer(RemoteError):
    """The turn ended without an answer. The agent may have worked: ``result.files`` has what it
    changed."""

    code = "empty_answer"
    phase: Phase = "response"
    retryable = True


class NetworkFailed(RemoteError):
    """The server could not be reached, or the connection was lost. Check the network, the proxy
    (``HTTPS_PROXY``) and the agent's base URL."""

    code = "network"
    phase: Phase = "request"
    retryable = True


class ServerFailed(RemoteError):
    """The vendor's server failed or is overloaded. ``retries`` is how often a call is repeated."""

    code = "server"
    phase: Phase = "request"
    retryable = True


class TimedOut(RemoteError):
    """A time limit has passed. The options ``timeout``, ``idle_timeout`` and ``startup_timeout``
    set the limits."""

    code = "timeout"
    cli_exit = 3
    status: ClassVar[events.Status] = "timeout"
    retryable = True


class StartupTimeout(TimedOut):
    """The agent did not start in time. ``startup_timeout`` is the limit. ``corral agents doctor
    NAME`` starts the agent with a scripted model."""

    code = "startup_timeout"
    phase: Phase = "handshake"


class IdleTimeout(TimedOut):
    """Nothing was received for too long. ``idle_timeout`` is the limit."""

    code = "idle_timeout"


class TotalTimeout(TimedOut):
    """The run took longer than ``timeout``. ``resume`` continues the session of a run."""

    code = "total_timeout"


class TurnLimit(RemoteError):
    """The agent reached its limit of turns. ``max_turns`` is the limit; ``resume`` continues the
    session."""

    code = "turn_limit"
    cli_exit = 8
    status: ClassVar[events.Status] = "max_turns"
    phase: Phase = "budget"


class RepeatedCalls(TurnLimit):
    """The model makes the same tool calls over and over. ``max_repeated_calls`` is the limit."""

    code = "repeated_calls"


class ToolFailed(RemoteError):
    """A tool failed that the run needs. The message names it."""

    code = "tool_failed"
    phase: Phase = "tool"


class StepError(RemoteError):
    """A step of a workflow failed. ``step`` is its path, ``failure_class`` the kind of failure:
    ``transient``, ``permanent``, ``timeout``, ``auth``, ``budget`` or empty.

    ::

        try:
            done = await flow.run("gemini-cli", "Fix the test")
        except corral.errors.StepError as error:
            print(error.step, error.failure_class, error.message)
    """

    code = "step_failed"
    phase: Phase = "pipeline"

    def __init__(
        self,
        message: str,
        *,
        step: str = "",
        failure_class: str = "",
        hint: str | None = None,
        phase: Phase | None = None,
        retryable: bool | None = None,
        **facts: Unpack[ErrorFacts],
    ) -> None:
        super().__init__(message, hint=hint, phase=phase, retryable=retryable, **facts)
        self.step = step
        self.failure_class = failure_class


class BudgetExceeded(RemoteError):
    """The limit on tokens or costs is reached. ``resume`` continues the session, with a larger
    budget."""

    code = "budget_exceeded"
    cli_exit = 8
    status: ClassVar[events.Status] = "max_budget"
    phase: Phase = "budget"


class PriceUnknown(RemoteError):
    """The cost is limited, and the price of the model is not known. Add it to ``models.toml``,
    or limit the tokens (``max_total_tokens``)."""

    code = "price_unknown"
    cli_exit = 8
    phase: Phase = "budget"


class SchemaNotMet(RemoteError):
    """No answer fitted the requested type or JSON Schema. ``repairs`` is how often the agent is
    asked to correct it."""

    code = "schema_not_met"
    cli_exit = 9
    phase: Phase = "response"


class NoObject(SchemaNotMet):
    """No answer fitted the schema of ``models.generate_object``. ``frame`` is the last text."""

    code = "no_object"


class StreamBroken(RemoteError):
    """The output ended early or is malformed. What the agent did until then is kept."""

    code = "stream_broken"
    cli_exit = 11
    status: ClassVar[events.Status] = "incomplete"
    retryable = True


class ReplayMismatch(RemoteError):
    """The run differs from its recording. Record it again with ``record_to``."""

    code = "replay_mismatch"


class ProcessFailed(RemoteError):
    """The agent's program failed, and nothing explains why. ``stderr`` and ``exit_code`` are the
    program's; ``corral agents doctor NAME`` tests it."""

    code = "process_failed"


class KilledBySignal(ProcessFailed):
    """The agent's program was killed by a signal. ``signal`` is its number. 9 is often a lack of
    memory."""

    code = "killed_by_signal"


class StorageFailed(RemoteError):
    """A file could not be written: a full disk, or a folder without permission. ``CORRAL_HOME``
    names the folder of sessions and runs."""

    code = "storage"
    phase: Phase = "spawn"


class Interrupted(RemoteError):
    """The run was cancelled by corral or its caller."""

    code = "interrupted"
    cli_exit = 130
    status: ClassVar[events.Status] = "interrupted"


def from_event(error: events.Error, result: object = None) -> CorralError:
    """The exception for an ``error`` event, with its class and all its facts."""
    kind = classes_by_code().get(error.code, RemoteError)
    facts: ErrorFacts = {}
    # Facts that another version wrote may be different: the error itself matters more.
    with contextlib.suppress(msgspec.ValidationError):
        facts = convert_to(error.facts, ErrorFacts)
    raised = kind(
        error.message,
        hint=error.hint,
        phase=PHASES.get(error.phase or ""),
        retryable=error.retryable,
        **facts,
    )
    raised.result = result
    return raised


def classes_by_code() -> dict[str, type[CorralError]]:
    """Every error class of this module by its code. Subclasses in other modules are not included:
    they need more than an event carries."""
    found: dict[str, type[CorralError]] = {}
    pending: list[type[CorralError]] = [CorralError]
    while pending:
        kind = pending.pop()
        found[kind.code] = kind
        pending.extend(k for k in kind.__subclasses__() if k.__module__ == __name__)
    return found


def lacks_descriptors(error: BaseException) -> bool:
    """Whether a file could not be opened, or a module not be loaded, because the process has no
    free descriptor."""
    if isinstance(error, ImportError):  # of a compiled module: it has the text and no number
        return "Too many open files" in str(error)
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def no_descriptor_error(error: BaseException) -> ProcessFailed:
    """What a caller gets instead of ``error``, see ``lacks_descriptors``."""
    return ProcessFailed(
        f"no free descriptor: {error}",
        hint="too many open files: raise `ulimit -n` or run fewer at a time",
        phase="spawn",
        retryable=True,
    )


def no_event_loop_error() -> ConfigError:
    """What a caller gets where the event loop of asyncio does not run, as in trio."""
    return ConfigError(
        "this needs the event loop of asyncio, which does not run here",
        hint="In trio call the blocking function in a thread:"
        " await trio.to_thread.run_sync(lambda: corral.run_sync(agent, prompt)),"
        " and so for each function with _sync in its name.",
    )
