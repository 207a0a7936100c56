"""The attack kit: a scripted model plays an injected agent, and the effects are looked for.

::

    report = await attack_agent("gemini-acp", policies=["edits"])
    assert report.ok, report

The model makes more than a hundred attempts by class (commands that an agent may take for
harmless, evasions of allow rules, paths, links, ``/proc``, ``.git``, settings, web tools,
sub-agents, tool servers, the environment, background processes). Nothing that the agent says
counts: the kit looks at the disk, the processes, the visits to its address, and what was
returned to the model.
"""

from __future__ import annotations

from corral.testing.attack.plan import POLICIES
from corral.testing.attack.report import AttackReport
from corral.testing.attack.run import attack_agent

__all__ = ["POLICIES", "AttackReport", "attack_agent"]
