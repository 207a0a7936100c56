"""A replayed recording: its output, and its errors for other input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral._system.cassette.format import Head

pytestmark = pytest.mark.whole_program

PATIENCE = 0.3
REPLAY = f"""
import sys
from corral._system.cassette import replay
replay.PATIENCE = {PATIENCE}
replay.main(sys.argv[1:])
"""


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def call(id: int, method: str, **params: Any) -> bytes:
    return line(id=id, method=method, params=params)


def reply(id: int, **result: Any) -> bytes:
    return line(id=id, result=result)


class Cassette:
    """A recording, written by hand: ``i`` went in, ``o`` came out."""

    def __init__(self, path: Path, workspace: Path) -> None:
        self.path = path
        self.workspace = workspace
        self._takes = 0

    def take(
        self, *output: tuple[str, bytes], args: tuple[str, ...] = (), end: bool = True
    ) -> None:
        self._takes += 1
        name = f"take{self._takes}"
        places = {"cwd": "/then/work"}
        head = Head(cassette=1, take=name, run="r", argv=("agent", *args), places=places)
        lines: list[dict[str, Any]] = [
            {"take": name, "dir": {"i": "in", "o": "out", "e": "err"}[dir], "data": data.decode()}
            for dir, data in output
        ]
        if end:
            lines.append({"take": name, "dir": "in", "eof": True})
            lines.append({"take": name, "exit": 0})
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(head) + b"\n")
            for each in lines:
                file.write(json.dumps(each).encode() + b"\n")

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-c", REPLAY, str(self.path), *args]

    def play(self, *lines: bytes, args: tuple[str, ...] = (), run: str | None = None) -> Any:
        """Send all at once."""
        more = {} if run is None else {"CORRAL_CASSETTE_RUN": run}
        return subprocess.run(
            self.command(*args),
            input=b"".join(lines),
            capture_output=True,
            cwd=self.workspace,
            env={**os.environ, **more},
            timeout=30,
        )

    def wait(self, *lines: bytes) -> tuple[int, str]:
        """Send, and then nothing more: its exit code and what it says."""
        with subprocess.Popen(
            self.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=self.workspace,
        ) as process:
            assert process.stdin
            assert process.stderr
            process.stdin.write(b"".join(lines))
            process.stdin.flush()
            return process.wait(30), process.stderr.read().decode()


@pytest.fixture
def recorded(tmp_path: Path, workspace: Path) -> Cassette:
    return Cassette(tmp_path / "tape.ndjson", workspace)


def test_ids_folders_ports_and_clients_may_differ(recorded: Cassette, workspace: Path) -> None:
    reported = {"clientInfo": {"version": "1"}, "cwd": "/then/work", "url": "http://127.0.0.1:1/a"}
    recorded.take(
        ("i", call(7, "new", **reported)),
        ("o", reply(7, file="/then/work/a.txt", like="/then/workshop", list=["in /then/work."])),
    )
    now = {"clientInfo": {"version": "2"}, "cwd": str(workspace), "url": "http://127.0.0.1:22/a"}
    done = recorded.play(call(1, "new", **now))
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["id"] == 1
    assert answer["result"] == {
        "file": f"{workspace}/a.txt",
        "like": "/then/workshop",
        "list": [f"in {workspace}."],
    }


def test_ids_of_the_agent_stay_and_must_be_sent_back(recorded: Cassette) -> None:
    recorded.take(
        ("i", call(1, "go")),
        ("o", call(1, "may_i")),
        ("i", reply(1, yes=True)),
        ("o", reply(1, done=True)),
    )
    done = recorded.play(call(5, "go"), reply(1, yes=True))
    assert [json.loads(each)["id"] for each in done.stdout.splitlines()] == [1, 5]
    assert recorded.play(call(5, "go"), reply(2, yes=True)).returncode == 90


def test_files_are_stored_byte_for_byte(recorded: Cassette) -> None:
    odd = b'{"b" :1,  "a": "\\u00fc", "method":"m"}\n'
    recorded.take(
        ("i", call(1, "go")), ("o", odd), ("o", b"no json\n"), ("e", b"oh\n"), ("o", b"end")
    )
    done = recorded.play(call(1, "go"))
    assert done.stdout == odd + b"no json\nend"
    assert done.stderr == b"oh\n"


def test_parallel_messages_may_arrive_in_another_order(recorded: Cassette) -> None:
    one, two = call(1, "ask", text="one"), call(2, "ask", text="two")
    recorded.take(("i", one), ("o", reply(1, a="one")), ("i", two), ("o", reply(2, a="two")))
    done = recorded.play(call(8, "ask", text="two"), call(9, "ask", text="one"))
    assert done.returncode == 0
    answers = [json.loads(each) for each in done.stdout.splitlines()]
    assert [(each["id"], each["result"]["a"]) for each in answers] == [(9, "one"), (8, "two")]


def test_a_message_that_never_matches_ends_the_replay(recorded: Cassette) -> None:
    one, two = call(1, "ask", text="one"), call(2, "ask", text="two")
    recorded.take(("i", one), ("o", reply(1)), ("i", two), ("o", reply(2)))
    code, output = recorded.wait(two)
    assert code == 90
    assert '-    "text": "one"\n+    "text": "two"' in output


def test_a_message_that_never_arrives_ends_the_replay(recorded: Cassette) -> None:
    recorded.take(
        ("i", call(1, "ask")),
        ("i", line(method="cancel")),
        ("o", reply(1, stopped=True)),
    )
    code, output = recorded.wait(call(1, "ask"))
    assert code == 90
    assert "nothing came" in output
    assert '-  "method": "cancel"' in output


def test_an_early_end_of_the_input_is_an_error(recorded: Cassette) -> None:
    recorded.take(("i", call(1, "one")), ("o", reply(1)), ("i", call(2, "two")), ("o", reply(2)))
    done = recorded.play(call(1, "one"))
    assert done.returncode == 90
    assert b"+(the end of the input)" in done.stderr


def test_more_requests_than_recorded_are_an_error(recorded: Cassette) -> None:
    recorded.take(("i", call(1, "one")), ("o", reply(1)))
    done = recorded.play(call(1, "one"), call(2, "two"))
    assert done.returncode == 90
    assert b"-(the end of the input)" in done.stderr


def test_a_recording_without_an_end_is_an_error(recorded: Cassette) -> None:
    recorded.take(("i", call(1, "one")), ("o", reply(1)), end=False)
    code, output = recorded.wait(call(1, "one"))
    assert code == 90
    assert "not recorded to its end" in output


def test_arguments_and_texts_must_be_as_recorded(recorded: Cassette, workspace: Path) -> None:
    recorded.take(("i", b"do it in /then/work\n"), ("o", b"done\n"), args=("--in", "/then/work/x"))
    same = recorded.play(f"do it in {workspace}\n".encode(), args=("--in", f"{workspace}/x"))
    assert (same.returncode, same.stdout) == (0, b"done\n")
    other = recorded.play(f"do it in {workspace}\n".encode(), args=("--in", f"{workspace}/y"))
    assert other.returncode == 90
    assert b'-    "<cwd>/x"\n+    "<cwd>/y"' in other.stderr


@pytest.mark.deep
def test_processes_of_one_run_replay_the_takes_in_order(recorded: Cassette) -> None:
    recorded.take(("i", b"same\n"), ("o", b"first\n"))
    recorded.take(("i", b"same\n"), ("o", b"second\n"))
    assert [recorded.play(b"same\n", run="a").stdout for _ in range(2)] == [
        b"first\n",
        b"second\n",
    ]
    more = recorded.play(b"same\n", run="a")
    assert more.returncode == 90
    assert b"has this request 2 times" in more.stderr
    assert recorded.play(b"same\n", run="b").stdout == b"first\n"
    assert [recorded.play(b"same\n").stdout for _ in range(2)] == [b"first\n", b"first\n"]


def test_a_program_that_never_read_its_input_does_not_delay_the_end(
    recorded: Cassette,
) -> None:
    recorded.take(("o", b"usage: x\n"), end=False)
    with recorded.path.open("ab") as file:
        file.write(b'{"take": "take1", "exit": 2}\n')
    assert recorded.wait() == (2, "")
