"""Registers a process that runs, and is killed: ``killed_registration.py REGISTRY COUNT``.

KILL comes just before the call number COUNT that opens, links or renames a file of the registry.
"""

import itertools
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from corral._system.process.tree import ProcessRegistry, environment_with

registry = ProcessRegistry(Path(sys.argv[1]))
calls = itertools.count(1)


def count_calls(event: str, args: tuple[object, ...]) -> None:
    is_of_registry = event in ("open", "os.link", "os.rename") and sys.argv[1] in f"{args}"
    if is_of_registry and next(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)


mark = secrets.token_hex(16)
sys.addaudithook(count_calls)
entry = registry.announce(mark, None, "sleep")
child = subprocess.Popen(
    ["sleep", "50"],
    env=environment_with(mark, os.environ),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
registry.add(entry, child.pid)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
