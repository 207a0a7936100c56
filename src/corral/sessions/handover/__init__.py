"""A conversation that continues in another agent: its neutral form, as text and as messages."""
