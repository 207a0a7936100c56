"""Executes pipelines and batches: in memory, or with a database that other processes share."""
