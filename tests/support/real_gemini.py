"""The real Gemini CLI, as the tests drive it."""

from __future__ import annotations

from typing import ClassVar

from support.real_agents import KEY, RealAgent

from corral.options import RunKwargs

__all__ = ["KEY", "Gemini"]


class Gemini(RealAgent):
    agent = "gemini-cli"
    default_options: ClassVar[RunKwargs] = {"model": "gemini-2.5-flash", "retries": 1}

    def env(self, url: str) -> dict[str, str]:
        return {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": url}
