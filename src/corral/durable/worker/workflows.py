"""The workflows that every executor runs, by their names in the journal."""

from __future__ import annotations

from corral.durable.dbos import adapter
from corral.durable.worker import node_workflow, run_workflow


def all_workflows() -> dict[str, tuple[adapter.Workflow, int]]:
    """Each with how often it is taken up again after a crash."""
    return {
        run_workflow.NAME: (run_workflow.run, run_workflow.RECOVERIES),
        node_workflow.NAME: (node_workflow.visit, node_workflow.RECOVERIES),
        node_workflow.BATCH: (node_workflow.batch, node_workflow.RECOVERIES),
    }
