"""The faults: what is prepared before the start, what happens at a random moment, and how it is
lifted again."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos.scene import Scene
from chaos.surfaces import NOISE
from support import namespace
from support.namespace import ProcessLimit

DISK = 24 << 20
"""Bytes of the small disk: enough for a run, if nobody fills it."""
CLOCK = Path(__file__).parent / "clock"
DURABLE = ("batch", "pipeline", "worker")


def _nothing(_scene: Scene) -> None:
    pass


def _never(_scene: Scene) -> bool:
    return True


@dataclass(frozen=True)
class Fault:
    prepare: Callable[[Scene], None] = _nothing
    """Before the start of the subject; its folders exist."""
    strike: Callable[[Scene], bool] = _never
    """At the moment of the fault, and again until it returns True: it has happened."""
    lift: Callable[[Scene], None] = _nothing
    surfaces: tuple[str, ...] = ("run", "session", "pool", "batch", "pipeline", "worker")
    needs_namespace: bool = False
    mount: Callable[[Scene], None] = _nothing
    """In the namespace, before the folders are made."""
    is_possible: Callable[[], bool] = lambda: True


# Signals.


def _signal_agent(scene: Scene, number: int) -> bool:
    found = scene.agents()
    if not found:
        return False
    try:
        os.kill(scene.chance.choice(found), number)
    except OSError:
        return False
    return True


def kill_agent(scene: Scene) -> bool:
    return _signal_agent(scene, signal.SIGKILL)


def _expect_silence(scene: Scene) -> None:
    scene.timeout = 4.0


def stop_agent(scene: Scene) -> bool:
    return _signal_agent(scene, signal.SIGSTOP)


def kill_corral(scene: Scene) -> bool:
    assert scene.subject is not None
    scene.subject.kill()
    scene.was_killed = True
    return True


def kill_host(scene: Scene) -> bool:
    found = scene.hosts()
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


# Resources that run out.


def _mount_disk(scene: Scene) -> None:
    namespace.mount_small_disk(scene.disk, DISK)


def fill_disk(scene: Scene) -> bool:
    space = os.statvfs(scene.disk)
    leave = scene.chance.choice([0, 0, 4096, 20_000, 100_000])
    size = max(space.f_bavail * space.f_frsize - leave, 0)
    fd = os.open(scene.disk / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
    scene.is_disk_full = True
    return True


def empty_disk(scene: Scene) -> None:
    (scene.disk / "filler").unlink(missing_ok=True)


def limit_descriptors(scene: Scene) -> None:
    if scene.chance.random() < 0.5:
        scene.limits[resource.RLIMIT_NOFILE] = scene.chance.randrange(5, 48)
        # As `ulimit -n` sets it: it cannot be raised again, so not for a worker, which gets its
        # descriptors back.
        is_worker = scene.case.surface == "worker"
        scene.limits_are_hard = not is_worker and scene.chance.random() < 0.5


def take_descriptors(scene: Scene) -> bool:
    assert scene.subject is not None
    if resource.RLIMIT_NOFILE not in scene.limits:
        with contextlib.suppress(OSError):
            _, most = resource.prlimit(scene.subject.pid, resource.RLIMIT_NOFILE)
            few = scene.chance.randrange(5, 30)
            resource.prlimit(scene.subject.pid, resource.RLIMIT_NOFILE, (few, most))
    return True


def return_descriptors(scene: Scene) -> None:
    assert scene.subject is not None
    with contextlib.suppress(OSError):
        _, most = resource.prlimit(scene.subject.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(scene.subject.pid, resource.RLIMIT_NOFILE, (most, most))


def limit_processes(scene: Scene) -> None:
    scene.process_limit = ProcessLimit(f"corral-chaos-{os.getpid()}")


def take_processes(scene: Scene) -> bool:
    assert scene.subject is not None
    assert scene.process_limit is not None
    with contextlib.suppress(ProcessLookupError):
        scene.process_limit.allow_more(scene.subject.pid, scene.chance.randrange(0, 4))
    return True


def return_processes(scene: Scene) -> None:
    assert scene.process_limit is not None
    scene.process_limit.lift()


# The home.


def _protect_home(scene: Scene) -> None:
    for folder in (scene.home, scene.corral_home):
        namespace.mount_itself(folder)
    if scene.chance.random() < 0.4:
        make_home_read_only(scene)


def make_home_read_only(scene: Scene) -> bool:
    try:
        for folder in (scene.home, scene.corral_home):
            namespace.make_read_only(folder)
    except OSError:
        return False
    return True


def make_home_writable(scene: Scene) -> None:
    for folder in (scene.home, scene.corral_home):
        namespace.make_writable(folder)


def remove_home(scene: Scene) -> None:
    match scene.chance.randrange(4):
        case 0:
            del scene.env["HOME"], scene.env["CORRAL_HOME"]
        case 1:
            scene.env["HOME"] = "/nonexistent/home"
            del scene.env["CORRAL_HOME"]
        case 2:
            scene.env["CORRAL_HOME"] = "/proc/nonexistent/corral"
        case _:
            pass  # it is removed while it is used


def lose_home(scene: Scene) -> bool:
    if scene.env.get("CORRAL_HOME") == str(scene.corral_home):
        shutil.rmtree(scene.corral_home, ignore_errors=True)
    return True


def restore_home(scene: Scene) -> None:
    scene.env |= {"HOME": str(scene.home), "CORRAL_HOME": str(scene.corral_home)}
    scene.corral_home.mkdir(mode=0o700, exist_ok=True)


# Streams and the clock.


def close_streams(scene: Scene) -> None:
    scene.streams = scene.chance.choice(
        [
            ["closed", "file", "file"],
            ["null", "closed", "file"],
            ["null", "file", "closed"],
            ["closed", "closed", "closed"],
            ["null", "gone", "file"],
            ["null", "file", "gone"],
            ["null", "full", "file"],
            ["null", "full", "full"],
        ]
    )


def slow_reader(scene: Scene) -> None:
    scene.streams = ["null", "slow", "slow"]
    if scene.agent.kind != "gemini":
        scene.noise = NOISE


def set_clock(scene: Scene) -> None:
    moment = time.time() + scene.chance.uniform(0, 2)
    seconds = scene.chance.choice([-1, 1]) * scene.chance.choice([2, 3600, 86400 * 400])
    scene.env["CHAOS_CLOCK"] = f"{moment},{seconds}"
    scene.env["PYTHONPATH"] = f"{CLOCK}{os.pathsep}{scene.env['PYTHONPATH']}"


FAULTS: dict[str, Fault] = {
    "kill agent": Fault(strike=kill_agent),
    "kill corral": Fault(strike=kill_corral),
    "kill agent host": Fault(strike=kill_host, surfaces=DURABLE),
    "stop agent": Fault(prepare=_expect_silence, strike=stop_agent),
    "full disk": Fault(
        strike=fill_disk,
        lift=empty_disk,
        needs_namespace=True,
        mount=_mount_disk,
        is_possible=namespace.is_allowed,
    ),
    "no descriptors": Fault(limit_descriptors, take_descriptors, return_descriptors),
    "no processes": Fault(
        limit_processes,
        take_processes,
        return_processes,
        needs_namespace=os.getuid() != 0,
        is_possible=ProcessLimit.is_possible,
    ),
    "read-only home": Fault(
        _protect_home,
        make_home_read_only,
        make_home_writable,
        needs_namespace=True,
        is_possible=namespace.is_allowed,
    ),
    "missing home": Fault(
        remove_home,
        lose_home,
        restore_home,
        needs_namespace=True,
        is_possible=namespace.is_allowed,
    ),
    "closed streams": Fault(close_streams),
    "slow reader": Fault(slow_reader),
    "clock jump": Fault(set_clock),
}
NO_FAULT = Fault()
