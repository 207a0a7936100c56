"""``corral runs export``: every format of sessions and pipeline runs, and what can go wrong."""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from atif import Trajectory
from support.event_samples import SESSION, session_events, stored_pipeline, stored_session
from support.otlp_receiver import OtlpReceiver
from support.pipeline_command import corral
from support.scripted_agent import PROGRAM as SCRIPTED

from corral._pipelines import events as pipelines
from corral._pipelines.events import RunEvent
from corral._pipelines.execution import run_dir
from corral._system import paths
from corral.events import Event, Init, Text, ToolResult, ToolUse, to_json


def exported(*words: str, cwd: Path) -> str:
    done = corral("runs", "export", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def session(workspace: Path) -> str:
    return stored_session(cwd=str(workspace))


def test_a_session_is_written_in_each_format(workspace: Path, session: str) -> None:
    lines = exported(session, cwd=workspace).splitlines()
    assert [json.loads(line)["type"] for line in lines] == [e.type for e in session_events()]
    assert exported("last", "--format", "md", cwd=workspace).startswith("# Fix the parser\n")
    atif = exported("-g", "a COMMA", "--format", "atif", cwd=workspace)
    assert Trajectory.model_validate_json(atif).session_id == session
    spans = exported("last", "--format", "otel", cwd=workspace)
    assert json.loads(spans)["resourceSpans"]
    done = corral("runs", "export", "last", "-o", "run.zip", "--no-doctor", cwd=workspace)
    assert "wrote run.zip\n  events.ndjson: the events of the run\n" in done.stderr
    with zipfile.ZipFile(workspace / "run.zip") as archive:
        assert archive.testzip() is None
    assert (workspace / "run.zip").stat().st_mode & 0o077 == 0
    piped = corral(
        "runs", "export", "last", "--format", "md", "-o", "run.md", "--diff", cwd=workspace
    )
    assert (piped.stdout, piped.stderr) == ("", "wrote run.md\n")


@pytest.mark.deep
def test_a_pipeline_run_is_written_in_each_format(workspace: Path) -> None:
    folder = stored_pipeline(paths.home() / "runs" / "ship-1a2b")
    lines = exported("ship", cwd=workspace).splitlines()
    assert json.loads(lines[0])["type"] == "pipeline_started"
    assert "## build (codergen)" in exported(str(folder), "--format", "md", cwd=workspace)
    trajectory = exported("last", "--format", "atif", cwd=workspace)
    assert Trajectory.model_validate_json(trajectory).agent.name == "corral"
    assert "invoke_workflow ship" in exported("ship", "--format", "otel", cwd=workspace)
    exported("ship", "--format", "bundle", "--no-doctor", cwd=workspace)
    with zipfile.ZipFile(workspace / "ship-1a2b.zip") as archive:
        assert "visits/build.1/prompt.md" in archive.namelist()


CORRAL = str(Path(sys.executable).with_name("corral"))
HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\x90q\x9c\u202e\x7f\b``\x1b[0m`"


def texts_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where texts are in a value of JSON: what contains each of them, and its key."""
    items: Any = value.items() if hasattr(value, "items") else enumerate(value)
    for key, each in list(items):
        if isinstance(each, str):
            yield value, key
        elif isinstance(each, dict | list):
            yield from texts_in(each)


def made_hostile(event: RunEvent) -> RunEvent:
    """The event with terminal sequences in each text that may be any text."""
    data = json.loads(pipelines.to_json(event))
    for container, key in texts_in(data):
        before = container[key]
        container[key] = f"{before}{HOSTILE}"
        try:
            pipelines.from_json(json.dumps(data).encode())
        except msgspec.ValidationError:
            container[key] = before
    return pipelines.from_json(json.dumps(data).encode())


def check_terminal(data: bytes) -> None:
    obeyed = [char for char in data.decode() if not char.isprintable() and char not in "\n\t"]
    assert obeyed == []


@pytest.mark.deep
def test_no_export_has_a_terminal_sequence_of_an_agent(workspace: Path) -> None:
    """A file that corral wrote may be printed at a terminal by other programs."""
    events = [made_hostile(event) for event in session_events()]
    session = stored_session([event for event in events if isinstance(event, Event)])
    folder = stored_pipeline(paths.home() / "runs" / "ship-1a2b")
    for log in folder.rglob(run_dir.EVENTS):
        lines = log.read_bytes().splitlines()
        hostile = [made_hostile(pipelines.from_json(line)) for line in lines]
        log.write_bytes(b"".join(pipelines.to_json(event) + b"\n" for event in hostile))
    for run, formats in ((session, ("ndjson", "md", "atif", "otel", "html")), ("ship", ("md",))):
        for format in formats:
            exported(run, "--format", format, "-o", "run", "--force", cwd=workspace)
            check_terminal((workspace / "run").read_bytes())
    for run in (session, "ship"):
        words = ("--format", "bundle", "-o", "run", "--force", "--no-doctor")
        exported(run, *words, cwd=workspace)
        with zipfile.ZipFile(workspace / "run") as archive:
            for name in archive.namelist():
                check_terminal(archive.read(name))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_export_to_a_full_disk_is_no_success(workspace: Path, unbuffered: str) -> None:
    """The limit of the size of files looks like a full disk: the first part is written."""
    session = stored_session([*session_events(), Text("x" * 200_000)])
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536));"
    code = f"{limited} os.execv(sys.argv[1], sys.argv[1:])"
    with (workspace / "out").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", code, CORRAL, "runs", "export", session, "-o", "-"],
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert done.stderr == "corral: the output cannot be written: File too large\n"


def test_a_file_of_events_is_a_run(workspace: Path, session: str) -> None:
    exported(session, "-o", "events.ndjson", cwd=workspace)
    assert exported("events.ndjson", cwd=workspace) == exported(session, cwd=workspace)
    trajectory = json.loads(exported("./events.ndjson", "--format", "atif", cwd=workspace))
    assert trajectory["session_id"] == SESSION


def test_a_file_is_replaced_only_if_that_is_asked_for(workspace: Path, session: str) -> None:
    (workspace / "run.md").write_text("mine")
    refused = corral("runs", "export", "last", "-o", "run.md", cwd=workspace)
    assert (refused.returncode, "run.md already exists" in refused.stderr) == (2, True)
    assert (workspace / "run.md").read_text() == "mine"
    exported("last", "-o", "run.md", "--force", cwd=workspace)
    assert (workspace / "run.md").read_text().startswith("# Fix")
    assert os.listdir(workspace) == ["run.md"]
    nowhere = corral("runs", "export", "last", "-o", "no/such/folder.md", cwd=workspace)
    assert (nowhere.returncode, "No such file" in nowhere.stderr) == (2, True)


@pytest.mark.deep
@pytest.mark.parametrize("format", ["ndjson", "md", "atif", "otel", "html", "bundle"])
def test_an_export_to_a_file_is_the_one_to_a_pipe(
    workspace: Path, session: str, format: str
) -> None:
    """A new file, one that is replaced, a named pipe and stdout get the same content."""
    words = (CORRAL, "runs", "export", session, "--format", format, "--no-doctor", "--force", "-o")
    (workspace / "old").write_bytes(b"x" * 1_000_000)
    os.mkfifo(workspace / "pipe")
    with subprocess.Popen(["cat", "pipe"], cwd=workspace, stdout=subprocess.PIPE) as reader:
        for name in ("new", "old", "pipe"):
            subprocess.run([*words, name], cwd=workspace, check=True, capture_output=True)
        piped = reader.communicate(timeout=60)[0]
    shown = subprocess.run([*words, "-"], cwd=workspace, check=True, capture_output=True).stdout
    assert (workspace / "pipe").is_fifo()
    contents = [(workspace / "new").read_bytes(), (workspace / "old").read_bytes(), piped, shown]
    if format == "bundle":
        # The entries have the time at which they were written.
        read = [zipfile.ZipFile(io.BytesIO(data)) for data in contents]
        assert "events.ndjson" in read[0].namelist()
        for archive in read:
            assert [archive.read(name) for name in archive.namelist()] == [
                read[0].read(name) for name in read[0].namelist()
            ]
    else:
        assert contents == [contents[0]] * 4
        assert len(contents[0]) > 500


def test_spans_are_sent_to_an_endpoint(workspace: Path, session: str) -> None:
    with OtlpReceiver() as receiver:
        done = corral("runs", "export", "last", "--endpoint", receiver.url, cwd=workspace)
    assert (done.returncode, done.stderr) == (0, "20 spans sent\n")
    assert len(receiver.spans) == 20
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{closed.getsockname()[1]}"
        refused = corral(
            "runs", "export", "last", "--endpoint", gone, cwd=workspace,
            env={"OTEL_EXPORTER_OTLP_TIMEOUT": "1"},
        )  # fmt: skip
    assert refused.returncode == 1
    assert f"the endpoint did not accept the spans: {gone}/v1/traces" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "give the id of a run"),
        (("nothing",), 4, "no run is called 'nothing'"),
        (("last", "--text", "x"), 2, "give the id of a run"),
        (("--text", "nothing like it"), 4, "no run contains"),
        (("last", "--content"), 2, "--content is not for --format ndjson"),
        (("last", "--format", "md", "--endpoint", "http://x"), 2, "--endpoint is not for"),
        (("last", "--endpoint", "collector:4318"), 2, "not the URL of an OTLP endpoint"),
    ],
)
def test_a_mistake_in_the_command_is_explained(
    workspace: Path, session: str, words: tuple[str, ...], code: int, message: str
) -> None:
    done = corral("runs", "export", *words, cwd=workspace)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr


def test_what_was_left_out_is_said(workspace: Path) -> None:
    (workspace / "cut.ndjson").write_bytes(to_json(Init(agent="codex-cli")) + b'\n{"type":"te')
    done = corral("runs", "export", "cut.ndjson", "--format", "atif", cwd=workspace)
    assert "! the log ends in the middle of a line" in done.stderr
    (workspace / "empty.ndjson").touch()
    empty = json.loads(exported("empty.ndjson", "--format", "atif", cwd=workspace))
    assert Trajectory.model_validate(empty).steps == []


PIPELINE = """digraph ship {
    start [shape=Mdiamond]
    command [shape=parallelogram, tool_command="echo $TRACEPARENT > command.txt"]
    build [prompt="init\\ntext Done.\\nresult"]
    done [shape=Msquare]
    start -> command -> build -> done
}"""


@pytest.mark.deep
def test_a_durable_run_sends_its_spans_and_becomes_a_page(workspace: Path) -> None:
    (workspace / "ship.dot").write_text(PIPELINE)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with OtlpReceiver() as receiver:
        done = corral(
            *("pipeline", "run", "ship.dot", "--otel", receiver.url, "--approve", "all"),
            *("--agent", "gemini-cli", "--program", str(SCRIPTED)),
            cwd=workspace,
            env={"GEMINI_API_KEY": "scripted-key-0123456789", "TRACEPARENT": parent},
        )
    assert done.returncode == 0, done.stderr
    found = receiver.tree()
    assert found[""] == ["invoke_workflow ship"]
    assert found["invoke_workflow ship"] == [f"node {each}" for each in NODES]
    assert found["node build"] == ["invoke_agent gemini-cli"]
    assert {span.trace_id.hex() for span in receiver.spans} == {parent.split("-")[1]}
    (command,) = [span for span in receiver.spans if span.name == "node command"]
    assert (workspace / "command.txt").read_text().split("-")[2] == command.span_id.hex()
    written = corral("runs", "export", "last", "-o", "run.html", cwd=workspace)
    assert (written.returncode, written.stderr) == (0, "wrote run.html\n")
    page = (workspace / "run.html").read_text()
    assert "/visits/build.1/items?page=last" in page
    assert '"start":"#/pipelines/ship-' in page


NODES = ("build", "command", "done", "start")
LIMIT = 100 * 1024 * 1024
"""Bytes of address space for the data of the child: less than the log."""


def large_log(path: Path, megabytes: int) -> None:
    """A log of one turn with many tool calls, each with an output of 64 kB."""
    output = "x" * 65_536
    with path.open("wb") as file:
        file.write(to_json(Init(agent="codex-cli", run_id="s.1")) + b"\n")
        for number in range(megabytes * 16):
            name = str(number)
            file.write(to_json(Text("next ", run_id="s.1")) + b"\n")
            file.write(to_json(ToolUse(name, "shell", run_id="s.1")) + b"\n")
            file.write(to_json(ToolResult(name, "success", output=output)) + b"\n")


@pytest.mark.deep
def test_a_log_of_100_megabytes_is_written_with_little_memory(tmp_path: Path) -> None:
    """Data of the child is limited to 100 MB with everything it loads; a log as text alone would
    need more."""
    large_log(tmp_path / "large.ndjson", 100)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))

    program = "from corral._cli.entry import main; main()"
    for format_ in ("md", "atif"):
        done = subprocess.run(
            [sys.executable, "-c", program, "runs", "export", "large.ndjson", "--format", format_],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=limit,
            timeout=110,
        )
        assert done.returncode == 0, (format_, done.stderr.decode()[-500:])
