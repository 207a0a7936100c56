"""Durable and distributed runs of pipelines and batches."""
