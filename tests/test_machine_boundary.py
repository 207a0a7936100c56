"""Clocks, files, the environment, sockets and processes are used in ``corral._system`` only.

``EXEMPT`` names the packages and programs whose work is the machine. ``ALLOWED`` names each other
module that uses the machine itself, what it uses, and why. A module that starts to use something
else must be added here with its reason, or call a function of ``corral._system``. Entries that are
no longer needed must go.

This finds uses that are visible in the source: calls, attributes and imports. It does not follow
values: a ``Path`` that is passed to a library is not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral

ROOT = Path(corral.__file__).parent

EXEMPT = {
    "_agents/antigravity/bridge.py": "a program of its own, which the agent's process runs",
    "_system/": "the layer that touches the machine",
    "_cli/": "the program: it reads its terminal, its environment and the files its user names",
    "_testing/": "servers, attackers and measurements that are real processes and files",
    "_verification/scenarios/programs/": "programs of their own, which run in a sandbox",
    "providers/": "the blocking interface for other engines, which have their own clocks",
    "_engine/dbos/": "the database: its file, its locks and its server's socket",
}

PATH_METHODS = frozenset(
    [
        "read_text",
        "read_bytes",
        "write_text",
        "write_bytes",
        "unlink",
        "mkdir",
        "touch",
        "iterdir",
        "rglob",
        "symlink_to",
        "rmdir",
        "is_file",
        "is_dir",
        "is_symlink",
        "exists",
        "chmod",
        "lstat",
    ]
)
OS_FILES = frozenset(
    [
        "open",
        "read",
        "write",
        "pwrite",
        "close",
        "fdopen",
        "unlink",
        "remove",
        "mkdir",
        "makedirs",
        "rmdir",
        "listdir",
        "scandir",
        "walk",
        "stat",
        "lstat",
        "fstat",
        "access",
        "rename",
        "link",
        "symlink",
        "readlink",
        "ftruncate",
        "fsync",
        "chmod",
        "mkfifo",
        "getcwd",
    ]
)
OS_PATH = frozenset(
    [
        "exists",
        "isfile",
        "isdir",
        "islink",
        "realpath",
        "getsize",
    ]
)
OS_PROCESSES = frozenset(
    [
        "kill",
        "killpg",
        "fork",
        "waitpid",
        "wait",
        "pipe",
        "system",
        "execv",
        "execve",
    ]
)
CLOCKS = frozenset(
    [
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "sleep",
        "strftime",
        "gmtime",
    ]
)
RANDOM_UUIDS = frozenset(["uuid1", "uuid4", "uuid6", "uuid7"])
"""The other functions of ``uuid`` derive an id from a name."""
MODULES = {
    "socket": "socket",
    "subprocess": "process",
    "signal": "process",
    "shutil": "file",
    "tempfile": "file",
    "fcntl": "file",
    "select": "socket",
    "selectors": "socket",
    "random": "random",
    "secrets": "random",
}

ALLOWED: dict[str, tuple[str, str]] = {
    "_agents/gemini/controls.py": ("file", "real paths: the agent compares them without links"),
    # The built-in agent. Its tools open paths that a model chose. They must hold one folder's
    # descriptor from the check to the use, so the calls stand beside the checks.
    "_builtin/tools/files.py": ("file", "the tools"),
    "_builtin/tools/find.py": ("file", "the tools"),
    "_builtin/tools/search.py": ("file", "the tool"),
    "_builtin/tools/workspace.py": ("file", "opens folders below the workspace without links"),
    # Comparisons. Tasks and results are files of the user and of corral's home.
    "_comparison/plan.py": ("file random", "checks and copies the files of tasks; a new name"),
    # Durable runs. Times are written to the database, where several machines compare them.
    "_engine/agent_host/client.py": (
        "clock file random",
        "jobs and results are files of this folder; waits until an idle host has exited",
    ),
    "_engine/agent_host/server.py": ("clock file process", "the main loop of a daemon"),
    "_engine/batch/tasks.py": ("file", "reads the files that become tasks"),
    "_engine/batch/results.py": ("file", "the results file: appended, synced, locked"),
    "_engine/worker/executor.py": ("clock random socket", "the executor's name has the host's"),
    "_engine/worker/worker.py": ("clock process", "the main loop of a process: signals"),
    "_engine/workspace/run_worktree.py": (
        "clock file",
        "worktrees that several processes share",
    ),
    "_merging/queue.py": ("clock file", "the file of a queue and its locks"),
    # Harnesses.
    "integrations/harbor/_environment.py": (
        "file",
        "copies files into and out of a trial's folders",
    ),
    # Running processes: the files by which they see each other.
    "_publishing/publisher.py": ("clock file", "since when a process is visible; its folder"),
    # Pipelines. A run's folder is a public format, written where its content is decided.
    "_pipelines/execution/interviewers.py": ("file", "reads answers from a descriptor"),
    "_pipelines/execution/verifier.py": ("file", "copies the tests of a task"),
    "_pipelines/execution/run_dir.py": ("clock file", "a run's folder"),
    "_pipelines/nodes/data.py": ("file", "the nodes read_file and write_file"),
    # Sessions.
    "_sessions/acp/client_requests.py": ("file", "the agent's file requests, below one folder"),
    "_sessions/warm/server.py": ("file process", "the background process and its socket"),
    "_sessions/sandbox.py": ("file", "which folders exist, and where a work tree's repository is"),
    "_sessions/store.py": ("clock file random", "the folders of sessions: records, private homes"),
    "_sessions/tools/mcp_server.py": ("socket", "serves tools on a private socket"),
    # Verification.
    "_verification/clean_tree.py": ("file", "makes the folder in which checks run"),
    "_verification/scenarios/run_scenarios.py": ("file", "copies what a scenario needs"),
    # The view. It reads the files of runs that other processes write.
    "_view/server.py": ("process socket", "the server; signals end it"),
}
"""Module → what it uses, why it does so itself."""


def uses(tree: ast.AST) -> set[str]:
    """What the code uses: clock, environment, file, process, random, socket."""
    return {use for node in ast.walk(tree) for use in _uses(node)}


def _uses(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = {alias.name.split(".")[0] for alias in node.names}
        yield from (MODULES[name] for name in names if name in MODULES)
    elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
        yield MODULES[node.module]
    elif isinstance(node, ast.ImportFrom) and node.module in ("os", "time", "uuid"):
        found = (_use_of(node.module, alias.name) for alias in node.names)
        yield from (use for use in found if use is not None)
    elif isinstance(node, ast.Attribute):
        use = _use_of(ast.unparse(node.value), node.attr)
        if use is not None:
            yield use
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
        yield "file"


def _use_of(owner: str, name: str) -> str | None:
    """What ``owner.name`` uses."""
    if owner == "os" and name in ("environ", "getenv", "environb"):
        return "environment"
    if (owner == "os" and name == "urandom") or (owner == "uuid" and name in RANDOM_UUIDS):
        return "random"
    if owner == "os" and name in OS_PROCESSES:
        return "process"
    if (owner == "time" and name in CLOCKS) or (
        owner.rpartition(".")[2] == "datetime" and name in ("now", "utcnow", "today")
    ):
        return "clock"
    is_file = (
        (owner == "os" and name in OS_FILES)
        or (owner == "os.path" and name in OS_PATH)
        or (owner == "Path" and name in ("cwd", "home"))
        or (owner != "fs" and name in PATH_METHODS)  # ``fs`` is ``corral._system.fs``
    )
    return "file" if is_file else None


def modules() -> list[Path]:
    return [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if not path.relative_to(ROOT).as_posix().startswith(tuple(EXEMPT))
    ]


@pytest.mark.spine
def test_modules_use_the_machine_only_as_listed() -> None:
    problems: list[str] = []
    for path in modules():
        name = path.relative_to(ROOT).as_posix()
        listed = {*ALLOWED.get(name, ("", ""))[0].split()}
        found = uses(ast.parse(path.read_text("utf-8")))
        if new := " and ".join(sorted(found - listed)):
            problems.append(
                f"{name} uses {new}: call corral._system, or list it in ALLOWED with its reason"
            )
        if gone := " and ".join(sorted(listed - found)):
            problems.append(f"{name} no longer uses {gone}: remove that from ALLOWED")
    assert problems == []


def test_every_entry_names_a_module_and_gives_a_reason() -> None:
    known = {path.relative_to(ROOT).as_posix() for path in modules()}
    assert {*ALLOWED} <= known
    assert all(reason for _, reason in ALLOWED.values())
    assert all((ROOT / path).exists() and reason for path, reason in EXEMPT.items())


@pytest.mark.parametrize(
    ("code", "use"),
    [
        ("os.environ['HOME']", "environment"),
        ("os.getenv('HOME')", "environment"),
        ("from os import environ", "environment"),
        ("open('file')", "file"),
        ("path.read_text()", "file"),
        ("path.write_bytes(data)", "file"),
        ("os.path.exists(path)", "file"),
        ("Path.cwd()", "file"),
        ("def run():\n    import tempfile", "file"),
        ("time.time()", "clock"),
        ("from time import monotonic", "clock"),
        ("clock = time.monotonic", "clock"),
        ("datetime.now()", "clock"),
        ("datetime.datetime.now()", "clock"),
        ("import socket", "socket"),
        ("from subprocess import run", "process"),
        ("os.fork()", "process"),
        ("os.urandom(4)", "random"),
        ("uuid.uuid4()", "random"),
        ("from uuid import uuid4", "random"),
    ],
)
def test_a_use_is_found(code: str, use: str) -> None:
    assert uses(ast.parse(code)) == {use}


@pytest.mark.parametrize(
    "code",
    [
        "os.path.join(a, b)",
        "os.fspath(a)",
        "from time import struct_time",
        "launch.cwd",
        "fs.read_text(path)",
        "uuid.uuid5(a, b)",
    ],
)
def test_other_code_uses_nothing(code: str) -> None:
    assert uses(ast.parse(code)) == set()
