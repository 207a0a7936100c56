"""The hostile-repository kit: a tree with every file that git or an agent obeys.

::

    with hostile_repository(tmp_path) as hostile:
        result = await corral.run("gemini-acp", "Look around", cwd=hostile.cwd)
        assert hostile.effects() == []

Everything in the tree that is executed leaves a canary. ``effects`` names them, with the visits
to the address that the tree's settings lead to. ``added`` names the tools, skills, sub-agents and
variables of the tree that a scripted model was sent, ``documents`` the texts.
"""

from __future__ import annotations

from corral.testing.hostile.repository import HostileRepository, hostile_repository

__all__ = ["HostileRepository", "hostile_repository"]
