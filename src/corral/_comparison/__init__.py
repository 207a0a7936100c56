"""Compare agents: the same tasks for each of them, a verdict on every attempt, and what follows.

``plan`` is what is compared, ``api`` runs it as a batch, ``summary`` counts the results. The node
that makes one attempt is ``corral._pipelines.nodes.compare_attempt``.
"""
