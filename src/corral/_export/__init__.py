"""Runs as documents for other programs and people: each module writes one format. Every format is
written while the log is read, so a log of any size needs little memory."""
