"""The interface of a provider for workflow engines, and the provider that uses one of corral's
agents."""

from __future__ import annotations

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypedDict

from corral._agents.spec import AgentSpec, InProcess
from corral._models import registry
from corral._sessions.fallback import Given, run_in_agents
from corral._sessions.prepare import prepare
from corral._sessions.prepared_run import resolve_prompt
from corral._sessions.session import Session
from corral._system import api_keys, config
from corral._system.paths import sessions
from corral._system.threads import blocking
from corral.errors import CorralError, StartupTimeout, TimedOut, from_event
from corral.events import Done, Error, Event, Init, Log
from corral.options import APPROVAL_MODES, RunOptions
from corral.policy import Action
from corral.result import Result
from corral.values import DeniedCall, is_sequence, number_or_none

SAMPLES = 3
"""Malformed lines that are shown in the log."""
NO_TIMEOUT = 10 * 365 * 86_400.0
"""Used as the deadline in seconds if no timeout is wanted."""
DEFAULT_APPROVAL = "auto_edit"
"""Files may be edited; no commands, no network."""
_MALFORMED = ("malformed_line", "oversized_line")

log: logging.Logger = logging.getLogger("corral.providers")

FsAbility = Literal["local-write", "local-read", "write-only", "none"]


class ProviderMetadata(TypedDict):
    """What an engine shows about a provider. Timeouts are in seconds; None means no timeout.

    ::

        print(provider.get_metadata()["config_keys"])
    """

    name: str
    description: str
    requires_config: bool
    config_keys: list[str]
    default_connection_timeout: float | None
    default_response_timeout: float | None
    fs_ability: FsAbility


class ProviderError(Exception):
    """There is no response. The message says what to do.

    ::

        try:
            provider.validate()
        except corral.providers.ProviderError as error:
            print(error)
    """

    __module__ = "corral.providers"  # tracebacks show the public name


@dataclass
class ProviderResult:
    """The response to a prompt, and the files that were written.

    ::

        result = provider.generate("What does this project do?")
        print(result.response, result.files)
    """

    response: str
    files: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Path → None if the provider wrote the file itself, else the text that the caller has to
    write there."""
    denied: tuple[str, ...] = ()
    """Calls that the policy denied: the name of the tool, with the command or path if it is
    known."""


class ResponseProvider(ABC):
    """To add a provider, implement ``get_metadata``, ``validate`` and ``generate``, and call
    ``ResponseProviderFactory.register("my-name", MyProvider)``.

    ::

        class Echo(ResponseProvider):
            @classmethod
            def get_metadata(cls):
                return {"name": "echo", "config_keys": ()}

            def validate(self):
                pass

            def generate(self, prompt, *args, **options):
                return ProviderResult(prompt)

        ResponseProviderFactory.register("echo", Echo)
    """

    def __init__(self, config: Mapping[str, object] | None = None) -> None:
        """Unknown keys of the config cause a warning and have no effect."""
        self.config: dict[str, object] = dict(config or {})
        about = self.get_metadata()
        unknown = sorted(set(self.config) - set(about["config_keys"]))
        if unknown:
            warnings.warn(
                f"{about['name']}: unknown config keys, ignored: {', '.join(unknown)}",
                UserWarning,
                stacklevel=3,
            )

    @classmethod
    @abstractmethod
    def get_metadata(cls) -> Mapping[str, Any]:
        """The keys of ``ProviderMetadata``. A provider of a user may have fewer keys;
        ``name`` and ``config_keys`` are needed."""

    @abstractmethod
    def validate(self) -> None:
        """Check whether ``generate`` can work here. Spends nothing. Raises ``ProviderError``."""

    @abstractmethod
    def generate(
        self,
        prompt: str,
        context: Mapping[str, object] | None = None,
        system_prompt: str | None = None,
        connection_timeout: float | None = None,
        response_timeout: float | None = None,
    ) -> ProviderResult:
        """Send the prompt and wait for the response. In ``context``, ``prompt_file`` is used
        instead of the prompt, and ``project_root`` is the working directory. Timeouts are in
        seconds. Raises ``ProviderError``."""


def seconds(name: str, value: object) -> float | None:
    """A timeout: None if it is not set. Raises ``ValueError``."""
    number = number_or_none(value)
    if value is not None and number is None:
        raise ValueError(f"{name} must be a number, got: {type(value).__name__}")
    if number is not None and not number >= 0:
        raise ValueError(f"{name} must be >= 0 (0: no timeout), got: {number:g}")
    return number


class AgentProvider(ResponseProvider):
    """A subclass names the agent and the keys of its config. The values are checked as options of a
    run are.

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
    config_keys: ClassVar[tuple[str, ...]] = (
        "model",
        "approval_mode",
        "allowed_tools",
        "working_dir",
        "timeout",
    )

    def __init__(self, config: Mapping[str, object] | None = None) -> None:
        """Raises ``ValueError`` for an invalid value."""
        super().__init__(config)
        self.config: dict[str, object] = {
            name: value
            for name, value in self.config.items()
            if name in self.config_keys and value is not None
        }
        RunOptions.build(self.agent, self.options({}))

    @classmethod
    def get_metadata(cls) -> ProviderMetadata:
        return {
            "name": cls.name,
            "description": cls.description,
            "requires_config": cls.requires_config,
            "config_keys": list(cls.config_keys),
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
            prepared.run,
            prepared.launch_context(sessions() / "SESSION", prepared.links()),
            "x",
            None,
        )

    def generate(
        self,
        prompt: str,
        context: Mapping[str, object] | None = None,
        system_prompt: str | None = None,
        connection_timeout: float | None = None,
        response_timeout: float | None = None,
    ) -> ProviderResult:
        options = self.options(context or {})
        options |= self._timeouts(connection_timeout, response_timeout)
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
        # The agent's tools report the files that it wrote. A change that was only seen on disk is
        # counted if the agent may write by other means and no other run worked there.
        by_disk = self._writes_by_shell() and result.files_complete
        written = [
            file.path
            for file in result.files
            if file.kind != "deleted" and (file.by_tool or by_disk)
        ]
        denied = tuple(_describe_denied(call) for call in result.denied)
        return ProviderResult(result.text, dict.fromkeys(written), denied)

    def _timeouts(self, connection: float | None, response: float | None) -> dict[str, float]:
        """The deadlines of a run. An argument wins over the default of the provider; of
        ``response`` and the config's ``timeout`` the smaller one applies. An argument of 0 means no
        timeout. Raises ``ValueError``."""
        given = number_or_none(self.config.get("timeout"))
        if given is not None and given <= 0:
            advice = "response_timeout=0 means no timeout"
            raise ValueError(f"timeout must be more than 0, got: {given:g} ({advice})")
        configured = seconds("timeout", self.config.get("timeout"))
        connection = seconds("connection_timeout", connection)
        response = seconds("response_timeout", response)
        total = self.response_timeout if configured is None else configured
        if response is not None:
            total = min(response, configured) if response and configured else response
        start = self.connection_timeout if connection is None else connection
        total, start = total or NO_TIMEOUT, start or NO_TIMEOUT
        # An engine has no setting for the time without an event.
        return {"timeout": total, "idle_timeout": total, "startup_timeout": start}

    def _writes_by_shell(self) -> bool:
        policy = RunOptions.build(self.agent, self.options({})).policy
        if policy.allow_tools is None:
            return policy.verdict("shell") == "allow"
        tools = config.find_agent(self.agent).tools
        return any(tools.get(name) in ("execute", "other") for name in policy.allow_tools)

    def options(
        self, context: Mapping[str, object], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, object]:
        """The options of a run from the config and the context. Raises ``ValueError``."""
        chosen = dict(self.config)
        cwd = chosen.pop("working_dir", None) or context.get("project_root")
        options: dict[str, object] = {
            "approval_mode": approval_mode,
            "keep": False,
            **chosen,
            **self._timeouts(None, None),
            "cwd": cwd,
            "prompt_file": context.get("prompt_file"),
        }
        if "sandbox" in chosen:
            if not isinstance(chosen["sandbox"], bool):
                raise ValueError(f"sandbox must be true or false, got: {chosen['sandbox']!r}")
            # The engines mean the agent's own sandbox.
            options["sandbox"] = "agent" if chosen["sandbox"] else "off"
        listed = options.get("allowed_tools")
        preset = APPROVAL_MODES.get(str(options["approval_mode"]))
        if is_sequence(listed) and preset is not None:
            # For the engines the listed tools are further ones; for corral they are all.
            by_mode = (
                name
                for name, kind in config.find_agent(self.agent).tools.items()
                if preset.evaluate(Action(tool=name, kind=kind)).verdict == "allow"
            )
            options["allowed_tools"] = [*dict.fromkeys((*by_mode, *map(str, listed)))]
        return {name: value for name, value in options.items() if value is not None}

    async def _run(
        self, prompt: str, system: str | None, options: dict[str, object], run_log: RunLog
    ) -> Result:
        if system and "system_prompt" in config.find_agent(self.agent).supports:
            options["system_prompt"] = system
        elif system:
            prompt = f"{system}\n\n{resolve_prompt(prepare(self.agent, options), prompt)}"
            options.pop("prompt_file", None)

        async def work(session: Session, prompt: Given) -> Result:
            try:
                return await session.prompt(prompt).collect(run_log)
            finally:
                run_log.stderr = session.stderr

        return await run_in_agents(Session(self.agent, options), prompt, work)

    def _error_message(self, error: CorralError) -> str:
        """The message for the log of a workflow engine."""
        if isinstance(error, TimedOut):
            setting = "connection_timeout" if isinstance(error, StartupTimeout) else "timeout"
            more = "" if setting != "timeout" else " in the config, or response_timeout,"
            return f"{self.name}: {error.message}; raise {setting}{more} if it needs longer"
        message = str(error)
        if error.exit_code:
            failed = f"failed (exit {error.exit_code}): "
            message = failed + (message.partition(failed)[2] or message)
        stderr = (error.stderr or "").strip()
        if stderr and stderr not in message:
            message += f"\nstderr: {stderr}"
        return f"{self.name}: {message}"


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


def _describe_denied(call: DeniedCall) -> str:
    return f"{call.name}: {call.title}" if call.title else call.name


def provider_class(record: AgentSpec) -> type[AgentProvider]:
    """The provider for one agent, with the config keys that the agent supports."""
    more = ("include_directories", "max_cost", "max_turns", "sandbox")

    class NamedAgentProvider(AgentProvider):
        agent = name = record.name
        description = record.description
        config_keys = (*AgentProvider.config_keys, *(key for key in more if key in record.supports))

    NamedAgentProvider.__name__ = f"Provider of {record.name}"
    return NamedAgentProvider
