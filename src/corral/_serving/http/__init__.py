"""Runs for services: an HTTP API with a token for each client."""
