"""Log messages of the command line: levels, files and redaction."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral._system import logs
from corral.errors import ConfigError

SECRET = "sk-0123456789abcdef"


@pytest.fixture(autouse=True)
def _plain_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The logger as it was before."""
    logger = logging.getLogger("corral")
    level, propagate = logger.level, logger.propagate
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    yield
    for handler in list(logger.handlers):
        if type(handler.formatter).__module__ == logs.__name__:  # pytest adds others
            logger.removeHandler(handler)
            handler.close()
    logger.setLevel(level)
    logger.propagate = propagate


def log() -> None:
    logger = logging.getLogger("corral.sessions")
    logger.debug("details")
    logger.info("the key is %s", SECRET)
    logger.warning("a warning")


@pytest.mark.parametrize(
    ("wanted", "lines"), [("debug", 3), ("info", 2), ("WARNING", 1), ("error", 0)]
)
def test_a_level_logs_to_stderr(
    wanted: str, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.follow_variable(wanted)
    log()
    written = capsys.readouterr().err
    assert len(written.splitlines()) == lines
    assert SECRET not in written
    assert ("the key is [OPENAI_API_KEY redacted]" in written) == (lines > 1)


def test_a_file_gets_everything_and_only_its_owner_can_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "corral.log"
    logs.follow_variable(str(file))
    logs.log_to_stderr(logging.WARNING)
    log()
    assert len(file.read_text().splitlines()) == 3
    assert SECRET not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_file_may_have_a_level(tmp_path: Path) -> None:
    logs.follow_variable(f"info:{tmp_path}/corral.log")
    log()
    assert len((tmp_path / "corral.log").read_text().splitlines()) == 2


def test_background_processes_get_the_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORRAL_LOG", "info:corral.log")
    logs.follow_environment()
    assert os.environ["CORRAL_LOG"] == f"info:{tmp_path}/corral.log"
    log()
    assert len((tmp_path / "corral.log").read_text().splitlines()) == 2


def test_two_settings_log_to_stderr_once_with_the_more_detailed_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.follow_variable("debug")
    logs.log_to_stderr(logging.INFO)
    log()
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("debg", "Did you mean debug?"), ("/absent/folder/x.log", "No such file or directory")],
)
def test_a_wrong_value_is_an_error(wanted: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        logs.follow_variable(wanted)
    assert message in str(raised.value)
