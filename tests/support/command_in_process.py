"""Run ``corral`` in the process of the test: what starts nothing needs no process of its own, which
would cost more than all the rest."""

from __future__ import annotations

import gc
import os
import shlex
import subprocess
import sys
import tempfile
import warnings

import pytest

from corral._cli.main import main as run_command


def run_in_process(words: str, monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    """What a command does in the current folder, with an empty pipe as stdin."""
    reading, writing = os.pipe()
    os.close(writing)
    monkeypatch.setenv("CORRAL_CONFIG", "")
    monkeypatch.delenv("CORRAL_CONFIG")
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with (
        open(reading) as stdin,
        tempfile.TemporaryFile("w+", encoding="utf-8") as stdout,
        tempfile.TemporaryFile("w+", encoding="utf-8") as stderr,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["corral", *shlex.split(words)])
            for stream in ("stdin", stdin), ("stdout", stdout), ("stderr", stderr):
                patch.setattr(sys, *stream)
            try:
                with pytest.raises(SystemExit) as end:
                    run_command()
            finally:
                gc.enable()  # what it froze stays frozen, with the collected tests
                sys.stdout.flush()
                sys.stderr.flush()
        texts: list[str] = []
        for written in (stdout, stderr):
            written.seek(0)
            texts.append(written.read())
    code = end.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, *texts)
