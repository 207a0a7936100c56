"""The traceback of a script that uses corral wrongly shows the lines of the script only."""

from __future__ import annotations

import asyncio
import errno
import inspect
import logging
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

import corral
from corral import errors, models, pipelines
from corral._core.display import short_traceback
from corral._system.threads import short_traceback_async
from corral.testing import ModelServer, say

TESTS = Path(__file__).parents[1]
HEAD = """\
import asyncio, shlex, sys
from pathlib import Path
import corral
from corral import models, pipelines
from support.scripted_agent import scripted_options
scripted = scripted_options(Path.cwd(), keep=False)
acp = shlex.join([sys.executable, "-S", "-E", PROGRAM, "--acp"])
"""
SCRIPTS = {
    "an unknown agent": (
        "corral.run_sync('gemni-cli', 'hi')",
        "UnknownAgent: no agent is called 'gemni-cli'",
        "Did you mean 'gemini-cli'?",
    ),
    "an unknown option": (
        "corral.run_sync('gemini-cli', 'hi', timeuot=3)",
        "ConfigError: unknown option 'timeuot': did you mean 'timeout'?",
        "",
    ),
    "an invalid policy": (
        "corral.Policy(shell='maybe')",
        "PolicyError: shell must be allow, ask or deny, got: 'maybe'",
        "",
    ),
    "a missing key": (
        "models.generate_sync('gemini:gemini-2.5-flash', 'hi')",
        "MissingKey: there is no API key for Gemini",
        "Set GEMINI_API_KEY",
    ),
    "a program that is not installed": (
        "corral.run_sync('gemini-cli', 'hi', program='/nonexistent/gemini')",
        "NotInstalled: program '/nonexistent/gemini' was not found",
        "Give the path of the program",
    ),
    "an output that does not fit": (
        "corral.run_sync('gemini-cli', 'init\\ntext no\\nresult', output=int, repairs=0,"
        " check=True, **scripted)",
        "SchemaNotMet: ",
        "",
    ),
    "a denied call": (
        "corral.run_sync(acp, 'ask-and-give-up', policy='reads', check=True, keep=False)",
        "PermissionRefused: ",
        "",
    ),
    "a timeout": (
        "corral.run_sync('gemini-cli', 'init\\nhang', check=True, **{**scripted, 'timeout': 0.5})",
        "TotalTimeout: timed out after 0.5s in all",
        "Raise timeout",
    ),
    "a server that is away": (
        "models.generate_sync('gemini:x', 'hi', api_key='k', base_url='http://127.0.0.1:9',"
        " retries=0)",
        "NetworkFailed: ",
        "",
    ),
    "a pipeline that is not there": (
        "pipelines.run_sync('nothing.dot')",
        "ConfigError: cannot read the pipeline 'nothing.dot'",
        "A pipeline is a file",
    ),
    "an async script": (
        "async def main():\n"
        "    async with corral.session('gemni') as session:\n"
        "        await session.run('hi')\n"
        "asyncio.run(main())",
        "UnknownAgent: no agent is called 'gemni'",
        "Did you mean 'gemini'?",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.deep_but_first
def test_the_traceback_of_a_script_has_only_its_own_lines(name: str, tmp_path: Path) -> None:
    code, message, hint = SCRIPTS[name]
    script = tmp_path / "script.py"
    program = TESTS / "programs" / "scripted_acp.py"
    script.write_text(HEAD.replace("PROGRAM", repr(str(program))) + code)
    secret = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    env = {name: value for name, value in os.environ.items() if name not in secret}
    env |= {"PYTHONPATH": str(TESTS), "CORRAL_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
    )
    shown = done.stderr
    assert done.returncode == 1
    assert shown.startswith("Traceback (most recent call last):\n"), shown
    files = [Path(each) for each in re.findall(r'^  File "(.+?)", line', shown, re.MULTILINE)]
    assert script in files
    assert {each.parent.name for each in files if each != script} <= {"asyncio"}, shown
    assert "During handling" not in shown
    assert "direct cause" not in shown
    assert f"corral.errors.{message}" in shown
    assert hint in shown


def fail() -> None:
    try:
        raise OSError("disk")
    except OSError as error:
        raise errors.StorageFailed("no space") from error


@short_traceback
def public() -> None:
    fail()


@short_traceback_async
async def public_async() -> None:
    fail()


def test_the_cause_stays_for_debuggers_and_the_log_has_the_complete_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "corral"), pytest.raises(errors.StorageFailed) as caught:
        public()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert isinstance(caught.value.__context__, OSError)
    assert [entry.name for entry in caught.traceback] == [
        test_the_cause_stays_for_debuggers_and_the_log_has_the_complete_traceback.__name__
    ]
    assert "in fail" in caplog.text
    assert "OSError: disk" in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE), "module.py"),
        OSError(errno.ENFILE, os.strerror(errno.ENFILE)),
        ImportError("/lib/resource.so: cannot open shared object file: Too many open files"),
    ],
)
def test_a_missing_descriptor_is_an_error_of_corral_with_a_hint(given: Exception) -> None:
    @short_traceback
    def load() -> None:
        raise given

    with pytest.raises(errors.ProcessFailed, match="Too many open files") as caught:
        load()
    assert "ulimit -n" in str(caught.value)
    assert caught.value.retryable
    assert caught.value.__cause__ is given


def test_other_errors_keep_their_traceback() -> None:
    @short_traceback
    def broken() -> None:
        raise KeyError("a defect")

    with pytest.raises(KeyError) as caught:
        broken()
    assert caught.traceback[-1].name == "broken"


def test_async_functions_stay_async_functions() -> None:
    assert inspect.iscoroutinefunction(public_async)
    assert inspect.iscoroutinefunction(corral.run)
    with pytest.raises(errors.StorageFailed) as caught:
        asyncio.run(public_async())
    assert "fail" not in [entry.name for entry in caught.traceback]


async def test_the_error_of_a_stream_is_short_too() -> None:
    async with ModelServer([say("hello")]) as server:
        stream = corral.models.stream("gemini:x", "hi", api_key="k", base_url=f"{server.url}/wrong")
        with pytest.raises(errors.CorralError) as caught:
            async for _ in stream:
                pass
    assert {str(entry.path) for entry in caught.traceback} == {__file__}


async def _session() -> None:
    async with corral.session("gemini-cli"):
        pass


async def _pool() -> None:
    async with corral.pool("gemini-acp"):
        pass


async def _batch() -> None:
    async with corral.batch(["one"], agent="gemini-cli"):
        pass


async def _stream() -> None:
    async for _ in models.stream("gemini:gemini-2.5-flash", "hi"):
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda: corral.run("gemini-cli", "hi"),
        lambda: corral.batch(["one"], agent="gemini-cli").run_to_end(),
        lambda: corral.compare("one", ["gemini-cli"]).run_to_end(),
        lambda: models.generate("gemini:gemini-2.5-flash", "hi"),
        lambda: models.generate_object("gemini:gemini-2.5-flash", int, "hi"),
        lambda: pipelines.run("digraph { start [shape=Mdiamond] }"),
        corral.runs.list,
        *(_session, _pool, _batch, _stream),
    ],
)
def test_trio_gets_an_error_that_names_the_blocking_functions(
    call: Callable[[], Awaitable[object]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "a-key-that-is-not-used")

    async def main() -> None:
        await call()

    with pytest.raises(errors.ConfigError, match=r"trio\.to_thread\.run_sync"):
        trio.run(main)
    assert not (tmp_path / "corral-home").exists()  # nothing was started
