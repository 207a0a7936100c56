"""Runs as documents for other programs and people. ``run_log`` finds and reads a run; each other
module writes one format. Every format is written while the log is read, so a log of any size needs
little memory."""
