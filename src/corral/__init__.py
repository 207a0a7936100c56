"""corral."""
