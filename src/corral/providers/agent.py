"""A provider that uses one of corral's agents."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeGuard

from corral.agents.spec import AgentSpec, InProcess
from corral.errors import CorralError, StartupTimeout, TimedOut, from_event
from corral.events import Done, Error, Event, Init, Log
from corral.models import registry
from corral.options import APPROVAL_MODES, RunOptions
from corral.policy import Action
from corral.providers.provider import (
    FsAbility,
    ProviderError,
    ProviderMetadata,
    ProviderResult,
    ResponseProvider,
)
from corral.result import Result
from corral.sessions.prepare import prepare
from corral.sessions.prepared_run import resolve_prompt
from corral.sessions.session import Session
from corral.system import api_keys, config
from corral.system.blocking import blocking
from corral.system.paths import sessions
from corral.values import DeniedCall, number_or_none

SAMPLES = 3
"""Malformed lines that are shown in the log."""
NO_TIMEOUT = 10 * 365 * 86_400.0
"""Used as the deadline in seconds if no timeout is wanted."""
DEFAULT_APPROVAL = "auto_edit"
"""Files may be edited; no commands, no network."""
POLICY = ("approval_mode", "allowed_tools", "policy")
"""Options that are part of the policy."""
_MALFORMED = ("malformed_line", "oversized_line")

log = logging.getLogger("corral.providers")

Check = Callable[[str, object], None]
"""Raises ``ValueError`` if the value of a config key is invalid."""


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def check_list(name: str, value: object) -> None:
    if not _is_sequence(value):
        raise ValueError(f"{name} must be a list, got: {type(value).__name__}")
    for item in value:
        if not isinstance(item, str | os.PathLike):
            raise ValueError(f"{name} must be a list of strings, got: {item!r}")


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} must be a string, got: {type(value).__name__}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got: {value!r}")


def check_seconds(name: str, value: object) -> None:
    """A timeout; 0 means none."""
    if not _number(name, value) >= 0:
        raise ValueError(f"{name} must be >= 0 (0: no timeout), got: {value:g}")


def check_positive(name: str, value: object) -> None:
    if not _number(name, value) > 0:
        raise ValueError(f"{name} must be > 0, got: {value:g}")


def _number(name: str, value: object) -> float:
    number = number_or_none(value)
    if number is None:
        raise ValueError(f"{name} must be a number, got: {type(value).__name__}")
    return number


def check_one_of(*values: str) -> Check:
    def check(name: str, value: object) -> None:
        if value not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got: {value!r}")

    return check


class AgentProvider(ResponseProvider):
    """A subclass names the agent, and the keys of its config with their checks.

    ::

        class QwenProvider(AgentProvider):
            agent = "qwen-cli"
            name = "qwen"
            description = "Qwen Code"
    """

    agent: ClassVar[str]
    name: ClassVar[str]
    description: ClassVar[str]
    requires_config: ClassVar[bool] = False
    connection_timeout: ClassVar[float | None] = 60
    response_timeout: ClassVar[float | None] = 600
    fs_ability: ClassVar[FsAbility] = "local-write"
    checks: ClassVar[Mapping[str, Check]] = {
        "model": check_text,
        "approval_mode": check_one_of(*APPROVAL_MODES),
        "allowed_tools": check_list,
        "working_dir": check_text,
        "timeout": check_seconds,
    }

    def __init__(self, config: Mapping[str, object] | None = None) -> None:
        """Raises ``ValueError`` for an invalid value."""
        super().__init__(config)
        self.config = {
            name: value
            for name, value in self.config.items()
            if name in self.checks and value is not None
        }
        for name, value in self.config.items():
            self.checks[name](name, value)

    @classmethod
    def get_metadata(cls) -> ProviderMetadata:
        return {
            "name": cls.name,
            "description": cls.description,
            "requires_config": cls.requires_config,
            "config_keys": list(cls.checks),
            "default_connection_timeout": cls.connection_timeout,
            "default_response_timeout": cls.response_timeout,
            "fs_ability": cls.fs_ability,
        }

    def validate(self) -> None:
        try:
            self._check()
        except CorralError as error:
            raise ProviderError(self._error_message(error)) from error

    def _check(self) -> None:
        """Make every check of a real run: the options, the program, the policy, the credentials.
        Nothing is written or started."""
        prepared = prepare(self.agent, self.options({}))
        if isinstance(prepared.agent.transport, InProcess):
            provider, _ = registry.split_model(prepared.run.model or self.agent)
            api_keys.access(provider, {**os.environ, **prepared.run.env})
            return
        prepared.agent.launch(
            prepared.run, prepared.launch_context(sessions() / "SESSION"), "x", None
        )

    def generate(
        self,
        prompt: str,
        context: Mapping[str, object] | None = None,
        system_prompt: str | None = None,
        connection_timeout: float | None = None,
        response_timeout: float | None = None,
    ) -> ProviderResult:
        options = {
            **self.options(context or {}),
            **self._timeouts(connection_timeout, response_timeout),
        }
        run_log = RunLog(self.name)
        try:
            result = blocking(self._run(prompt, system_prompt, options, run_log))
        except CorralError as error:
            raise ProviderError(self._error_message(error)) from error
        finally:
            run_log.write()
        if not result.ok:
            cause = from_event(result.error or Error("error", result.status), result)
            raise ProviderError(self._error_message(cause)) from cause
        return ProviderResult(result.text, dict.fromkeys(self._written(result)), denied(result))

    def _timeouts(self, connection: float | None, response: float | None) -> dict[str, float]:
        """The deadlines of a run. An argument wins over the default of the provider; of
        ``response`` and the config's ``timeout`` the smaller one applies. 0 means no timeout.
        Raises ``ValueError``."""
        for name, value in (("connection_timeout", connection), ("response_timeout", response)):
            if value is not None:
                check_seconds(name, value)
        configured = number_or_none(self.config.get("timeout"))
        total = self.response_timeout if configured is None else configured
        if response is not None:
            total = min(response, configured) if response and configured else response
        start = self.connection_timeout if connection is None else connection
        total, start = total or NO_TIMEOUT, start or NO_TIMEOUT
        # An engine has no setting for the time without an event.
        return {"timeout": total, "idle_timeout": total, "startup_timeout": start}

    def _written(self, result: Result) -> list[str]:
        """The files that the agent wrote: those that its tools report. A change that was only seen
        on disk counts if the agent may write by other means and no other run worked there."""
        by_disk = self._writes_by_shell() and result.files_complete
        return [
            file.path
            for file in result.files
            if file.kind != "deleted" and (file.by_tool or by_disk)
        ]

    def _writes_by_shell(self) -> bool:
        options = self.options({})
        policy = RunOptions.build(
            self.agent, {key: options[key] for key in POLICY if key in options}
        ).policy
        if policy.allow_tools is None:
            return policy.verdict("shell") == "allow"
        tools = config.find_agent(self.agent).tools
        return any(tools.get(name) in ("execute", "other") for name in policy.allow_tools)

    def options(
        self, context: Mapping[str, object], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, object]:
        """The options of a run from the config and the context."""
        chosen = dict(self.config)
        cwd = chosen.pop("working_dir", None) or context.get("project_root")
        options: dict[str, object] = {
            "startup_timeout": self.connection_timeout,
            "timeout": self.response_timeout,
            "approval_mode": approval_mode,
            "keep": False,
            **chosen,
            "cwd": cwd,
            "prompt_file": context.get("prompt_file"),
        }
        if "sandbox" in chosen:  # the engines mean the agent's own
            options["sandbox"] = "agent" if chosen["sandbox"] else "off"
        listed = options.get("allowed_tools")
        if _is_sequence(listed):
            options["allowed_tools"] = self._allowed(str(options["approval_mode"]), listed)
        return {name: value for name, value in options.items() if value is not None}

    def _allowed(self, mode: str, listed: Sequence[object]) -> list[str]:
        """The tools that the approval mode allows, plus the listed ones."""
        preset = APPROVAL_MODES[mode]
        tools = config.find_agent(self.agent).tools
        by_mode = (
            name
            for name, kind in tools.items()
            if preset.evaluate(Action(tool=name, kind=kind)).verdict == "allow"
        )
        return [*dict.fromkeys((*by_mode, *map(str, listed)))]

    async def _run(
        self, prompt: str, system: str | None, options: dict[str, object], run_log: RunLog
    ) -> Result:
        if system and "system_prompt" in config.find_agent(self.agent).supports:
            options["system_prompt"] = system
        elif system:
            prompt = f"{system}\n\n{resolve_prompt(prepare(self.agent, options), prompt)}"
            options.pop("prompt_file", None)
        async with Session(self.agent, options) as session:
            try:
                return await session.prompt(prompt).collect(run_log)
            finally:
                run_log.stderr = session.stderr

    def _error_message(self, error: CorralError) -> str:
        """The message for the log of a workflow engine."""
        title = self.name
        if isinstance(error, TimedOut):
            setting = "connection_timeout" if isinstance(error, StartupTimeout) else "timeout"
            more = "" if setting != "timeout" else " in the config, or response_timeout,"
            return f"{title}: {error.message}; raise {setting}{more} if it needs longer"
        message = str(error)
        if error.exit_code:
            plain = message.removeprefix(f"failed (exit {error.exit_code}): ")
            message = f"failed (exit {error.exit_code}): {plain}"
        stderr = (error.stderr or "").strip()
        if stderr and stderr not in message:
            message += f"\nstderr: {stderr}"
        return f"{title}: {message}"


class RunLog:
    """Writes the events of a run to the log."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.stderr = ""
        self._malformed = 0
        self._samples: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Init):
            log.info(
                "%s: session %s started, model %s",
                self._name,
                event.session_id or event.run_id,
                event.model or "unknown",
            )
        elif isinstance(event, Done):
            log.info("%s: ended as %s", self._name, event.status)
            for call in event.denied:
                log.warning("%s: denied by the policy: %s", self._name, _describe_denied(call))
        elif isinstance(event, Log):
            self._note(event.text)
        elif isinstance(event, Error) and event.code in _MALFORMED:
            self._note(str(event.facts.get("sample", "")))
        elif isinstance(event, Error) and event.recoverable:
            log.warning("%s", event.message)

    def _note(self, sample: str) -> None:
        self._malformed += 1
        if len(self._samples) < SAMPLES:
            self._samples.append(sample)

    def write(self) -> None:
        name = self._name
        if self._malformed:
            shown = "; ".join(repr(sample) for sample in self._samples)
            log.warning("%s: %d malformed lines, such as %s", name, self._malformed, shown)
        if self.stderr.strip():
            log.debug("%s: stderr: %s", name, self.stderr.strip())


def denied(result: Result) -> tuple[str, ...]:
    """A text for each denied call."""
    return tuple(_describe_denied(call) for call in result.denied)


def _describe_denied(call: DeniedCall) -> str:
    return f"{call.name}: {call.title}" if call.title else call.name


_MORE: dict[str, Check] = {
    "include_directories": check_list,
    "max_cost": check_positive,
    "max_turns": check_positive,
    "sandbox": check_flag,
}


def provider_class(record: AgentSpec) -> type[AgentProvider]:
    """The provider for one agent, with the config keys that the agent supports."""

    class Provider(AgentProvider):
        agent = name = record.name
        description = record.description
        checks: ClassVar[Mapping[str, Check]] = {
            **AgentProvider.checks,
            **{key: check for key, check in _MORE.items() if key in record.supports},
        }

    Provider.__name__ = f"Provider of {record.name}"
    return Provider
