"""Run one case, in its own process, and check what became of it.

The supervisor adopts every orphan below it, so that no process of the case can get away. It starts
the subject, applies the fault at a random moment, waits for the end, continues what a crash
interrupted, and then looks for what is left.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from chaos import processes
from chaos.agents import ChaosAgent
from chaos.case import Case, Verdict
from chaos.faults import NO_FAULT, Fault
from chaos.scene import Scene
from chaos.surfaces import Surface
from support import namespace

DRAFT = re.compile(r"^\..*\.[0-9a-f]{8,12}$")
"""The name of a file that was to replace another one (``corral._system.fs``)."""
AT_ONCE = 0.5
"""Seconds for the kernel to end what was killed."""


def in_fork(work: Callable[[], Verdict]) -> Verdict:
    """The verdict of ``work``, which runs in a fork of this process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        # An interrupted run ends its processes, as every other does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            verdict = work()
        except BaseException:
            verdict = Verdict()
            verdict.false(f"the supervisor failed: {traceback.format_exc()}")
        os.write(writer, verdict.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        data = answers.read()
    os.waitpid(pid, 0)
    return Verdict.decode(data)


def supervise(
    case: Case,
    surface: Surface,
    fault: Fault,
    *,
    folder: Path,
    template: Path,
    agent: ChaosAgent | None = None,
    span: float = 1.0,
) -> Verdict:
    """Run the case in ``folder``. The moment of the fault is within the first ``span`` seconds.
    Changes the calling process; call it in a fork."""
    namespace.adopt_orphans()
    scene = Scene(case, folder, template, agent)
    for each in (scene.disk, scene.io):
        each.mkdir()
    if fault.needs_namespace:
        namespace.enter()
        fault.mount(scene)
    scene.create()
    fault.prepare(scene)
    mounts = _mounts()
    began = time.monotonic()
    try:
        _run(scene, surface, fault, span)
        _check_processes(scene, surface)
        if scene.verdict.has_struck:
            _check_files(scene)
        for line in _mounts() - mounts:
            scene.verdict.left(f"mount {line}")
    finally:
        processes.kill_all(os.getpid())
        if scene.process_limit is not None:
            _remove_limit(scene)
    scene.verdict.seconds = time.monotonic() - began
    return scene.verdict


def _run(scene: Scene, surface: Surface, fault: Fault, span: float) -> None:
    lifted: list[bool] = []

    def lift() -> None:
        if not lifted:
            lifted.append(True)
            fault.lift(scene)

    scene.lift = lift
    surface.start(scene)
    scene.verdict.has_struck = _strike(scene, fault, scene.chance.uniform(0, span))
    code = surface.wait(scene)
    if code is None:
        assert scene.subject is not None
        stacks = [processes.command_line(pid)[:150] for pid in processes.descendants(os.getpid())]
        scene.verdict.late(f"still running: {stacks}; {scene.text('stream-2')[-500:]}")
        processes.kill_all(os.getpid())
        return
    surface.check(scene, code)
    scene.verdict.succeeded = code == 0 and all(map(scene.is_done, surface.works))
    if fault is NO_FAULT and not scene.verdict.succeeded:
        scene.verdict.false(f"failed without a fault: {code} {scene.text('stream-2')[-500:]}")
    if surface.settles_in == 0 and not scene.was_killed:
        # Nothing may be left at the moment of its end. A zombie is not a process that runs.
        _check_processes(scene, surface)
    lift()
    surface.recover(scene)


def _strike(scene: Scene, fault: Fault, moment: float) -> bool:
    """Apply the fault; False if the subject was over before, or a worker's run."""
    assert scene.subject is not None
    begin = time.monotonic()
    while all(each.poll() is None for each in (scene.subject, *scene.others)):
        if time.monotonic() - begin >= moment and fault.strike(scene):
            return True
        time.sleep(0.003)
    return fault.strike is NO_FAULT.strike


def _check_processes(scene: Scene, surface: Surface) -> None:
    left = processes.wait_until_none(os.getpid(), surface.settles_in or AT_ONCE)
    if left:
        lines = [f"{pid} {processes.command_line(pid)[:200]}" for pid in left]
        scene.verdict.left(f"processes {lines}")


def _check_files(scene: Scene) -> None:
    for file in _files_below(scene.temporary):
        scene.verdict.left(f"temporary file {file}")
    for name in ("processes", "hosts"):
        for file in _files_below(scene.corral_home / name):
            scene.verdict.left(f"file {file}")
    for folder in (scene.corral_home, scene.workspace):
        for file in _files_below(folder):
            # Documented: a corral that is killed can leave a draft beside the file.
            if DRAFT.match(file.name) and not scene.was_killed:
                scene.verdict.left(f"draft {file}")


def _files_below(folder: Path) -> list[Path]:
    return [Path(where, name) for where, _, names in os.walk(folder) for name in names]


def _mounts() -> set[str]:
    """The id and the place of each mount."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {f"{line.split()[0]} {line.split()[4]}" for line in lines}


def _remove_limit(scene: Scene) -> None:
    assert scene.process_limit is not None
    for _ in range(100):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        with contextlib.suppress(OSError):
            scene.process_limit.remove()
            return
        time.sleep(0.02)
