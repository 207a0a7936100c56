"""The provider for the Gemini CLI, with the config keys that workflow engines use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from corral.providers.agent import AgentProvider, Check, a_flag, a_list


class GeminiCliProvider(AgentProvider):
    """Files may be edited unless ``approval_mode`` says otherwise; all only where it says so."""

    agent = name = "gemini-cli"
    description = "Gemini CLI AI agent via subprocess"
    checks: ClassVar[Mapping[str, Check]] = {
        **AgentProvider.checks,
        "sandbox": a_flag,
        "include_directories": a_list,
    }
