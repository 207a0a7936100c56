"""Model calls over the network: the client, and the public functions that use it."""
