"""The interface of a provider for workflow engines."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

FsAbility = Literal["local-write", "local-read", "write-only", "none"]


class ProviderMetadata(TypedDict):
    """What an engine shows about a provider. Timeouts are in seconds; None means no timeout."""

    name: str
    description: str
    requires_config: bool
    config_keys: list[str]
    default_connection_timeout: float | None
    default_response_timeout: float | None
    fs_ability: FsAbility


class ProviderError(Exception):
    """There is no response. The message says what to do."""


@dataclass
class ProviderResult:
    """The response to a prompt, and the files that were written."""

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
            def generate(self, prompt, context=None, **options):
                return prompt

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
