"""Pipelines: from a DOT file to the commands of the scheduler, and how nodes are run."""
