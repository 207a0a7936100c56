"""A provider over any of corral's agents."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from corral.agents.profile import Agent
from corral.errors import CorralError, StartupTimeout, TimedOut
from corral.events import Error, Event, Log
from corral.io import config
from corral.options import APPROVAL_MODES
from corral.providers.provider import FsAbility, ProviderError, ProviderResult, ResponseProvider
from corral.raised import from_event
from corral.result import Result
from corral.sessions.doors import blocking
from corral.sessions.prepare import prepare, the_prompt
from corral.sessions.session import Session

SAMPLES = 3
_MALFORMED = ("malformed_line", "oversized_line")

log = logging.getLogger("corral.providers")

Check = Callable[[str, Any], None]


def a_list(name: str, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name} must be a list, got: {type(value).__name__}")
    for item in cast("list[object]", value):
        if not isinstance(item, str | os.PathLike):
            raise ValueError(f"{name} must hold texts, got: {item!r}")


def a_text(name: str, value: Any) -> None:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} must be a text, got: {type(value).__name__}")


def a_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got: {value!r}")


def positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got: {type(value).__name__}")
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got: {value:g}")


def one_of(*values: str) -> Check:
    def check(name: str, value: Any) -> None:
        if value not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got: {value!r}")

    return check


class AgentProvider(ResponseProvider):
    """Of a subclass: which agent, and which keys its config may have."""

    agent: ClassVar[str]
    name: ClassVar[str]
    description: ClassVar[str]
    requires_config: ClassVar[bool] = False
    connection_timeout: ClassVar[float | None] = 60
    response_timeout: ClassVar[float | None] = 600
    fs_ability: ClassVar[FsAbility] = "local-write"
    checks: ClassVar[Mapping[str, Check]] = {
        "model": a_text,
        "approval_mode": one_of(*APPROVAL_MODES),
        "allowed_tools": a_list,
        "working_dir": a_text,
        "timeout": positive,
    }

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        """Raises ``ValueError`` for a value that cannot be."""
        super().__init__(config)
        self.config = {
            name: value
            for name, value in self.config.items()
            if name in self.checks and value is not None
        }
        for name, value in self.config.items():
            self.checks[name](name, value)

    @classmethod
    def get_metadata(cls) -> dict[str, Any]:
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
            prepare(self.agent, self.options({}))
        except CorralError as error:
            raise ProviderError(self._told(error)) from error

    def generate(
        self,
        prompt: str,
        context: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        connection_timeout: float | None = None,
        response_timeout: float | None = None,
    ) -> ProviderResult:
        options = self.options(context or {})
        for name, option, value in (
            ("connection_timeout", "startup_timeout", connection_timeout),
            ("response_timeout", "timeout", response_timeout),
        ):
            if value is not None:
                positive(name, value)
                options[option] = value
        if "timeout" in options:
            options["idle_timeout"] = options["timeout"]  # an engine knows of no third deadline
        heard = Heard()
        try:
            result = blocking(self._run(prompt, system_prompt, options, heard))
        except CorralError as error:
            raise ProviderError(self._told(error)) from error
        finally:
            heard.tell(self.name)
        if not result.ok:
            cause = from_event(result.error or Error("error", result.status), result)
            raise ProviderError(self._told(cause)) from cause
        written = (file.path for file in result.files if file.kind != "deleted")
        return ProviderResult(result.text, dict.fromkeys(written))

    def options(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """What the config and the context say, as options of a run."""
        chosen = dict(self.config)
        cwd = chosen.pop("working_dir", None) or context.get("project_root")
        options: dict[str, Any] = {
            "startup_timeout": self.connection_timeout,
            "timeout": self.response_timeout,
            "approval_mode": "auto_edit",
            "keep": False,
            **chosen,
            "cwd": cwd,
            "prompt_file": context.get("prompt_file"),
        }
        return {name: value for name, value in options.items() if value is not None}

    async def _run(
        self, prompt: str, system: str | None, options: dict[str, Any], heard: Heard
    ) -> Result:
        if system and "system_prompt" in config.find_agent(self.agent).supports:
            options["system_prompt"] = system
        elif system:
            prompt = f"{system}\n\n{the_prompt(prepare(self.agent, options), prompt)}"
            options.pop("prompt_file", None)
        async with Session(self.agent, options) as session:
            try:
                return await session.prompt(prompt).collect(heard)
            finally:
                heard.stderr = session.stderr

    def _told(self, error: CorralError) -> str:
        """What to tell somebody who reads a log of their engine."""
        title = self.name
        if isinstance(error, TimedOut):
            setting = "connection_timeout" if isinstance(error, StartupTimeout) else "timeout"
            more = "" if setting != "timeout" else " in the config, or response_timeout,"
            return f"{title}: {error.message}; raise {setting}{more} if it needs longer"
        said = str(error)
        if error.exit_code:
            plain = said.removeprefix(f"failed (exit {error.exit_code}): ")
            said = f"failed (exit {error.exit_code}): {plain}"
        stderr = (error.stderr or "").strip()
        if stderr and stderr not in said:
            said += f"\nstderr: {stderr}"
        return f"{title}: {said}"


class Heard:
    """What a run said beside its answer, for the log."""

    def __init__(self) -> None:
        self.stderr = ""
        self._malformed = 0
        self._samples: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Log):
            self._note(event.text)
        elif isinstance(event, Error) and event.code in _MALFORMED:
            self._note(str(event.facts.get("sample", "")))
        elif isinstance(event, Error) and event.recoverable:
            log.warning("%s", event.message)

    def _note(self, sample: str) -> None:
        self._malformed += 1
        if len(self._samples) < SAMPLES:
            self._samples.append(sample)

    def tell(self, name: str) -> None:
        if self._malformed:
            shown = "; ".join(repr(sample) for sample in self._samples)
            log.warning("%s: %d malformed lines, such as %s", name, self._malformed, shown)
        if self.stderr.strip():
            log.debug("%s: stderr: %s", name, self.stderr.strip())


_MORE: dict[str, Check] = {
    "include_directories": a_list,
    "max_budget_usd": positive,
    "max_turns": positive,
    "sandbox": a_flag,
}


def provider_of(record: Agent) -> type[AgentProvider]:
    """The provider over one agent, with the keys that the agent has."""

    class Provider(AgentProvider):
        agent = name = record.name
        description = record.description
        checks: ClassVar[Mapping[str, Check]] = {
            **AgentProvider.checks,
            **{key: check for key, check in _MORE.items() if key in record.supports},
        }

    Provider.__name__ = f"Provider of {record.name}"
    return Provider
