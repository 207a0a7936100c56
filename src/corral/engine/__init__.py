"""Executes pipelines: in memory, or with the help of a database (``corral.durable``)."""
