"""Odd folders, programs and machines: an error that says what is wrong, or a sandbox that holds.
No run is outside of the sandbox unless the report says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.sandbox import needs_sandbox
from support.scripted_agent import scripted_options

import corral
from corral import Policy
from corral._sessions.prepare import prepare
from corral._sessions.sandbox import command_sandbox
from corral._system.sandbox import bubblewrap
from corral._system.sandbox.box import Box, interpreter_folders
from corral._system.sandbox.sandbox import Sandbox, find_support
from corral.errors import ConfigError, CorralError, SandboxFailed

pytestmark = needs_sandbox

POLICY = Policy(read="allow", write="allow", shell="allow", network="deny")


class Place(NamedTuple):
    """Where a case makes what it needs."""

    workspace: Path
    outside: Path
    monkeypatch: pytest.MonkeyPatch

    def named(self, name: str) -> dict[str, object]:
        folder = self.workspace / name
        folder.mkdir()
        return {"cwd": folder}

    def link(self, target: str | Path) -> Path:
        link = self.outside / "link"
        link.symlink_to(target)
        return link

    def program(self, folder: Path, text: str) -> None:
        """A program called ``bwrap``, the first on PATH."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bwrap").write_text(text)
        (folder / "bwrap").chmod(0o755)
        self.monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def without_any_program(place: Place) -> dict[str, object]:
    def find(_: str | None = None) -> None:
        return None

    place.monkeypatch.setattr(bubblewrap, "find", find)
    return {}


def failing_program(message: str) -> Callable[[Place], dict[str, object]]:
    def make(place: Place) -> dict[str, object]:
        place.program(place.outside / "tools", f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
        return {}

    return make


def damaged_program(place: Place) -> dict[str, object]:
    place.program(place.outside / "tools", "\x7fELF is not all that a program needs")
    return {}


def trap(place: Place) -> str:
    return f"#!/bin/sh\ntouch '{place.outside}/trapped'\nexec \"$@\"\n"


def program_in_the_workspace(place: Place) -> dict[str, object]:
    place.program(place.workspace / "bin", trap(place))
    return {}


def program_linked_from_the_workspace(place: Place) -> dict[str, object]:
    place.program(place.outside / "evil", trap(place))
    (place.workspace / "bin").symlink_to(place.outside / "evil")
    place.monkeypatch.setenv("PATH", f"{place.workspace}/bin:{os.environ['PATH'].split(':', 1)[1]}")
    return {}


def program_linked_into_the_workspace(place: Place) -> dict[str, object]:
    place.program(place.workspace / "bin", trap(place))
    folder = place.outside / "tools"
    folder.mkdir()
    (folder / "bwrap").symlink_to(place.workspace / "bin" / "bwrap")
    place.monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return {}


def relative_program(place: Place) -> dict[str, object]:
    place.program(place.workspace / "bin", trap(place))
    place.monkeypatch.chdir(place.workspace)
    place.monkeypatch.setenv("PATH", "bin", prepend=os.pathsep)
    return {}


def unwritable(place: Place) -> dict[str, object]:
    (place.workspace / "folder").mkdir(mode=0o555)
    return {"cwd": place.workspace / "folder"}


Refused = tuple[type[CorralError], str]
CASES: dict[str, tuple[Callable[[Place], dict[str, object]], Refused | None]] = {
    "the root folder": (lambda _: {"cwd": "/"}, (ConfigError, "the root folder")),
    "the home": (lambda _: {"cwd": Path.home()}, (ConfigError, "the home folder")),
    "above the home": (lambda _: {"cwd": Path.home().parent}, (ConfigError, "could not hide")),
    "a link to the home": (
        lambda place: {"cwd": place.link(Path.home())},
        (ConfigError, "the home folder"),
    ),
    "a folder of the system": (lambda _: {"cwd": "/usr/share"}, (ConfigError, "to the system")),
    "a link to the workspace": (lambda place: {"cwd": place.link(place.workspace)}, None),
    "a folder that is gone": (lambda _: {"cwd": "/gone"}, (ConfigError, "cwd does not exist")),
    "an unwritable folder": (unwritable, None),
    "an added folder that does not exist": (
        lambda _: {"include_directories": ["gone"]},
        (ConfigError, "include_directories does not exist"),
    ),
    "a writable folder that does not exist": (
        lambda _: {"policy": Policy(write="allow", writable=("gone",))},
        (ConfigError, "the policy's writable folder does not exist"),
    ),
    "spaces and a newline": (lambda place: place.named("two words\nand 'quotes'"), None),
    "another script": (lambda place: place.named("проект-計画"), None),
    "a name that is not UTF-8": (
        lambda place: place.named(os.fsdecode(b"caf\xe9")),
        (ConfigError, "not UTF-8"),
    ),
    "no program": (without_any_program, (SandboxFailed, "bubblewrap is not installed")),
    "a program that is too old": (
        failing_program("bwrap: Unknown option --args"),
        (SandboxFailed, "too old"),
    ),
    "a program that is not permitted": (
        failing_program("bwrap: No permissions to create new namespace"),
        (SandboxFailed, "No permissions to create new namespace"),
    ),
    "a damaged program": (damaged_program, (SandboxFailed, "cannot be executed")),
    "a program in the workspace": (program_in_the_workspace, None),
    "a program linked from the workspace": (program_linked_from_the_workspace, None),
    "a program linked into the workspace": (program_linked_into_the_workspace, None),
    "a program on a relative PATH": (relative_program, None),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_an_error_or_the_sandbox_holds(
    case: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    make, refused = CASES[case]
    usual: dict[str, object] = {**scripted_options(workspace), "policy": POLICY}
    options = {**usual, **make(Place(workspace, outside, monkeypatch)), "sandbox": "require"}
    if refused is None:
        sandbox = command_sandbox(prepare("gemini-acp", options))
        assert sandbox is not None
        assert_it_holds(sandbox, outside)
        assert not (outside / "trapped").exists()
        return
    error, words = refused
    with pytest.raises(error) as raised:
        prepare("gemini-acp", options)
    assert words in f"{raised.value.message} {raised.value.hint}"


def assert_it_holds(sandbox: Sandbox, outside: Path, env: dict[str, str] | None = None) -> None:
    result = run(sandbox, ["sh", "-c", f"touch inside; echo x > '{outside}/escaped'; pwd"], env)
    assert result.returncode == 0, result.stderr
    assert os.fsdecode(result.stdout).rstrip("\n").endswith(sandbox.box.cwd)
    # Also root obeys the mode of a folder in the sandbox.
    is_writable = os.stat(sandbox.box.cwd).st_mode & 0o200
    assert os.path.exists(os.path.join(sandbox.box.cwd, "inside")) == bool(is_writable)
    assert not (outside / "escaped").exists()


def run(
    sandbox: Sandbox, command: list[str], env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    wrapped = sandbox.wrap()
    try:
        return subprocess.run(
            [*wrapped.argv, *command],
            pass_fds=wrapped.passed,
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **(env or {})},
        )
    finally:
        for number in wrapped.passed:
            os.close(number)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("this machine has no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_workspace_on_another_file_system(in_memory: Path, tmp_path: Path) -> None:
    options: dict[str, object] = {**scripted_options(in_memory), "policy": POLICY}
    sandbox = command_sandbox(prepare("gemini-acp", {**options, "sandbox": "require"}))
    assert sandbox is not None
    assert_it_holds(sandbox, tmp_path)


@pytest.mark.deep
def test_long_arguments_and_variables_fit(workspace: Path, tmp_path: Path) -> None:
    """The folders of the sandbox do not count against the limit for arguments."""
    folders = [tmp_path / f"{'long' * 40}-{number}" for number in range(1000)]
    for folder in folders:
        folder.mkdir()
    readable = (*interpreter_folders(), *map(str, folders))
    box = Box(cwd=str(workspace), writable=(str(workspace),), readable=readable)
    sandbox = Sandbox(support=find_support(), box=box)
    long = {f"VARIABLE_{number}": "x" * 100_000 for number in range(8)}
    result = run(sandbox, ["sh", "-c", "echo ${#1} ${#VARIABLE_7}", "sh", "y" * 100_000], long)
    assert result.stdout == b"100000 100000\n", result.stderr


@pytest.mark.deep
def test_too_many_folders_are_an_error(workspace: Path, tmp_path: Path) -> None:
    """bubblewrap reads at most 9,000 arguments."""
    for number in range(3_000):
        (tmp_path / f"{number}").touch()
    readable = (*interpreter_folders(), *(str(tmp_path / str(number)) for number in range(3_000)))
    box = Box(cwd=str(workspace), writable=(str(workspace),), readable=readable)
    result = run(Sandbox(support=find_support(), box=box), ["touch", "started"])
    assert result.returncode == 1
    assert result.stderr.startswith(b"bwrap: Exceeded maximum number of arguments")
    assert not (workspace / "started").exists()


DESCRIBE = """
from corral._system.sandbox.sandbox import describe, find_support
print(describe(find_support()))
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--proc", "/proc", "--unshare-user", "--disable-userns"], "namespaces"),
        (["--tmpfs", "/proc"], "/proc is not mounted"),
    ],
    ids=["user namespaces are off", "without /proc"],
)
def test_a_machine_that_forbids_it_is_reported_with_the_reason(
    tmp_path: Path, options: list[str], words: str
) -> None:
    program = bubblewrap.find()
    assert program is not None
    machine = [program, "--bind", "/", "/", "--dev", "/dev", *options]
    result = subprocess.run(
        [*machine, sys.executable, "-c", DESCRIBE],
        env={**os.environ, "CORRAL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout.startswith(("none. bubblewrap (", "writes only, by Landlock"))
    assert words in result.stdout


AS_USER = """
import asyncio, os, sys, threading
from corral._system.process.process import Process, ProcessSpec
from corral._system.sandbox.box import Box, SandboxEndpoint, interpreter_folders
from corral._system.sandbox.sandbox import Sandbox, find_support
workspace, threads = sys.argv[1:]
for _ in range(int(threads)):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
support = find_support(workspace)
assert support.method == "bubblewrap", support
assert support.can_enter == (threads == "0"), support
script = "id -u; grep CapEff /proc/self/status;"
script += "script -qc 'test -t 1' /dev/null || exit 5; mount -t tmpfs x /tmp;"
script += "touch inside; touch ../outside; cat /etc/hosts;"
script += f"{sys.executable} -Ic 'import socket, sys; address = sys.argv[1], int(sys.argv[2]);"
script += "print(socket.create_connection(address).recv(99).decode())' 127.0.0.1 $PORT; exit 3"

async def answer(reader, writer):
    writer.write(b"connected")
    writer.close()

async def main():
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        box = Box(cwd=workspace, writable=(workspace,), readable=interpreter_folders(),
                  endpoints=(SandboxEndpoint("models.example", 443),
                             SandboxEndpoint("127.0.0.1", port)))
        process = await Process.start(ProcessSpec(
            ["sh", "-c", script], cwd=workspace, env={**os.environ, "PORT": str(port)},
            sandbox=Sandbox(support=support, box=box)))
        output = b""
        while part := await process.read():
            output += part
        done = await process.wait()
        await process.end()
        print(os.geteuid(), done.code, output.decode(), process.stderr)

asyncio.run(main())
"""


@pytest.mark.parametrize("threads", [0, 1])
def test_an_ordinary_user_has_the_same_sandbox(tmp_path: Path, threads: int) -> None:
    """Other tests cover the user that runs them, who may be root. Without other threads corral
    enters the sandbox to open its sockets; with them a program inside sends them."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [os.path.dirname(os.path.dirname(corral.__file__)), *sys.path]
    packages = [path for path in packages if "site-packages" in path or path.endswith("src")]
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    # setpriv itself can still execute a program that the user cannot, so a shell does it.
    become += ["--inh-caps=-all", "--bounding-set=-all", "sh", "-c", 'exec "$0" "$@"']
    for python in (os.path.realpath(sys.executable), shutil.which(version, path="/usr/bin:/bin")):
        if python and subprocess.run([*become, python, "-c", ""], check=False).returncode == 0:
            break
    else:
        pytest.skip("an ordinary user can execute no Python of this version")
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        for path in (folder, workspace):
            os.chown(path, 65534, 65534)
        result = subprocess.run(
            [*become, python, "-c", AS_USER, workspace, str(threads)],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(packages), "HOME": "/nonexistent",
                 "CORRAL_HOME": f"{folder}/home"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )  # fmt: skip
        # The program that opens port 443 inside needs the name of root, which is only a name.
        user = "0" if threads else "65534"
        assert result.stdout.startswith(f"65534 3 {user}\n"), result.stderr + result.stdout
        assert ("CapEff:\t0000000000000000" in result.stdout) == (threads == 0)
        assert "permission denied" in result.stdout or "must be superuser" in result.stdout
        assert "connected" in result.stdout
        assert "127.0.1.1 models.example" in result.stdout
        assert (workspace / "inside").stat().st_uid == 65534
        assert not (Path(folder) / "outside").exists()
