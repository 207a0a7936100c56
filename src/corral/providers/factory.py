"""Providers by name: registered ones, and one for every agent of corral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corral.providers.agent import provider_class
from corral.providers.provider import ResponseProvider
from corral.system import config as settings


class ResponseProviderFactory:
    """``create("gemini-cli", {"timeout": 300})``.

    ::

        provider = ResponseProviderFactory.create("gemini-cli", {"timeout": 300})
        print(provider.generate("Fix the typo in README.md", context={"project_root": "."}))
    """

    _registered: ClassVar[dict[str, type[ResponseProvider]]] = {}

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
        found = next((a for a in settings.all_agents() if name in (a.name, *a.aliases)), None)
        return None if found is None else provider_class(found)

    @classmethod
    def list_providers(cls) -> list[str]:
        """The names of all providers."""
        return sorted({*cls._registered, *(agent.name for agent in settings.all_agents())})
