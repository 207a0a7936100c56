"""A small blocking API for workflow engines: a prompt in, a response and files out.

::

    provider = ResponseProviderFactory.create("gemini-cli", {"timeout": 300})
    provider.validate()
    result = provider.generate("Fix the typo in README.md", context={"project_root": "."})

Files may be edited and nothing else is allowed (``approval_mode="auto_edit"``), unless the config
says otherwise. Every agent of corral has a provider under its name. Providers use
``corral.session``, with the same policies and deadlines.
"""

from __future__ import annotations

from corral.providers.agent import AgentProvider
from corral.providers.claude import ClaudeCodeProvider
from corral.providers.factory import ResponseProviderFactory
from corral.providers.gemini import GeminiCliProvider
from corral.providers.manual import ManualProvider
from corral.providers.provider import ProviderError, ProviderResult, ResponseProvider

__all__ = [
    "AIProvider",
    "AgentProvider",
    "ClaudeCodeProvider",
    "GeminiCliProvider",
    "ManualProvider",
    "ProviderError",
    "ProviderFactory",
    "ProviderResult",
    "ResponseProvider",
    "ResponseProviderFactory",
]

AIProvider = ResponseProvider
"""An older name."""
ProviderFactory = ResponseProviderFactory
"""An older name."""

for _kind in (GeminiCliProvider, ClaudeCodeProvider, ManualProvider):
    ResponseProviderFactory.register(_kind.name, _kind)
