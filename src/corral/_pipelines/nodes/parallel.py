"""``parallel`` with ``worktree=branch``: merges the files of its branches.

The scheduler runs a parallel node. It visits this handler when the branches are over.
"""

from __future__ import annotations

from corral._pipelines.execution import branch_merge
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.scheduler.outcome import Outcome


async def merge_branches(work: NodeContext) -> Outcome:
    return await branch_merge.merge(work)
