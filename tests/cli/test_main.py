"""Errors that end a command are messages."""

from __future__ import annotations

import pytest

from corral._cli.main import report_error


def test_a_module_that_cannot_be_loaded_without_descriptors_is_a_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "/lib/resource.so: cannot open shared object file: Too many open files"
    assert report_error(ImportError(text)) == 1
    shown = capsys.readouterr().err
    assert text in shown
    assert "ulimit -n" in shown
    assert "Traceback" not in shown


def test_another_module_that_cannot_be_loaded_is_a_defect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report_error(ImportError("no module named x")) == 1
    assert "ImportError: no module named x" in capsys.readouterr().err
