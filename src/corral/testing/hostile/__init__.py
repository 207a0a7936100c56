"""The hostile-repository kit: a tree with every file that git or an agent obeys.

::

    with hostile_repository(tmp_path) as hostile:
        result = await corral.run("gemini-acp", "Look around", cwd=hostile.cwd)
        assert hostile.effects() == []

Everything in the tree that is executed leaves a canary, also in corral's sandbox. ``effects`` lists
the canaries and the visits to the address in the tree's settings. ``added`` lists the tools,
skills, sub-agents and variables of the tree that were sent to a scripted model, ``documents`` the
texts.
"""

from __future__ import annotations

from corral.testing.hostile.repository import HostileRepository, hostile_repository

__all__ = ["HostileRepository", "hostile_repository"]
