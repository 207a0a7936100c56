"""Landlock, with real programs: it limits writing and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corral._system.process.process import Exit, Process, ProcessSpec
from corral._system.sandbox import sandbox
from corral._system.sandbox.box import Box
from corral._system.sandbox.sandbox import Sandbox, Support, describe

pytestmark = pytest.mark.skipif(
    sandbox.landlock_version() < 3,
    reason="this kernel has no Landlock, or one that permits truncation",
)

WRITES = """
import os, stat, sys
outside = sys.argv[1]
attempts = {
    "create": lambda: open(f"{outside}/new", "w"),
    "append": lambda: open(f"{outside}/file", "a"),
    "truncate": lambda: os.truncate(f"{outside}/file", 0),
    "remove": lambda: os.unlink(f"{outside}/file"),
    "rename out": lambda: os.rename("inside", f"{outside}/inside"),
    "rename in": lambda: os.rename(f"{outside}/file", "stolen"),
    "replace": lambda: os.replace("inside", f"{outside}/file"),
    "link out": lambda: os.link("inside", f"{outside}/link"),
    "link in": lambda: os.link(f"{outside}/file", "link"),
    "symbolic link": lambda: os.symlink("x", f"{outside}/symlink"),
    "through a link": lambda: open("leads_out/new", "w"),
    "folder": lambda: os.mkdir(f"{outside}/folder"),
    "remove folder": lambda: os.rmdir(f"{outside}/empty"),
    "pipe": lambda: os.mkfifo(f"{outside}/pipe"),
    "empty": lambda: os.open(f"{outside}/file", os.O_RDONLY | os.O_TRUNC),
    "by its descriptor": lambda: open(f"/proc/self/fd/{os.open(outside + '/file', 0)}", "w"),
    "shared memory": lambda: open("/dev/shm/corral-test-landlock", "w"),
    "a disk": lambda: os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(7, 0)),
    "a device": lambda: os.mknod("device", 0o600 | stat.S_IFCHR, os.makedev(1, 3)),
    "another process": lambda: open(f"/proc/{os.getppid()}/mem", "r+b"),
    "the kernel": lambda: open("/proc/sys/kernel/core_pattern", "w"),
    "by a child": lambda: 1 / (os.system(f"touch {outside}/child 2>/dev/null") == 0),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except (OSError, ZeroDivisionError):
        continue
    print("not refused:", name)
os.rename("inside", "renamed")
os.mkdir("folder")
os.replace("renamed", "folder/renamed")
open("/dev/null", "w").close()
os.close(os.openpty()[1])
for name in os.listdir("/dev"):
    if stat.S_ISBLK(os.stat(f"/dev/{name}").st_mode) and os.access(f"/dev/{name}", os.W_OK):
        try:
            os.open(f"/dev/{name}", os.O_WRONLY)
        except OSError:
            continue
        print("not refused:", name)
if "CapEff:\\t0000000000000000" not in open("/proc/self/status").read():
    print("it has capabilities")
print("done")
"""
SAVE = """
import os, sys
file = sys.argv[1]
def attempt(what, action):
    try:
        action()
        print(what, "works")
    except OSError as error:
        print(what, error.strerror)
def write(): open(file, "a").write("x")
def save():
    open(file + ".new", "w").write("x")
    os.replace(file + ".new", file)
attempt("write", write)
attempt("atomic save", save)
sys.stdin.readline()
attempt("write after a rename outside", write)
"""


def run(command: list[str], folder: Path, *writable: Path) -> subprocess.Popen[str]:
    box = Box(cwd=str(folder), writable=tuple(map(str, writable)))
    argv = [*sandbox.wrap_by_landlock(box).argv, *command]
    return subprocess.Popen(
        argv, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_landlock_limits_writing_by_every_call(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "empty").mkdir(parents=True)
    (outside / "file").write_text("before")
    (workspace / "inside").touch()
    (workspace / "leads_out").symlink_to(outside)
    with run([sys.executable, "-c", WRITES, str(outside)], workspace, workspace) as process:
        output, _ = process.communicate(timeout=60)
    assert output == "done\n"
    assert sorted(os.listdir(outside)) == ["empty", "file"]
    assert (outside / "file").read_text() == "before"


def test_a_writable_file_is_lost_when_it_is_replaced(workspace: Path, tmp_path: Path) -> None:
    """A rule is about the file, not about its name. A folder as the writable place has no such
    limit."""
    file = tmp_path / "login.json"
    file.write_text("old")
    with run([sys.executable, "-uc", SAVE, str(file)], workspace, workspace, file) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "write works\n"
        assert process.stdout.readline() == "atomic save Permission denied\n"
        (tmp_path / "next").write_text("new")
        (tmp_path / "next").replace(file)
        output, _ = process.communicate("go\n", timeout=60)
    assert output == "write after a rename outside Permission denied\n"
    assert file.read_text() == "new"


async def test_a_program_under_landlock_can_clean_up_when_it_is_asked_to_end(
    workspace: Path,
) -> None:
    """It is the root of its own tree, so it gets the signal itself."""
    box = Box(cwd=str(workspace), writable=(str(workspace),))
    made = Sandbox(support=Support(method="landlock"), box=box)
    command = "trap 'echo cleaned > log; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    spec = ProcessSpec(["sh", "-c", command], workspace, dict(os.environ), sandbox=made)
    process = await Process.start(spec)
    assert await process.read() == b"ready\n"
    assert await process.end(30.0) == Exit(3, None)
    assert (workspace / "log").read_text() == "cleaned\n"


def test_it_is_reported_as_writes_only() -> None:
    support = Support(method="landlock", reason="bubblewrap is not installed", hint="Install it.")
    assert not support.is_complete
    text = describe(support)
    assert text.startswith(f"writes only, by Landlock (version {sandbox.landlock_version()})")
    assert text.endswith("bubblewrap is not installed. Install it.")
