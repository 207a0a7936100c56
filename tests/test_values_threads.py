"""Several threads may use a type for the first time: msgspec alone would crash the process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading, types
import msgspec
from corral.values import convert_to, decode_as, decoder_for

sys.setswitchinterval(1e-6)
for number in range(100):
    module = types.ModuleType(f"made{number}")
    sys.modules[module.__name__] = module
    fields = "".join(f"    f{i}: 'dict[str, list[int | str | None]]' = {{}}\\n" for i in range(20))
    exec("import msgspec\\nclass Inner(msgspec.Struct):\\n" + fields
         + "class Outer(msgspec.Struct):\\n    inner: 'Inner'\\n    more: 'list[Inner]' = []\\n",
         vars(module))
    data = {"inner": {"f1": {"a": [1]}}, "more": [{"f2": {}}]}
    raw = msgspec.json.encode(data)
    start = threading.Barrier(9)

    def work(way):
        start.wait()
        way()

    ways = [
        lambda: convert_to(data, module.Outer),
        lambda: decode_as(raw, module.Outer),
        lambda: decoder_for(module.Outer).decode(raw),
    ]
    threads = [threading.Thread(target=work, args=(ways[i % 3],)) for i in range(9)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
print("done")
"""


def test_several_threads_may_use_a_type_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
