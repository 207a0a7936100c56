"""Make random mutations of the source, and report those that no test notices: ``make mutants``.

    python tools/mutants.py [--count 100] [--seed 1] [--sources FOLDER ...] [--tests PATH ...]
        [--marks EXPRESSION ...] [--jobs 2] [--map]

Not mutmut, which mutates functions only (half of this source is tables and defaults) and forks a
process that has run the tests; not cosmic-ray, which writes into the checkout and runs all tests
for every mutation.

Everything happens in copies of the checkout below ``.cache/mutants``, each with an environment of
its own, whose ``corral`` is that of the copy. One run of the tests with coverage makes the map:
which test reaches which line, also in its child processes, and how many seconds it takes. ``--map``
makes it again. A mutation at the level of a module or class is reached by the tests of the
functions that use what it defines. The tests of the mutated package come first, then the cheapest.
A failure that is repeated kills the mutant; so does a run that takes five times as long as it
should. Tests that fail without a mutation are left out.

``--marks`` may be repeated: the tests of the first expression run first, those of the next one only
for the mutants that survived, and each has its figure. ``""`` selects all tests.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mutation_rules import Mutation, is_valid, mutations, uses

if TYPE_CHECKING:
    import coverage

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "mutants"
DATA, RESULTS = CACHE / "lines.coverage", CACHE / "tests.json"
SOURCE = "src/corral"
MOST_SECONDS = 600.0
"""Seconds of tests, as measured, that one mutant gets in each selection of marks."""
STEPS = (15.0, 90.0, MOST_SECONDS)
"""The cheapest tests of so many seconds run first: most mutants need no others."""


@dataclass
class Mutant:
    path: str
    mutation: Mutation
    tests: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    """For each expression of marks: the test that noticed it, or ``""``."""
    ran: int = 0

    @property
    def package(self) -> str:
        return self.path.removeprefix(f"{SOURCE}/").partition("/")[0]

    def __str__(self) -> str:
        made, line = self.mutation, self.mutation.lines[0]
        old, new = (" ".join(text.split())[:70] for text in (made.old, made.new))
        return f"{self.path}:{line}: {made.what}: {old} -> {new}"


def choose(count: int, seed: int, sources: Sequence[str]) -> list[Mutant]:
    """So many random mutations, at most one of a statement. A module is chosen by its size."""
    paths = sorted(path for name in sources for path in modules(ROOT / name))
    sizes = [path.stat().st_size for path in paths]
    rng = random.Random(seed)
    chosen: dict[tuple[str, int], Mutant] = {}
    for _ in range(100 * count):
        if len(chosen) == count:
            break
        path = rng.choices(paths, sizes)[0]
        source = path.read_bytes()
        found = mutations(source)
        mutation = rng.choice(found) if found else None
        if mutation is not None and is_valid(mutation, source):
            name = str(path.relative_to(ROOT))
            chosen.setdefault((name, mutation.lines[0]), Mutant(name, mutation))
    return list(chosen.values())


def modules(path: Path) -> Iterator[Path]:
    return iter([path]) if path.is_file() else path.rglob("*.py")


class Copy:
    """A copy of the checkout, with an environment of its own."""

    def __init__(self, name: str) -> None:
        self.folder = CACHE / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        git = ["git", "-C", str(ROOT)]
        subprocess.run([*git, "clone", "-q", "--shared", ".", self.folder], check=True)
        changed = ["ls-files", "-z", "--modified", "--others", "--exclude-standard"]
        for entry in subprocess.check_output([*git, *changed], text=True).split("\0"):
            if (ROOT / entry).is_file():
                (self.folder / entry).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / entry, self.folder / entry)
            elif entry:
                (self.folder / entry).unlink(missing_ok=True)
        packages = [*ROOT.glob("tools/*/node_modules"), *ROOT.glob(".cache/*/pyvenv.cfg")]
        for path in (each.parent if each.is_file() else each for each in packages):
            link = self.folder / path.relative_to(ROOT)
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(path)
        self._make_environment()
        self.times = 1_000_000_000

    def _make_environment(self) -> None:
        ours, theirs = self.folder / ".venv", ROOT / ".venv"
        venv.create(ours, symlinks=True)
        for program in (theirs / "bin").iterdir():
            copied = ours / "bin" / program.name
            if copied.exists():
                continue
            content = program.read_bytes()
            if content.startswith(b"#!") and bytes(theirs) in content:
                copied.write_bytes(content.replace(bytes(theirs), bytes(ours)))
                copied.chmod(0o755)
            else:
                copied.symlink_to(program)
        [packages] = ours.glob("lib/python*/site-packages")
        [original] = theirs.glob("lib/python*/site-packages")
        lines = [self.folder / "src", self.folder / "tools", original]
        self.start_file = packages / "mutants.pth"
        self.start_file.write_text("".join(f"{line}\n" for line in lines))

    def measure(self, configuration: Path) -> None:
        """Record the lines that its Python processes run from now on."""
        with self.start_file.open("a") as file:
            file.write(f"import mutant_lines; mutant_lines.measure({str(configuration)!r})\n")

    def write(self, path: str, content: bytes) -> None:
        """Each time with another modification time: bytecode is made again."""
        self.times += 10
        (self.folder / path).write_bytes(content)
        os.utime(self.folder / path, (self.times, self.times))

    def pytest(self, *arguments: str, seconds: float | None = None, output: Path) -> int | None:
        """The exit code; None if it did not end in time. No process is left."""
        words = [str(self.folder / ".venv/bin/python"), "-m", "pytest", "-q", "-p", "mutant_tests"]
        with tempfile.TemporaryDirectory(prefix="mutants", ignore_cleanup_errors=True) as temporary:
            env = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
            env |= {"CORRAL_HOME": str(ROOT / ".cache/corral"), "CORRAL_PROBE": "never"}
            env["TMPDIR"] = temporary
            with output.open("wb") as file:
                process = subprocess.Popen(
                    [*BOX, *words, *arguments],
                    cwd=self.folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )
                RUNNING.add(process.pid)
                try:
                    return process.wait(seconds)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return None
                finally:
                    RUNNING.discard(process.pid)


def find_box() -> list[str]:
    """A process namespace, if this user may make one: no process outlives it, and a mutant ends no
    process outside."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return words if done.returncode == 0 else []


BOX = find_box()
RUNNING: set[int] = set()
"""The runs of pytest. What they started ends with their box, or by the watcher of the tests."""


def stop(number: int, _frame: object) -> None:
    """At SIGINT and SIGTERM."""
    for process in [*RUNNING]:
        os.killpg(process, signal.SIGKILL)
    os._exit(128 + number)


def make_map(tests: Sequence[str], marks: Sequence[str], workers: str) -> None:
    """Run the tests once with coverage, and once more those that fail with it."""
    copy = Copy("map")
    parts = CACHE / "parts"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    configuration = parts / "coveragerc"
    configuration.write_text(
        f"[run]\ndata_file = {parts / 'data'}\nparallel = true\nsource = {copy.folder / SOURCE}\n"
        "patch = _exit, fork\ndisable_warnings = no-data-collected, module-not-imported,"
        " module-not-measured, couldnt-parse\n"
    )
    first, second, only = parts / "first.json", parts / "second.json", parts / "only.json"
    copy.measure(configuration)
    selected = " or ".join(f"({each})" for each in marks) if all(marks) else ""
    spread = ["-n", workers, "--dist", "worksteal", "-m", selected]
    copy.pytest(*spread, f"--results={first}", *tests, output=CACHE / "map.log")
    if not first.exists():
        sys.exit(f"the tests did not run: see {CACHE / 'map.log'}")
    outcomes: dict[str, tuple[str, float]] = json.loads(first.read_bytes())
    failed = [name for name, (outcome, _) in outcomes.items() if outcome == "failed"]
    if failed:
        only.write_text(json.dumps(failed))
        plain = Copy("map-again")
        names = sorted({name.partition("::")[0] for name in failed})
        again = [f"--only-tests={only}", f"--results={second}", *names]
        plain.pytest("-n", "2", *again, output=CACHE / "map-again.log")
        outcomes |= json.loads(second.read_bytes())
    import coverage

    combined = coverage.Coverage(data_file=str(DATA), config_file=False)
    combined.combine([str(path) for path in parts.glob("data.*")])
    combined.save()
    RESULTS.write_text(json.dumps(outcomes))
    shutil.rmtree(parts)


Use = tuple[str, int, tuple[str, ...]]
"""A module, a line, and what the statement there defines at the import of the module."""


class Map:
    """Which tests reach a line, and what they cost."""

    def __init__(self) -> None:
        import coverage

        outcomes: dict[str, tuple[str, float]] = json.loads(RESULTS.read_bytes())
        self.seconds = {name: cost for name, (end, cost) in outcomes.items() if end == "passed"}
        self.failing = sorted(name for name, (end, _) in outcomes.items() if end == "failed")
        self._data: coverage.CoverageData = coverage.CoverageData(str(DATA))
        self._data.read()
        self._uses: dict[str, list[Use]] = {}

    def _contexts(self, path: str) -> dict[int, list[str]]:
        return self._data.contexts_by_lineno(str(CACHE / "map" / path))

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that reach it: those of its package first, then the cheapest."""
        places = [(mutant.path, line) for line in mutant.mutation.lines]
        places += self._uses_of(mutant.mutation.names)
        by_path = collections.defaultdict[str, set[int]](set)
        for path, line in places:
            by_path[path].add(line)
        reached: set[str] = set()
        for path, lines in by_path.items():
            for line, names in self._contexts(path).items():
                if line in lines:
                    reached.update(names)
        near = f"tests/{mutant.package.lstrip('_').removesuffix('.py')}"
        return sorted(
            reached & self.seconds.keys(),
            key=lambda name: (not name.startswith(near), self.seconds[name]),
        )

    def _uses_of(self, names: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Where these names are used, and those that are defined with them at an import."""
        if not self._uses:
            for path in modules(CACHE / "map" / SOURCE):
                where = str(path.relative_to(CACHE / "map"))
                for name, line, defined in uses(ast.parse(path.read_bytes())):
                    self._uses.setdefault(name, []).append((where, line, defined))
        todo = [*names]
        for name in todo:
            for where, line, defined in self._uses.get(name, ()):
                yield where, line
                todo += [each for each in defined if each not in todo]


def steps(names: Sequence[str], seconds: dict[str, float]) -> Iterator[list[str]]:
    """The tests in groups of ``STEPS``; without what is too much."""
    total, group, limits = 0.0, list[str](), list(STEPS)
    for name in names:
        total += seconds[name]
        while limits and total > limits[0]:
            limits.pop(0)
            if group:
                yield group
            group = []
        if not limits:
            return
        group.append(name)
    if group:
        yield group


def run(mutant: Mutant, copy: Copy, known: Map, marks: Sequence[str]) -> None:
    """Run the tests of a mutant until one fails; ``mutant.killed`` says which."""
    original = (copy.folder / mutant.path).read_bytes()
    copy.write(mutant.path, mutant.mutation.apply(original))
    try:
        earlier: list[str] = []
        for expression in marks:
            without = [f"not ({each})" for each in earlier]
            selected = " and ".join([f"({expression})", *without] if expression else without)
            killer = ""
            for group in steps(mutant.tests, known.seconds):
                mutant.ran += len(group)
                if killer := failing(copy, group, selected, known):
                    break
            mutant.killed.append(killer)
            if killer:
                mutant.killed += [killer] * (len(marks) - len(mutant.killed))
                return
            earlier.append(expression)
    finally:
        copy.write(mutant.path, original)


def failing(copy: Copy, names: Sequence[str], expression: str, known: Map) -> str:
    """The first of these tests that fails twice; what else happened; or ``""``."""
    left = list(names)
    while left:
        code, failed = run_tests(copy, left, expression, known)
        if code is None:
            return "(the tests did not end)"
        if failed is None or code not in (0, 1, 5):
            return "(the tests could not run)"
        if not failed:
            return ""
        if run_tests(copy, failed, "", known) != (0, []):
            return failed[0]
        left = left[left.index(failed[0]) + 1 :] if failed[0] in left else []
    return ""


def run_tests(
    copy: Copy, names: Sequence[str], expression: str, known: Map
) -> tuple[int | None, list[str] | None]:
    """The exit code of pytest, None if it did not end in time; and which tests failed, None if
    pytest broke."""
    only, results = copy.folder / "only.json", copy.folder / "results.json"
    only.write_text(json.dumps(names))
    results.unlink(missing_ok=True)
    paths = sorted({name.partition("::")[0] for name in names})
    costs = [known.seconds[name] for name in names]
    seconds, longest = 5 * sum(costs) + 120, 5 * max(costs) + 60
    files = [f"--only-tests={only}", f"--results={results}"]
    arguments = ["-x", "-n", "0", f"--timeout={longest}", "-m", expression, *files, *paths]
    output = copy.folder.with_suffix(".log")
    code = copy.pytest(*arguments, seconds=seconds, output=output)
    if not results.exists():
        return code, None
    ends: dict[str, tuple[str, float]] = json.loads(results.read_bytes())
    return code, [name for name, (end, _) in ends.items() if end == "failed"]


def report(mutants: Iterable[Mutant], marks: Sequence[str]) -> None:
    by_package = collections.defaultdict[str, list[Mutant]](list)
    for mutant in mutants:
        by_package[mutant.package].append(mutant)
    every = [mutant for group in by_package.values() for mutant in group]
    for number, expression in enumerate(marks):
        killed = sum(bool(mutant.killed[number]) for mutant in every)
        print(
            f"\n{killed} of {len(every)} are killed by the tests of {expression or 'all marks'!r}"
        )
    for package, group in sorted(by_package.items()):
        survivors = [mutant for mutant in group if not mutant.killed[-1]]
        print(f"\n{package}: {len(group) - len(survivors)} of {len(group)} killed")
        for mutant in survivors:
            ran = f"{min(mutant.ran, len(mutant.tests))} of {len(mutant.tests)} tests"
            print(f"  SURVIVED {mutant} ({ran})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/mutants.py")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--sources", nargs="*", default=[SOURCE], help="files and folders")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="those of the map")
    parser.add_argument("--marks", nargs="*", default=[""], help="expressions of pytest -m")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--map", action="store_true", help="make the map again")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    missing = [name for name in (*options.sources, *options.tests) if not (ROOT / name).exists()]
    if missing or options.count < 1 or options.jobs < 1:
        parser.error(f"no such files: {' '.join(missing)}" if missing else "a number is under 1")
    chosen = choose(options.count, seed, options.sources)
    begin = time.monotonic()
    if options.map or not RESULTS.exists():
        make_map(options.tests, options.marks, "auto" if options.jobs > 1 else "1")
    known = Map()
    for mutant in chosen:
        if (CACHE / "map" / mutant.path).read_bytes() != (ROOT / mutant.path).read_bytes():
            sys.exit(f"{mutant.path} has changed since the map was made: use --map")
    print(
        f"seed {seed}; the map has {len(known.seconds)} tests ({time.monotonic() - begin:.0f} s);"
    )
    print(f"{len(known.failing)} fail without a mutation:", *known.failing, sep="\n  ")
    copies = [Copy(str(number)) for number in range(options.jobs)]
    lock = threading.Lock()

    def work(mutant: Mutant) -> None:
        with lock:
            mutant.tests = known.tests_of(mutant)
            copy = copies.pop()
        start = time.monotonic()
        try:
            run(mutant, copy, known, options.marks)
        finally:
            copies.append(copy)
        end = mutant.killed[-1] or "SURVIVED"
        print(f"{time.monotonic() - start:5.0f} s  {mutant}: {end}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, chosen))
    report(chosen, options.marks)
    print(f"{time.monotonic() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
