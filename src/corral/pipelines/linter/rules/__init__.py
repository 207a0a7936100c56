"""The rules of the linter, by topic."""
