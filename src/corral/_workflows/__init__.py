"""Workflows: durable programs in Python. Public names are in ``corral.workflows``."""
