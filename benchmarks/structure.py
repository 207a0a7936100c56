"""How many files a reader has to open: the source files whose functions run in one real run.

    python benchmarks/structure.py [--list]

Prints, for one prompt to an ACP agent and for one durable simulated node, the number of files of
``src/corral`` in which at least one function was called, and how many modules share a file name.
Each is run once before, so code that runs only because a module is imported does not count.
``--list`` names the files.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
import threading
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import CodeType, FrameType

import corral
from corral import pipelines

SOURCE = Path(corral.__file__).parent
PROGRAM = Path(__file__).parent / "programs" / "acp_agent.sh"
PIPELINE = """digraph one {
    start [shape=Mdiamond]
    work [prompt="Do it"]
    done [shape=Msquare]
    start -> work -> done
}"""


class Calls:
    """Collects the files of corral in which a function is called, in any thread."""

    def __init__(self) -> None:
        self._called: set[CodeType] = set()

    def __enter__(self) -> Calls:
        threading.setprofile(self._on_call)
        sys.setprofile(self._on_call)
        return self

    def __exit__(self, *_exception: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _on_call(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self._called.add(frame.f_code)

    def files(self) -> list[str]:
        paths = {Path(code.co_filename) for code in self._called}
        return sorted(
            path.relative_to(SOURCE).as_posix() for path in paths if path.is_relative_to(SOURCE)
        )


def acp_prompt(folder: Path) -> list[str]:
    """The first prompt of a session: the agent is started, and answers."""

    async def prompt(calls: Calls | None) -> None:
        async with corral.session(shlex.join(["sh", str(PROGRAM)]), cwd=folder) as session:
            with calls or nullcontext():
                (await session.run("Say hello")).raise_for_status()

    asyncio.run(prompt(None))
    asyncio.run(prompt(calls := Calls()))
    return calls.files()


def durable_node(folder: Path) -> list[str]:
    """A run of one node, from the file to its result, with the worker in this process."""

    async def run(calls: Calls | None) -> None:
        database = f"sqlite:///{folder / 'runs.db'}"
        with calls or nullcontext():
            result = await pipelines.run(
                PIPELINE, simulate=True, durable=True, db=database, cwd=folder
            )
        assert result.status == "success", result

    asyncio.run(run(None))
    asyncio.run(run(calls := Calls()))
    return calls.files()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="name the files")
    listed = parser.parse_args().list
    with tempfile.TemporaryDirectory() as name:
        os.environ["CORRAL_HOME"] = str(Path(name) / "home")
        folder = Path(name) / "workspace"
        folder.mkdir()
        for title, measure, most in (
            ("one ACP prompt", acp_prompt, 30),
            ("one durable simulated node", durable_node, 40),
        ):
            files = measure(folder)
            print(f"{title}: {len(files)} files (bar {most})")
            if listed:
                print(*(f"  {file}" for file in files), sep="\n")
    stems = Counter(path.stem for path in SOURCE.rglob("*.py") if path.stem != "__init__")
    shared = [f"{stem} x{count}" for stem, count in stems.most_common() if count > 2]
    print(f"module names that occur more than twice: {', '.join(shared) or 'none'}")


if __name__ == "__main__":
    main()
