"""The version of corral."""

__version__ = "0.1.0"
