"""Our own coding agent, on the model layer: it needs no vendor's program."""
