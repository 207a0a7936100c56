"""Types of the journal."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, types
import msgspec
from corral.durable.payloads import unpack

sys.setswitchinterval(1e-6)
for number in range(100):
    module = types.ModuleType(f"made{number}")
    sys.modules[module.__name__] = module
    fields = "".join(f"    f{i}: 'dict[str, list[int | str | None]]' = {{}}\\n" for i in range(20))
    exec("import msgspec\\nclass Inner(msgspec.Struct):\\n" + fields
         + "class Outer(msgspec.Struct):\\n    inner: 'Inner'\\n    more: 'list[Inner]' = []\\n",
         vars(module))
    start = threading.Barrier(8)

    def work():
        start.wait()
        unpack({"inner": {"f1": {"a": [1]}}, "more": [{"f2": {}}]}, module.Outer)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
print("done")
"""


@pytest.mark.seconds
def test_several_threads_may_use_a_type_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
