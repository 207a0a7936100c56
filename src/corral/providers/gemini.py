"""The provider for the Gemini CLI, with the config keys that workflow engines use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from corral.providers.agent import AgentProvider, Check, check_flag, check_list


class GeminiCliProvider(AgentProvider):
    """The default of ``approval_mode`` is ``auto_edit``: files may be edited.

    ::

        provider = GeminiCliProvider({"timeout": 300})
        provider.validate()
        print(provider.generate("Fix the typo in README.md"))
    """

    agent = name = "gemini-cli"
    description = "Gemini CLI AI agent via subprocess"
    checks: ClassVar[Mapping[str, Check]] = {
        **AgentProvider.checks,
        "sandbox": check_flag,
        "include_directories": check_list,
    }
