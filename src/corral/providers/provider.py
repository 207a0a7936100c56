"""The interface of a provider."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FsAbility = Literal["local-write", "local-read", "write-only", "none"]


class ProviderError(Exception):
    """No response came. The message says what to do."""


@dataclass
class ProviderResult:
    """What came of a prompt."""

    response: str
    files: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    """A path → None where the provider wrote the file itself, or the text that the caller is
    to write there."""
    denied: tuple[str, ...] = ()
    """What the policy refused: a tool's name, with what it was to do where that is known."""


class ResponseProvider(ABC):
    """Write one: ``get_metadata``, ``validate`` and ``generate``; then
    ``ResponseProviderFactory.register("my-name", MyProvider)``."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        """Keys that the provider does not know are warned of, and have no effect."""
        self.config: dict[str, Any] = dict(config or {})
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
    def get_metadata(cls) -> dict[str, Any]:
        """``name``, ``description``, ``requires_config``, ``config_keys``,
        ``default_connection_timeout``, ``default_response_timeout`` (seconds, or None for none)
        and ``fs_ability``."""

    @abstractmethod
    def validate(self) -> None:
        """Whether ``generate`` could work here. Raises ``ProviderError``; spends nothing."""

    @abstractmethod
    def generate(
        self,
        prompt: str,
        context: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        connection_timeout: float | None = None,
        response_timeout: float | None = None,
    ) -> ProviderResult:
        """Of ``context``, ``prompt_file`` beats the prompt, and ``project_root`` is where the
        work is done. Raises ``ProviderError``."""
