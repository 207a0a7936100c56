"""Sockets that corral opens in the network of a sandbox, with real sandboxes and namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.durable_processes import wait_until
from support.sandbox import needs_sandbox

from corral._system import platform
from corral._system.process.process import Process, ProcessSpec
from corral._system.sandbox import gateway
from corral._system.sandbox.box import (
    Box,
    InnerAddress,
    SandboxEndpoint,
    Wrapped,
    interpreter_folders,
)
from corral._system.sandbox.gateway import SandboxInfo
from corral._system.sandbox.sandbox import Sandbox, find_support
from corral.errors import SandboxFailed

pytestmark = needs_sandbox
LOW = InnerAddress(SandboxEndpoint("models.example", 443), "127.0.1.1")
HIGH = InnerAddress(SandboxEndpoint("127.0.0.1", 8123), "127.0.0.1")


@pytest.fixture
def other_network() -> Iterator[int]:
    """The pid of a process in another network."""
    if not platform.can_enter_networks():
        pytest.skip("only root can enter a network")
    # It prints a line when it is there.
    script = "echo there; exec sleep 60"
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        yield process.pid
        process.kill()


def info(pid: int) -> SandboxInfo:
    return SandboxInfo(pid, os.stat(f"/proc/{pid}/ns/net").st_ino)


def networks() -> set[int]:
    """Those of all threads of this process."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            found.add(os.stat(f"/proc/self/task/{task}/ns/net").st_ino)
    return found


def listening(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines if line.split()[3] == "0A"}


def test_they_listen_in_the_other_network_and_every_thread_stays_in_ours(
    other_network: int,
) -> None:
    before = networks()
    opened = gateway.open_inside(info(other_network), (LOW, HIGH))
    assert listening(other_network) == {"0101007F:01BB", "0100007F:1FBB"}
    # A thread that was joined is listed for a moment.
    wait_until(lambda: networks() == before, "all threads to be in our network")
    assert not any(each.get_inheritable() for each in opened)
    for each in opened:
        each.close()


FORK = """
import os, sys
from corral._system import platform
from corral._system.sandbox import gateway
from corral._system.sandbox.box import InnerAddress, SandboxEndpoint
platform.can_enter_networks = lambda: False
info = gateway.SandboxInfo(int(sys.argv[1]), int(sys.argv[2]))
low = InnerAddress(SandboxEndpoint("a", 443), "127.0.1.1")
high = InnerAddress(SandboxEndpoint("b", 8123), "127.0.0.1")
opened = gateway.open_inside(info, (low, high))
print([each.getsockname() for each in opened], any(each.get_inheritable() for each in opened))
print(open(f"/proc/{info.pid}/net/tcp").read().count(" 0A "))
print(os.stat("/proc/self/ns/net").st_ino != info.network)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no child is left")
"""


def test_a_fork_opens_them_where_a_thread_may_not(other_network: int) -> None:
    found = info(other_network)
    result = subprocess.run(
        [sys.executable, "-c", FORK, str(found.pid), str(found.network)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    addresses = "[('127.0.1.1', 443), ('127.0.0.1', 8123)] False"
    assert result.stdout.splitlines() == [addresses, "2", "True", "no child is left"]


LATE = """
import os, subprocess, sys, time
from pathlib import Path
from corral._system import platform
from corral._system.sandbox import bubblewrap, gateway
from corral._system.sandbox.box import Box, SandboxEndpoint, interpreter_folders
assert not platform.can_enter_networks() and gateway.can_enter_cheaply()
box = Box(cwd="/", readable=interpreter_folders(), endpoints=(SandboxEndpoint("a", 443),))
wrapped = bubblewrap.wrap(sys.argv[1], box, os.path.expanduser("~"), can_enter=True)
argv = [*wrapped.argv, "sh", "-c", "cat /proc/net/tcp"]
with subprocess.Popen(argv, pass_fds=wrapped.passed) as sandbox:
    text = b""
    while (info := gateway.parse_info(text)) is None:
        text += wrapped.control.recv(4096)
    process = Path(f"/proc/{info.pid}")
    first = os.readlink(process / "ns/user")
    # Without rights: it waits for corral.
    while "CapEff:\t0000000000000000" not in (process / "status").read_text():
        time.sleep(0.001)
    print(first != os.readlink(process / "ns/user"), flush=True)
    try:
        opened = gateway.open_inside(info, wrapped.addresses)
    finally:
        wrapped.control.send(b".")
"""


def test_a_sandbox_that_is_ready_before_corral_can_be_entered() -> None:
    """On a busy machine corral comes late: for an ordinary user, bubblewrap has gone on to a second
    user namespace, which has no rights in the network."""
    enter = "from support import namespace; namespace.enter()"
    then = (
        f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {LATE!r}, *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{enter}; {then}", find_support().program],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert lines[:1] == ["True"], done.stderr
    assert [line.split()[1] for line in lines[2:]] == ["0101007F:01BB"], done.stderr


def test_an_address_in_use_is_an_error_and_leaves_nothing_open(other_network: int) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SandboxFailed, match="Address already in use"):
        gateway.open_inside(info(other_network), (HIGH, HIGH))
    assert os.listdir("/proc/self/fd") == before
    assert listening(other_network) == set()


def test_nothing_is_opened_in_the_network_of_another_process() -> None:
    """The sandbox has ended, and its pid belongs to another process, or to none."""
    ours = os.stat("/proc/self/ns/net").st_ino
    assert gateway.open_inside(SandboxInfo(os.getpid(), ours + 1), (HIGH,)) == []
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert gateway.open_inside(SandboxInfo(ended.pid, ours + 1), (HIGH,)) == []


def test_an_incomplete_report_is_waited_for_and_one_without_a_network_is_an_error() -> None:
    assert gateway.parse_info(b'{\n "child-pid": 7,') is None
    assert gateway.parse_info(b'{"child-pid": 7, "net-namespace": 8, "x": 1}') == SandboxInfo(7, 8)
    with pytest.raises(SandboxFailed, match="net-namespace"):
        gateway.parse_info(b'{"child-pid": 7}')


def test_a_process_with_threads_is_not_forked() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not platform.can_fork(1 << 40)
    finally:
        stop.set()
        thread.join()
    assert not platform.can_fork(1 << 10)


async def test_the_program_gets_no_descriptor_and_no_right(tmp_path: Path) -> None:
    support = find_support()
    if not support.can_enter:
        pytest.skip("this process enters no sandbox")
    box = Box(
        cwd=str(tmp_path),
        writable=(str(tmp_path),),
        readable=interpreter_folders(),
        endpoints=(SandboxEndpoint("models.example", 443),),
    )
    command = ["sh", "-c", "ls /proc/$$/fd; grep CapEff /proc/self/status; cat /proc/net/tcp"]
    process = await Process.start(
        ProcessSpec(
            command, cwd=tmp_path, env=dict(os.environ), sandbox=Sandbox(support=support, box=box)
        )
    )
    output = b""
    async with asyncio.timeout(60):
        while part := await process.read():
            output += part
    await process.end(1.0)
    lines = output.decode().splitlines()
    assert lines[:4] == ["0", "1", "2", "CapEff:\t0000000000000000"]
    assert "0101007F:01BB 00000000:0000 0A" in output.decode()


async def test_a_sandbox_that_cannot_be_entered_starts_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = find_support()
    if not support.can_enter:
        pytest.skip("this process enters no sandbox")
    # Both listen on the same port of the same address.
    twice = (HIGH, HIGH)
    box = Box(cwd=str(tmp_path), writable=(str(tmp_path),), endpoints=(HIGH.endpoint,))
    made = Sandbox(support=support, box=box).wrap()
    changed = msgspec.structs.replace(made, addresses=twice)

    def wrap(_: Sandbox, _read_only: tuple[str, ...]) -> Wrapped:
        return changed

    monkeypatch.setattr(Sandbox, "wrap", wrap)
    before = os.listdir("/proc/self/fd")
    spec = ProcessSpec(
        ["sh", "-c", "touch started"],
        cwd=tmp_path,
        env=dict(os.environ),
        sandbox=Sandbox(support=support, box=box),
    )
    with pytest.raises(SandboxFailed, match="Address already in use"):
        await Process.start(spec)
    await asyncio.sleep(0)
    assert not (tmp_path / "started").exists()
    # Those of the sandbox were open before.
    assert len(os.listdir("/proc/self/fd")) < len(before)


NO_THREAD = """
import os, resource
from corral.errors import SandboxFailed
from corral._system import platform
from corral._system.sandbox import gateway

platform.can_enter_networks = lambda: True
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), -1))  # less than the stack of a thread
try:
    network = os.stat("/proc/self/ns/net").st_ino
    gateway.open_inside(gateway.SandboxInfo(os.getpid(), network), ())
except SandboxFailed as error:
    print(error)
"""


def test_a_thread_that_cannot_be_started_is_a_clear_error() -> None:
    done = subprocess.run([sys.executable, "-c", NO_THREAD], capture_output=True, text=True)
    assert "cannot listen in the network of the sandbox: can't start new thread" in done.stdout
