"""A small blocking API for workflow engines: a prompt in, a response and files out.

::

    provider = ResponseProviderFactory.create("gemini-cli", {"timeout": 300})
    provider.validate()
    result = provider.generate("Fix the typo in README.md", context={"project_root": "."})

By default files may be edited and nothing else is allowed (``approval_mode="auto_edit"``). Every
agent of corral has a provider under its name. Providers use
``corral.session``, with the same policies and deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corral._sessions import store
from corral._sessions.prepare import prepare
from corral._sessions.prepared_run import resolve_prompt
from corral._system import config as settings
from corral.events import Event, Log
from corral.providers._agent import (
    DEFAULT_APPROVAL,
    AgentProvider,
    ProviderError,
    ProviderMetadata,
    ProviderResult,
    ResponseProvider,
    RunLog,
    log,
    provider_class,
)
from corral.result import Result
from corral.values import is_sequence

__all__ = [
    "AgentProvider",
    "ClaudeCodeProvider",
    "GeminiCliProvider",
    "ManualProvider",
    "ProviderError",
    "ProviderMetadata",
    "ProviderResult",
    "ResponseProvider",
    "ResponseProviderFactory",
]


class GeminiCliProvider(AgentProvider):
    """The default of ``approval_mode`` is ``auto_edit``: files may be edited.

    ::

        provider = GeminiCliProvider({"timeout": 300})
        provider.validate()
        print(provider.generate("Fix the typo in README.md"))
    """

    agent = name = "gemini-cli"
    description = "Gemini CLI AI agent via subprocess"
    config_keys: ClassVar[tuple[str, ...]] = (
        *AgentProvider.config_keys,
        "sandbox",
        "include_directories",
    )


PERMISSION_MODES = {
    "default": "default",
    "acceptEdits": "auto_edit",
    "bypassPermissions": "yolo",
    "plan": "plan",
}
"""Claude Code's names -> those of corral's approval modes."""


class ClaudeCodeProvider(AgentProvider):
    """The default of ``permission_mode`` is ``acceptEdits``: files may be edited.

    ::

        provider = ClaudeCodeProvider({"timeout": 300})
        provider.validate()
        print(provider.generate("Fix the typo in README.md"))
    """

    agent = "claude-cli"
    name = "claude-code"
    description = "Claude Code AI agent via subprocess"
    config_keys: ClassVar[tuple[str, ...]] = (
        "model",
        "permission_mode",
        "allowed_tools",
        "add_dirs",
        "max_turns",
        "max_budget_usd",
        "max_cost",
        "working_dir",
        "timeout",
    )

    def options(
        self, context: Mapping[str, object], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, object]:
        mode = self.config.get("permission_mode", "acceptEdits")
        if mode not in PERMISSION_MODES:
            names = ", ".join(PERMISSION_MODES)
            raise ValueError(f"permission_mode must be one of {names}, got: {mode!r}")
        options = super().options(context, PERMISSION_MODES[str(mode)])
        options.pop("permission_mode", None)
        if (limit := options.pop("max_budget_usd", None)) is not None:
            if "max_cost" in options:
                raise ValueError("max_budget_usd and max_cost are the same limit: give one of them")
            options["max_cost"] = limit
        if (folders := options.pop("add_dirs", None)) is not None:
            if not is_sequence(folders):
                raise ValueError(f"add_dirs must be a list, got: {type(folders).__name__}")
            options["include_directories"] = folders
        return options


class ManualProvider(AgentProvider):
    """Waits for the answer of a person. If the engine was killed meanwhile and asks again, it gets
    the answer to the same prompt in the same folder.

    ::

        provider = ManualProvider()
        print(provider.generate("Which color?"))
    """

    agent = name = "manual"
    description = "A person, asked through files, an editor or the terminal"
    connection_timeout: ClassVar[float | None] = None
    response_timeout: ClassVar[float | None] = None
    config_keys: ClassVar[tuple[str, ...]] = ("via", "working_dir", "timeout")

    def options(
        self, context: Mapping[str, object], approval_mode: str = DEFAULT_APPROVAL
    ) -> dict[str, object]:
        options = super().options(context, approval_mode)
        del options["approval_mode"]  # a policy cannot be enforced on a person
        return {**options, "keep": True}

    async def _run(
        self, prompt: str, system: str | None, options: dict[str, object], run_log: RunLog
    ) -> Result:
        prepared = prepare(self.agent, options)
        wanted = resolve_prompt(prepared, prompt)
        for record in store.all_sessions():
            here = (record.meta.agent, record.meta.cwd) == (prepared.agent.name, prepared.cwd)
            if here and store.open_prompt(record) == wanted and not store.is_in_use(record):
                options["resume"] = record.meta.id
                break
        return await super()._run(prompt, system, options, HumanRunLog(self.name))

    def _writes_by_shell(self) -> bool:
        return True  # a person may write in any way

    def _check(self) -> None:
        prepare(self.agent, self.options({}))


class HumanRunLog(RunLog):
    """Logs the lines that say where to answer."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Log):
            log.warning("%s", event.text)
        else:
            super().__call__(event)


class ResponseProviderFactory:
    """``create("gemini-cli", {"timeout": 300})``.

    ::

        provider = ResponseProviderFactory.create("gemini-cli", {"timeout": 300})
        print(provider.generate("Fix the typo in README.md", context={"project_root": "."}))
    """

    _registered: ClassVar[dict[str, type[ResponseProvider]]] = {
        kind.name: kind for kind in (GeminiCliProvider, ClaudeCodeProvider, ManualProvider)
    }

    @classmethod
    def register(cls, name: str, provider: type[ResponseProvider]) -> None:
        """Make ``create(name)`` return this provider, also if an agent has that name."""
        cls._registered[name] = provider

    @classmethod
    def is_registered(cls, name: str) -> bool:
        """Whether there is a provider with this name."""
        return cls._kind(name) is not None

    @classmethod
    def get_metadata(cls, name: str) -> Mapping[str, Any]:
        """The metadata of one provider. Raises ``KeyError`` with the known names."""
        return cls._known(name).get_metadata()

    @classmethod
    def get_all_metadata(cls) -> dict[str, Mapping[str, Any]]:
        """The metadata of every provider, by name."""
        return {name: cls.get_metadata(name) for name in cls.list_providers()}

    @classmethod
    def create(cls, name: str, config: Mapping[str, object] | None = None) -> ResponseProvider:
        """Create a provider. Raises ``KeyError`` with the known names, and ``ValueError`` for an
        invalid config."""
        return cls._known(name)(config)

    @classmethod
    def _known(cls, name: str) -> type[ResponseProvider]:
        kind = cls._kind(name)
        if kind is None:
            known = ", ".join(cls.list_providers())
            raise KeyError(f"no provider is called {name!r}; known: {known}")
        return kind

    @classmethod
    def _kind(cls, name: str) -> type[ResponseProvider] | None:
        kind = cls._registered.get(name)
        if kind is not None:
            return kind
        agents = (spec for spec in settings.all_agents() if name in (spec.name, *spec.aliases))
        agent = next(agents, None)
        return None if agent is None else provider_class(agent)

    @classmethod
    def list_providers(cls) -> list[str]:
        """The names of all providers."""
        return sorted({*cls._registered, *(agent.name for agent in settings.all_agents())})
