"""The scripted model server, the kits and the pytest plugin."""
