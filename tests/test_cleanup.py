"""A pytest that is killed takes along what it started, whatever became of it since."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.durable_processes import is_alive

PROGRAM = """
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from support import cleanup
cleanup.start_watcher()
DETACHED = '''
import os, subprocess, time
if os.fork():
    os._exit(0)
os.setsid()
bare = subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True)
print(os.getpid(), bare.pid, flush=True)
time.sleep(1000)
'''
subprocess.run([sys.executable, "-c", DETACHED], stdout=open("pids", "w"))
while not open("pids").read().strip():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the mark is read in /proc")
def test_processes_of_a_killed_pytest_are_ended(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    ended = subprocess.run([sys.executable, "-c", PROGRAM, here], cwd=tmp_path, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    detached, bare = map(int, (tmp_path / "pids").read_text().split())
    until = time.monotonic() + 60
    while is_alive(detached) or is_alive(bare):
        assert time.monotonic() < until, "they live on"
        time.sleep(0.05)
