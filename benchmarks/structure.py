"""The size and shape of the source tree, and how many files a reader has to open for one run.

    python benchmarks/structure.py [--list]

The first rows are read from the source: lines and files, private functions that are called once,
import cycles, class names that several classes share, and modules that use the machine outside of
``corral._system``. The last rows are measured: for one prompt to an ACP agent and for one durable
simulated node, the number of files of ``src/corral`` in which at least one function was called.
Each is run once before, so code that runs only because a module is imported does not count.
``--list`` names what is counted.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import gc
import os
import shlex
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
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


class Module:
    """A source file."""

    def __init__(self, path: Path) -> None:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        self.name = ".".join(("corral", *parts)).removesuffix(".__init__")
        text = path.read_text("utf-8")
        self.lines = text.count("\n")
        self.nodes = tuple(ast.walk(ast.parse(text)))

    def called_once(self) -> Iterator[str]:
        """Private functions and methods that one place in this module refers to."""
        references = Counter[str]()
        for node in self.nodes:
            if isinstance(node, ast.Name):
                references[node.id] += 1
            elif isinstance(node, ast.Attribute):
                references[node.attr] += 1
        for node in self.nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            is_private = node.name.startswith("_") and not node.name.startswith("__")
            if is_private and references[node.name] == 1:
                yield f"{self.name}.{node.name}"

    def imports(self, names: set[str]) -> set[str]:
        """Modules of ``names`` that it imports: when it is loaded, later, or for types only."""
        imported: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= full & names or {node.module}
                if not full <= names:
                    imported.add(node.module)
        return (imported & names) - {self.name}

    def classes(self) -> list[str]:
        return [node.name for node in self.nodes if isinstance(node, ast.ClassDef)]


def read_modules() -> list[Module]:
    return [Module(path) for path in sorted(SOURCE.rglob("*.py"))]


def import_cycles(modules: list[Module]) -> list[tuple[str, ...]]:
    """Groups of modules that import each other, directly or through others. The modules that load
    public names from every layer are left out."""
    facades = {"corral", "corral.models", "corral.pipelines"}
    names = {module.name for module in modules} - facades
    graph = {module.name: module.imports(names) for module in modules if module.name in names}
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return sorted(groups)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """The modules that ``start`` imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def shared_class_names(modules: list[Module]) -> dict[str, list[str]]:
    owners = defaultdict[str, list[str]](list)
    for module in modules:
        for name in module.classes():
            owners[name].append(module.name)
    return {name: places for name, places in owners.items() if len(places) > 1}


def modules_that_use_the_machine() -> list[str]:
    """As listed, with their reasons, in ``tests/test_machine_boundary.py``."""
    path = Path(__file__).parents[1] / "tests" / "test_machine_boundary.py"
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ALLOWED":
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise ValueError(f"{path} has no ALLOWED")


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


def print_row(title: str, value: str, bar: str, details: list[str], *, listed: bool) -> None:
    print(f"{title}: {value} (bar {bar})")
    if listed:
        print(*(f"  {detail}" for detail in details), sep="\n")


def print_source(*, listed: bool) -> None:
    modules = read_modules()
    lines = sum(module.lines for module in modules)
    print(f"lines: {lines:,} (bar 102,000)")
    print(f"files: {len(modules)} (bar 500)")
    once = [name for module in modules for name in module.called_once()]
    rate = f"{len(once) * 10_000 / lines:.0f} per 10,000 lines"
    print_row("private functions called once", rate, "80", once, listed=listed)
    cycles = [" ".join(group) for group in import_cycles(modules)]
    print_row("import cycles", str(len(cycles)), "0", cycles, listed=listed)
    shared = [f"{name}: {' '.join(at)}" for name, at in shared_class_names(modules).items()]
    print_row("class names of several classes", str(len(shared)), "25", shared, listed=listed)
    machine = modules_that_use_the_machine()
    title = "modules outside corral._system that use the machine"
    print_row(title, str(len(machine)), "30", machine, listed=listed)
    stems = Counter(module.name.rpartition(".")[2] for module in modules)
    often = [f"{stem} x{count}" for stem, count in stems.most_common() if count > 2]
    print(f"module names that occur more than twice: {', '.join(often) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="name what is counted")
    listed = parser.parse_args().list
    gc.disable()  # the nodes of all modules are many objects, and none is garbage
    print_source(listed=listed)
    with tempfile.TemporaryDirectory() as name:
        os.environ["CORRAL_HOME"] = str(Path(name) / "home")
        folder = Path(name) / "workspace"
        folder.mkdir()
        for title, measure, most in (
            ("one ACP prompt", acp_prompt, 30),
            ("one durable simulated node", durable_node, 32),
        ):
            files = measure(folder)
            print_row(title, f"{len(files)} files", str(most), files, listed=listed)


if __name__ == "__main__":
    main()
