"""Tables of the command line: they fit a terminal, and other programs get one line per row."""

from __future__ import annotations

import io
import sys

import pytest

from corral._cli.ui.tables import table

HEAD = ("session", "agent", "status", "last", "prompt")
ROW = ("20261118-104529-e54cab", "gemini-acp", "success", "2026-11-18 10:45", "Fix " * 40)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize("columns", [80, 100])
def test_a_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("COLUMNS", str(columns))
    long = (ROW[0], "an-agent-with-a-long-name", "interrupted", ROW[3], "/a/path/" + "x" * 200)
    lines = table(HEAD, [ROW, long]).splitlines()
    assert max(map(len, lines)) <= columns
    assert sum(line.startswith(ROW[0]) for line in lines) == 2  # an id is never cut


def test_piped_rows_are_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "40")
    assert len(table(HEAD, [ROW, ROW]).splitlines()) == 3
