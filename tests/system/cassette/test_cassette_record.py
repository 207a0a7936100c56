"""The recorder as a program between two others, and its file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from corral._system.cassette import format
from corral._system.cassette.format import DataEntry, ProgramEnded, StreamClosed, Take
from corral._system.cassette.record import QUIET
from corral._system.environment import SecretRedactor
from corral.errors import ConfigError

pytestmark = pytest.mark.whole_program

RECORD = "from corral._cli.entry import main; main()"
SECRET = 'a "canary" value/ü'


def command(path: Path, *argv: str) -> list[str]:
    return [sys.executable, "-c", RECORD, "fake", "record", "-o", str(path), "--", *argv]


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-E", "-c", code)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recordings" / "it.ndjson"


def recorded(
    path: Path, argv: Sequence[str], stdin: bytes = b"", **env: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(path, *argv),
        input=stdin,
        capture_output=True,
        env={**os.environ, **env},
        timeout=60,
    )


@contextlib.contextmanager
def running(path: Path, argv: Sequence[str], **env: str) -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        command(path, *argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **env},
        bufsize=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def exchange(process: subprocess.Popen[bytes], data: bytes) -> bytes:
    """What comes back of what is sent, where it comes without more being sent."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(data)
    back = b""
    while len(back) < len(data) and (chunk := process.stdout.read(len(data) - len(back))):
        back += chunk
    return back


def only(path: Path) -> Take:
    (take,) = format.read(path)
    return take


def received(take: Take, dir: str = "out") -> bytes:
    output = [entry for entry in take.entries if isinstance(entry, DataEntry)]
    return b"".join(entry.data for entry in output if entry.dir == dir)


@pytest.mark.parametrize(
    "data",
    [
        b"two\nlines\n",
        b"no end",
        b"",
        bytes(range(256)) * 3 + b"\n\r\n\n",
        b"x" * (3 * format.PIECE) + b"\n" + b"y" * (2 * format.PIECE),
        "ü€😀".encode() * 700_000,
    ],
    ids=["lines", "unfinished", "nothing", "binary", "huge", "huge-without-end"],
)
def test_every_byte_is_passed_on_and_recorded(path: Path, data: bytes) -> None:
    done = recorded(path, ["cat"], data)
    assert (done.returncode, done.stdout, done.stderr) == (0, data, b"")
    take = only(path)
    assert take.input == received(take) == data
    assert StreamClosed() in take.entries
    assert take.entries[-1] == ProgramEnded(0, None)


def test_text_without_a_possible_secret_is_returned_at_once(path: Path) -> None:
    with running(path, ["cat"]) as process:
        assert exchange(process, b"no end of a line") == b"no end of a line"
        assert exchange(process, b" yet") == b" yet"


def test_stderr_and_the_exit_code_are_passed_on(path: Path) -> None:
    done = recorded(path, python("import sys; sys.stderr.write('oh'); sys.exit(41)"))
    assert (done.returncode, done.stderr) == (41, b"oh")
    assert received(only(path), "err") == b"oh"
    assert only(path).entries[-1] == ProgramEnded(41, None)


def test_a_killed_program_is_recorded_as_killed(path: Path) -> None:
    done = recorded(path, python("import os; os.kill(os.getpid(), 9)"))
    assert done.returncode == -signal.SIGKILL
    assert only(path).entries[-1] == ProgramEnded(None, 9)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_reaches_the_program_once(path: Path, name: str) -> None:
    code = (
        "import signal, sys, time; got = []\n"
        f"signal.signal(signal.{name}, lambda *_: got.append(1))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\n"
        "time.sleep(0.2); sys.exit(50 + len(got))"
    )
    with running(path, python(code)) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(getattr(signal, name))
        assert process.wait(30) == 51


SLOW_INPUT = f"""
import time
from corral._system.cassette import record
read = record._read
def slow(fd):
    data = read(fd)
    time.sleep(0.5 if fd == 0 and not data else 0)
    return data
record._read = slow
{RECORD}
"""


def test_input_that_was_closed_before_the_program_was_ended_is_recorded_first(path: Path) -> None:
    """Also if the recorder is slow: a replay ends only after its input was closed."""
    sleeper = python("import time; print(1, flush=True); time.sleep(300)")
    argv = command(path, *sleeper)
    argv[2] = SLOW_INPUT
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        process.stdin.close()
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
    assert only(path).entries[-2:] == [StreamClosed(), ProgramEnded(None, signal.SIGTERM)]


def test_a_killed_recorder_leaves_what_was_recorded(path: Path) -> None:
    with running(path, ["cat"]) as process:
        exchange(process, b"first\n")
        process.kill()
        process.wait(30)
    take = only(path)
    assert take.input == received(take) == b"first\n"
    assert not any(isinstance(entry, ProgramEnded) for entry in take.entries)


def test_an_incomplete_last_line_is_skipped_and_invalid_lines_are_errors(path: Path) -> None:
    recorded(path, ["cat"], b"first\nsecond\n")
    complete = path.read_bytes()
    path.write_bytes(complete[: complete.rindex(b"exit") - 20])
    assert received(only(path)) == b"first\nsecond\n"
    path.write_bytes(b'{"not": "this"}\n' + complete)
    with pytest.raises(ConfigError, match=r"not a recording: .*, line 1"):
        format.read(path)
    path.write_bytes(b'{"cassette":9,"take":"x","run":"x","argv":[]}\n')
    with pytest.raises(ConfigError, match="format 9, and this corral uses format 1: update"):
        format.read(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="is empty"):
        format.read(path)


def test_a_secret_is_passed_on_and_is_not_in_the_file(path: Path) -> None:
    output = f"{SECRET}\n{json.dumps(SECRET)}\n{json.dumps(SECRET, ensure_ascii=False)}\n".encode()
    done = recorded(path, ["sh", "-c", "cat", SECRET], output, MY_API_KEY=SECRET)
    assert done.stdout == output
    assert b"canary" not in path.read_bytes()
    take = only(path)
    assert take.head.secrets == ("MY_API_KEY",)
    assert take.head.argv[-1] == "[MY_API_KEY redacted]"
    assert received(take).count(b"[MY_API_KEY redacted]") == 3


def test_a_secret_that_comes_in_two_pieces_is_not_in_the_file(path: Path) -> None:
    with running(path, ["cat"], MY_TOKEN="0123456789abcdef") as process:
        exchange(process, b"it is 01234567")
        exchange(process, b"89abcdef, it is\n")
    assert b"01234567" not in path.read_bytes()
    assert received(only(path)) == b"it is [MY_TOKEN redacted], it is\n"


@pytest.mark.parametrize("before", range(format.PIECE - 20, format.PIECE + 2, 3))
def test_a_secret_in_a_very_long_line_is_not_in_the_file(path: Path, before: int) -> None:
    secret = "0123456789abcdef"
    head = format.Head(cassette=1, take="t", run="r", argv=("x",))
    writer = format.Writer(path, head, SecretRedactor({"K": secret}))
    complete = b"x" * before + secret.encode() + b"y" * 40
    cut = format.PIECE + 1  # where a piece is written, though the line goes on
    writer.data("out", complete[:cut])
    writer.data("out", complete[cut:])
    writer.ended(0, None)
    assert received(only(path)) == b"x" * before + b"[K redacted]" + b"y" * 40


def test_a_program_that_exits_without_flushing_loses_nothing(path: Path, tmp_path: Path) -> None:
    """As Node does: into a file it writes all, into a pipe as much as there is room for."""
    code = (
        "import os; os.set_blocking(1, False)\n"
        "data = b'x' * (8 << 20) + b'\\n'\n"
        "os._exit(0 if os.write(1, data) == len(data) else 1)"
    )
    out = tmp_path / "out"
    with out.open("wb") as file:
        done = subprocess.run(command(path, *python(code)), stdout=file, timeout=60)
    assert done.returncode == 0
    assert out.stat().st_size == (8 << 20) + 1
    assert len(received(only(path))) == (8 << 20) + 1


def test_background_processes_do_not_delay_the_recorder(path: Path) -> None:
    code = "import subprocess as s; print(s.Popen(['sleep', '300']).pid, flush=True)"
    done = recorded(path, python(code))
    os.kill(int(done.stdout), signal.SIGKILL)
    assert done.returncode == 0
    assert only(path).entries[-1] == ProgramEnded(0, None)


@pytest.mark.deep
def test_a_reader_that_closes_the_output_is_noticed_by_the_program(path: Path) -> None:
    with running(path, ["yes"]) as process:
        assert process.stdout
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(30) in (1, -signal.SIGPIPE)


def test_takes_of_one_run_share_a_file_and_another_run_overwrites_it(path: Path) -> None:
    recorded(path, ["cat"], b"1", CORRAL_CASSETTE_RUN="a")
    recorded(path, ["env"], b"2", CORRAL_CASSETTE_RUN="a")
    assert [take.head.argv[0] for take in format.read(path)] == ["cat", "env"]
    assert b"CORRAL_CASSETTE" not in received(format.read(path)[1])
    recorded(path, ["cat"], b"3", CORRAL_CASSETTE_RUN="b")
    assert [take.input for take in format.read(path)] == [b"3"]


def test_a_recording_that_cannot_be_written_is_an_error_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    trace = tmp_path / "started"
    done = recorded(tmp_path / "file" / "below", ["touch", str(trace)])
    assert done.returncode == 1
    assert b"cannot write the recording" in done.stderr
    assert not trace.exists()


def test_a_missing_program_is_an_error(path: Path) -> None:
    done = recorded(path, ["/no/such/program"])
    assert done.returncode == 12
    assert b"/no/such/program was not found" in done.stderr


def test_a_slow_reader_gets_all_output_of_a_program_that_has_exited(
    path: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    code = (
        "import os, sys; sys.stdout.write('x' * 900_000 + 'end'); sys.stdout.flush()\n"
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))"
    )
    with running(path, python(code)) as process:
        assert process.stdout
        while not (pid.exists() and pid.read_text() and not is_running(int(pid.read_text()))):
            time.sleep(0.01)
        time.sleep(2 * QUIET)  # longer than the recorder waits for others after the exit
        data = process.stdout.read()
    assert len(data) == 900_003
    assert len(received(only(path))) == 900_003


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
