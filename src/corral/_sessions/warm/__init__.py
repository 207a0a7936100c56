"""Named sessions whose agent stays warm in a background process between calls of ``corral``."""
