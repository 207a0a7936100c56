"""Pipelines: graphs of agents, models, commands and people, written as DOT."""
