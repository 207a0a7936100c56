"""The file of results: no line is lost or written twice, even if its writer is killed."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from corral._engine.batch.results import BatchResult, OutputFile, line_of
from corral._system import paths
from corral.errors import ConfigError, StorageFailed

ONE = BatchResult(id="1", status="success", text="ü\n{", digest="d")
TWO = BatchResult(id="2", status="failed", digest="d")


def test_an_incomplete_last_line_is_removed(workspace: Path) -> None:
    path = workspace / "r.jsonl"
    first, second = line_of(ONE), line_of(TWO)
    for cut in range(len(second)):
        path.write_bytes(first + second[:cut])
        with closing(OutputFile(path)) as out:
            assert out.known == {"1": ONE}
            out.write([TWO])
        assert path.read_bytes() == first + second
    for cut in range(len(first)):
        path.write_bytes(first[:cut])
        with closing(OutputFile(path)) as out:
            assert out.known == {}
        assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "foreign",
    [b"my notes\n", b"my notes", b'{"id": 3}\n', b"\xff\xfe\n", b'{"id":"1","status":"odd"}\n'],
)
def test_a_file_with_other_data_is_refused_and_not_changed(workspace: Path, foreign: bytes) -> None:
    path = workspace / "r.jsonl"
    path.write_bytes(foreign)
    with pytest.raises(ConfigError, match="Choose another file"):
        OutputFile(path)
    assert path.read_bytes() == foreign


def test_the_results_file_has_one_writer_even_after_it_is_replaced(workspace: Path) -> None:
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
def test_a_path_that_cannot_be_written_is_refused(workspace: Path, place: str) -> None:
    with pytest.raises(ConfigError, match="the results cannot be written to"):
        OutputFile(workspace / place)
    # The sandbox would hide it from all later programs.
    assert os.path.abspath(workspace / place) not in paths.announced()


def test_a_full_disk_leaves_the_results_file_unchanged(workspace: Path) -> None:
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
