"""The version, for whoever has to name it to another program."""

__version__ = "0.1.0"
