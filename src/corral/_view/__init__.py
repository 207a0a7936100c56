"""The view: a web page and an HTTP API over stored and running sessions, pipelines and batches."""
