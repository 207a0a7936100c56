"""Corral in harbor: an agent, and an environment that needs no container.

::

    harbor run -p tasks -a corral.integrations.harbor:CorralAgent --ak agent=gemini \\
        -m gemini-2.5-flash --env corral.integrations.harbor:SandboxEnvironment
"""

from __future__ import annotations

from corral.integrations.harbor._agent import CorralAgent
from corral.integrations.harbor._environment import SandboxEnvironment

__all__ = ["CorralAgent", "SandboxEnvironment"]
