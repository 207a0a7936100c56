"""The file of results: no line lost, none twice, whatever was killed while it was written."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from corral.durable.batch.output_file import OutputFile
from corral.durable.batch.results import BatchResult, line_of
from corral.errors import ConfigError, StorageFailed

ONE = BatchResult(id="1", status="success", text="ü\n{", digest="d")
TWO = BatchResult(id="2", status="failed", digest="d")


def test_half_a_line_is_cut_off_at_every_byte(workspace: Path) -> None:
    path = workspace / "r.jsonl"
    whole, more = line_of(ONE), line_of(TWO)
    for cut in range(len(more)):
        path.write_bytes(whole + more[:cut])
        with closing(OutputFile(path)) as out:
            assert out.known == {"1": ONE}
            out.write([TWO])
        assert path.read_bytes() == whole + more
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with closing(OutputFile(path)) as out:
            assert out.known == {}
        assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "foreign",
    [b"my notes\n", b"my notes", b'{"id": 3}\n', b"\xff\xfe\n", b'{"id":"1","status":"odd"}\n'],
)
def test_a_file_of_something_else_is_left_alone(workspace: Path, foreign: bytes) -> None:
    path = workspace / "r.jsonl"
    path.write_bytes(foreign)
    with pytest.raises(ConfigError, match="Choose another file"):
        OutputFile(path)
    assert path.read_bytes() == foreign


def test_only_one_process_writes_to_it_also_when_it_is_replaced(workspace: Path) -> None:
    path = workspace / "r.jsonl"
    with closing(OutputFile(path)) as out:
        with pytest.raises(ConfigError, match="another process"):
            OutputFile(path)
        out.write([ONE, TWO])
        out.replace({"1": ONE})
        with pytest.raises(ConfigError, match="another process"):
            OutputFile(path)
        out.write([TWO])
    assert path.read_bytes() == line_of(ONE) + line_of(TWO)
    assert os.listdir(workspace) == ["r.jsonl"]
    OutputFile(path).close()


@pytest.mark.parametrize("place", ["gone/r.jsonl", ".", "/dev/null"])
def test_where_nothing_can_be_written_is_said_at_once(workspace: Path, place: str) -> None:
    with pytest.raises(ConfigError, match="the results cannot be written to"):
        OutputFile(workspace / place)


def test_a_full_disk_leaves_the_file_as_it_was(workspace: Path) -> None:
    import resource
    import signal

    path = workspace / "r.jsonl"
    with closing(OutputFile(path)) as out:
        out.write([ONE])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(line_of(ONE)) + 5, limits[1]))
            with pytest.raises(StorageFailed, match="the same command again"):
                out.write([TWO])
            with pytest.raises(StorageFailed):
                out.replace({"1": ONE, "2": TWO})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        assert path.read_bytes() == line_of(ONE)
        out.write([TWO])
    assert os.listdir(workspace) == ["r.jsonl"]
    with closing(OutputFile(path)) as out:
        assert out.known == {"1": ONE, "2": TWO}
