"""Held-out scenarios: checks outside of every workspace, which no agent sees."""
