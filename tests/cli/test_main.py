"""Errors that end a command are messages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest
from support.pipeline_command import CORRAL

import corral
from corral._cli.main import command, report_error


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


@pytest.mark.parametrize("words", ["config path", "models list", "models list --json"])
def test_a_full_disk_behind_stdout_is_one_line(words: str) -> None:
    done = subprocess.run(
        f"{CORRAL} {words} > /dev/full", shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == "corral: the output cannot be written: No space left on device\n"


def test_texts_name_commands_that_exist() -> None:
    context = click.Context(command)
    groups = {
        name: found.list_commands(context)
        for name in command.list_commands(context)
        if isinstance(found := command.get_command(context, name), click.Group)
    }
    unknown = {
        f"corral {group} {name}"
        for path in Path(corral.__file__).parent.rglob("*.py")
        for group, name in re.findall(r"`corral ([a-z]+) ([a-z-]+)", path.read_text())
        if group in groups and name not in groups[group]
    }
    assert unknown == set()
