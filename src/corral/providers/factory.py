"""Providers by name: those that were registered, and every agent of corral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from corral.io import config as settings
from corral.providers.agent import provider_of
from corral.providers.provider import ResponseProvider


class ResponseProviderFactory:
    """``create("gemini-cli", {"timeout": 300})``."""

    _registered: ClassVar[dict[str, type[ResponseProvider]]] = {}

    @classmethod
    def register(cls, name: str, provider: type[ResponseProvider]) -> None:
        """Have ``create(name)`` make one of these; it wins over an agent of that name."""
        cls._registered[name] = provider

    @classmethod
    def create(cls, name: str, config: Mapping[str, Any] | None = None) -> ResponseProvider:
        """Raises ``KeyError`` with the names there are, and ``ValueError`` for a config that
        cannot be."""
        kind = cls._registered.get(name)
        if kind is None:
            found = next((a for a in settings.every_agent() if name in (a.name, *a.aliases)), None)
            if found is None:
                known = ", ".join(cls.list_providers())
                raise KeyError(f"no provider is called {name!r}; there are: {known}")
            kind = provider_of(found)
        return kind(config)

    @classmethod
    def list_providers(cls) -> list[str]:
        return sorted({*cls._registered, *(agent.name for agent in settings.every_agent())})
