"""Tool calls of Gemini CLI for scripted models, and checks of files and processes."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from corral import McpServer, Result
from corral.testing import Call, Request, Turn, say
from corral.values import Json

PROGRAMS = Path(__file__).parents[1] / "gemini_cli" / "programs"


def steps(*calls: Call) -> list[Turn]:
    """A model that makes these calls, one a turn so that each sees the last one's work, and
    then says ``done``."""
    return [*(Turn(calls=[call]) for call in calls), say("done")]


def read(path: str | Path) -> Call:
    return Call("read_file", {"file_path": str(path)})


def write(path: str | Path, content: str = "written\n") -> Call:
    return Call("write_file", {"file_path": str(path), "content": content})


def replace(path: str | Path, old: str, new: str) -> Call:
    return Call(
        "replace",
        {"file_path": str(path), "instruction": "change it", "old_string": old, "new_string": new},
    )


def shell(command: str, **more: Json) -> Call:
    return Call("run_shell_command", {"command": command, **more})


def search(query: str) -> Call:
    return Call("google_web_search", {"query": query})


def fetch(url: str) -> Call:
    return Call("web_fetch", {"prompt": f"What is at {url} ?"})


def delegate(prompt: str) -> Call:
    return Call("invoke_agent", {"agent_name": "generalist", "prompt": prompt})


def notes_server(folder: Path, **env: str) -> McpServer:
    """A real MCP server on stdio with one tool, ``keep``, which writes a file into ``folder``."""
    return McpServer(
        "notes", command=(sys.executable, str(PROGRAMS / "notes_server.py"), str(folder)), env=env
    )


def file_names(folder: Path) -> list[str]:
    """Every file below ``folder``, as a path from there."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def denied_tools(result: Result) -> list[str]:
    """The names of the tools that were refused, each with a reason."""
    assert all(refusal.reason for refusal in result.denied), result.denied
    return [refusal.name for refusal in result.denied]


def sent_json(requests: Iterable[Request]) -> str:
    """The bodies of all requests to the model, as one JSON text."""
    return json.dumps([request.body for request in requests], ensure_ascii=False)


def tool_results_json(request: Request) -> str:
    """The tool results so far, as one JSON text."""
    return json.dumps([result for _, result in request.tool_results], ensure_ascii=False)


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    done = subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stdout


def files_containing(folder: Path, secret: str) -> list[str]:
    """The files below ``folder`` whose name or content holds ``secret``."""
    needle = secret.encode()
    return [
        str(path)
        for path in folder.rglob("*")
        if secret in path.name or (path.is_file() and needle in path.read_bytes())
    ]


def processes_matching(sign: str) -> list[int]:
    """Processes with ``sign`` in their command line; zombies have none."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                line = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            if sign.encode() in line:
                found.append(int(entry))
    return found


def processes_using(folder: Path) -> dict[int, str]:
    """Process → its command line, of all that were started from here: they work in ``folder``,
    or have it in their environment or their command line, which not every agent has."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line, env = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                told = b"\0".join([line, env, os.fsencode((entry / "cwd").readlink())])
            except OSError:
                continue
            if os.fsencode(folder) in told:
                found[int(entry.name)] = line.replace(b"\0", b" ").decode()
    return found


@contextmanager
def exclusive_machine(tmp_path: Path) -> Generator[None, None, None]:
    """No two tests that use this run at the same time, in any worker of this test run: tests with
    short deadlines, and the one that uses all processors."""
    with (tmp_path.parents[1] / "machine.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class FifoSignal:
    """A FIFO: a process under test signals by writing a line into it."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def wait(self, seconds: float = 60.0) -> None:
        """Blocks; for a thread."""
        ready, _, _ = select.select([self._fd], [], [], seconds)
        if not ready:
            raise TimeoutError(f"no signal within {seconds:g} s")
        os.read(self._fd, 4096)


@contextmanager
def fifo_signal(path: Path) -> Generator[FifoSignal, None, None]:
    os.mkfifo(path)
    # Open for writing as well, so that the other side never meets a FIFO without a reader.
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield FifoSignal(path, fd)
    finally:
        os.close(fd)
