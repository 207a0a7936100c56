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

from corral.providers.agent import (
    AgentProvider,
    ProviderError,
    ProviderMetadata,
    ProviderResult,
    ResponseProvider,
)
from corral.providers.engine_providers import (
    ClaudeCodeProvider,
    GeminiCliProvider,
    ManualProvider,
    ResponseProviderFactory,
)

__all__ = [
    "AIProvider",
    "AgentProvider",
    "ClaudeCodeProvider",
    "GeminiCliProvider",
    "ManualProvider",
    "ProviderError",
    "ProviderFactory",
    "ProviderMetadata",
    "ProviderResult",
    "ResponseProvider",
    "ResponseProviderFactory",
]

AIProvider = ResponseProvider
"""The name that older workflow engines use."""
ProviderFactory = ResponseProviderFactory
"""The name that older workflow engines use."""
