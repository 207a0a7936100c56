"""The attack kit: a scripted model acts as if it was injected, and the effects are checked.

::

    report = await attack_agent("gemini-acp", policies=["edits"])
    assert report.ok, report

The model makes more than a hundred attempts in several groups (commands that an agent may consider
harmless, evasions of allow rules, paths, links, ``/proc``, ``.git``, settings, web tools,
sub-agents, tool servers, the environment, background processes). The agent's own reports do not
count: the kit checks the disk, the processes, the visits to its address, and the tool results that
were sent to the model.
"""

from __future__ import annotations

from corral._testing.attack.plan import POLICIES, SANDBOX_POLICIES
from corral._testing.attack.report import AttackReport
from corral._testing.attack.run import attack_agent

__all__ = ["POLICIES", "SANDBOX_POLICIES", "AttackReport", "attack_agent"]
