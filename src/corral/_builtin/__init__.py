"""The built-in coding agent. It calls models directly and needs no vendor's program."""
