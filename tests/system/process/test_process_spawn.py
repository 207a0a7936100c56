"""Why a program did not start."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from corral import errors
from corral._system import platform
from corral._system.process import process as process_module
from corral._system.process.process import Process, ProcessSpec

LOSE_LIMITS_RIGHT = ("--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource")


def start(
    argv: list[str], cwd: Path, *, stdin: Path | None = None, scratch: Path | None = None
) -> None:
    async def main() -> None:
        process = await Process.start(
            ProcessSpec(
                argv,
                cwd=cwd,
                env=os.environ,
                stdin=stdin,
                stdout="file" if scratch else "pipe",
                scratch=scratch,
            )
        )
        await process.end()

    asyncio.run(main())


def not_executable(folder: Path) -> list[str]:
    (folder / "agent").write_text("#!/bin/sh\n")
    return [str(folder / "agent")]


def no_interpreter(folder: Path) -> list[str]:
    (folder / "agent").write_text("#!/no/such/node\n")
    (folder / "agent").chmod(0o700)
    return [str(folder / "agent")]


def no_format(folder: Path) -> list[str]:
    (folder / "agent").write_bytes(b"\x7fELF and then nothing")
    (folder / "agent").chmod(0o700)
    return [str(folder / "agent")]


FAULTS: list[tuple[Callable[[Path], list[str]], type[errors.CorralError]]] = [
    (lambda _: ["no-such-agent"], errors.NotInstalled),
    (lambda _: ["./no-such-agent"], errors.NotInstalled),
    (not_executable, errors.BrokenInstall),
    (no_interpreter, errors.BrokenInstall),
    (no_format, errors.BrokenInstall),
    (lambda _: ["true", "x" * 3_000_000], errors.PromptError),
    (lambda _: ["true", "a\0b"], errors.PromptError),
]


@pytest.mark.parametrize(("argv", "error"), FAULTS)
def test_a_failed_start_has_a_reason(
    tmp_path: Path, argv: Callable[[Path], list[str]], error: type[errors.CorralError]
) -> None:
    with pytest.raises(errors.CorralError) as caught:
        start(argv(tmp_path), tmp_path)
    assert type(caught.value) is error
    assert caught.value.phase == "spawn"


def test_a_missing_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="does not exist or cannot be entered"):
        start(["true"], tmp_path / "missing")
    with pytest.raises(errors.PromptError, match="cannot read"):
        start(["true"], tmp_path, stdin=tmp_path / "missing")


def test_out_of_descriptors_is_an_error_with_a_hint_and_nothing_is_left(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def hint_with_spare(descriptors: int) -> str | None:
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + descriptors, hard))
        try:
            process = await Process.start(ProcessSpec(["true"], cwd=tmp_path, env=os.environ))
        except errors.ProcessFailed as error:
            return error.hint
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await process.end()
        return None

    async def main() -> list[str | None]:
        before = len(os.listdir("/proc/self/fd"))
        hints = [await hint_with_spare(spare) for spare in range(14)]
        assert len(os.listdir("/proc/self/fd")) == before
        return hints

    hints = asyncio.run(main())
    failed = [hint for hint in hints if hint is not None]
    assert len(failed) > 3
    assert all("ulimit -n" in hint for hint in failed)
    assert hints[-1] is None


def test_a_scratch_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageFailed, match="cannot write in"):
        start(["true"], tmp_path, scratch=tmp_path / "missing")


def bounding_set(status: str) -> int:
    line = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    return int(line.split()[1], 16)


def test_the_capability_that_can_remove_the_stamp_is_dropped_permanently(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The capability to raise limits is missing in many containers, so another one stands for
    it. Without the right to drop any, nothing is dropped and the program starts all the same."""
    net_raw = 1 << 13
    other = tuple(option.replace("sys_resource", "net_raw") for option in LOSE_LIMITS_RIGHT)
    assert other != LOSE_LIMITS_RIGHT
    monkeypatch.setattr(process_module, "_LOSE_LIMITS_RIGHT", other)
    is_root = os.geteuid() == 0
    monkeypatch.setattr(platform, "can_drop_limits_right", lambda: is_root)

    async def status() -> str:
        argv = ["cat", "/proc/self/status"]
        process = await Process.start(ProcessSpec(argv, cwd=tmp_path, env=os.environ))
        out = b""
        while chunk := await process.read():
            out += chunk
        await process.end()
        return out.decode()

    ours = bounding_set(Path("/proc/self/status").read_text())
    theirs = bounding_set(asyncio.run(status()))
    assert theirs == (ours & ~net_raw if is_root else ours)


@pytest.mark.parametrize(
    ("effective", "may"),
    [
        ("000001ffffffffff", True),
        ("000001fffeffffff", False),  # root of a container that cannot raise limits
        ("000001fffffffeff", False),  # it cannot give up what it has
        ("0000000000000000", False),
    ],
)
def test_the_capability_to_raise_limits_is_read_from_the_kernel(
    monkeypatch: pytest.MonkeyPatch, effective: str, may: bool
) -> None:
    status = f"Name:\tpython\nCapEff:\t{effective}\nCapBnd:\t000001ffffffffff\n"

    def read(_: str) -> bytes:
        return status.encode()

    monkeypatch.setattr(platform, "_read", read)
    platform.can_drop_limits_right.cache_clear()
    try:
        assert platform.can_drop_limits_right() is may
    finally:
        platform.can_drop_limits_right.cache_clear()
