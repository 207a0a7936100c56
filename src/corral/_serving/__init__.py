"""Runs for callers: other agents, editors and services that reach corral through a protocol."""
