"""Adapters: corral's agents and sandbox as parts of other programs. Each needs its own extra."""
