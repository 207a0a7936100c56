"""``corral workflow new``."""

from __future__ import annotations

from corral._cli.starters import new_command

new = new_command(
    "corral._workflows",
    ".py",
    """Write the workflow NAME to FILE, a Python file to start with.""",
    "Its arguments, and how to run it, are at its beginning: {}. With --simulate nothing is spent.",
)
