"""Models joined to the network: one client, and the doors above it."""
