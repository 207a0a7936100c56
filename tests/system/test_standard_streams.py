"""Standard input and output as a connection, in a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ECHO = """
import asyncio, os, subprocess, sys
from corral._system.standard_streams import claimed

async def main():
    with claimed() as streams:
        print("a library prints")
        subprocess.run(["sh", "-c", "cat; echo a child prints"])
        while data := await streams.read():
            streams.write(data.upper() * int(sys.argv[1]))
        await streams.drain(10)
    print("after")

asyncio.run(main())
"""


def test_only_the_connection_is_on_standard_output() -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [sys.executable, "-c", ECHO, "1"],
        input=b"hello\n", capture_output=True, check=True, env=env,
    )  # fmt: skip
    assert ended.stdout == b"HELLO\nafter\n"
    assert b"a library prints" in ended.stderr
    assert b"a child prints" in ended.stderr


def test_input_and_output_may_be_files(tmp_path: Path) -> None:
    given, written = tmp_path / "in", tmp_path / "out"
    given.write_bytes(b"x" * 200_000)
    with given.open("rb") as stdin, written.open("wb") as stdout:
        subprocess.run([sys.executable, "-c", ECHO, "2"], stdin=stdin, stdout=stdout, check=True)
    assert written.read_bytes() == b"X" * 400_000 + b"after\n"


def test_a_client_that_does_not_read_does_not_block_the_loop() -> None:
    code = ECHO.replace(
        "streams.write(data.upper() * int(sys.argv[1]))",
        'streams.write(data * 1_000_000); os.write(2, b"alive\\n")',
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"ab")
        process.stdin.flush()
        while process.stderr.readline() != b"alive\n":
            pass
        process.stdin.close()
        assert process.stdout.read() == b"ab" * 1_000_000 + b"after\n"
        assert process.wait(30) == 0


def test_a_client_that_closes_its_output_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ECHO, "100000"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"abc")
        process.stdin.flush()
        assert process.stdout.read(10) == b"ABCABCABCA"
        process.stdout.close()
        process.stdin.close()
        assert process.wait(30) in (0, 1, 120)  # the last print fails
