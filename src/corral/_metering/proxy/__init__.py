"""A proxy on this machine between one agent and the API of its model."""
