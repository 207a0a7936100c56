"""Surfaces that do what corral must not do, under the checks of ``chaos``.

    broken_surfaces.py FOLDER

Prints the verdict of each as a line of JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

from chaos.case import Case
from chaos.faults import NO_FAULT
from chaos.scene import Scene
from chaos.supervisor import in_fork, supervise
from chaos.surfaces import Run

BROKEN = """
import os, subprocess, sys, tempfile
subprocess.Popen(["sleep", "300"], env={}, start_new_session=True)
tempfile.mkstemp()
print('{"status": "success", "text": "the end"}')
"""


class BrokenRun(Run):
    """Claims a success, has written nothing, and leaves a process and a file behind."""

    def start(self, scene: Scene) -> None:
        scene.start(sys.executable, "-c", BROKEN)


class EndlessRun(Run):
    def start(self, scene: Scene) -> None:
        scene.start("sleep", "300")

    def wait(self, scene: Scene) -> int | None:
        return None


class SilentRun(Run):
    """Fails without a message."""

    def start(self, scene: Scene) -> None:
        scene.start("false")


def main(folder: Path) -> None:
    template = folder / "template"
    template.touch()
    for surface in (BrokenRun(), EndlessRun(), SilentRun()):
        place = folder / type(surface).__name__
        place.mkdir()
        case = Case("run", "none", False, 0, "seed")
        verdict = in_fork(
            lambda: supervise(case, surface, NO_FAULT, folder=place, template=template)  # noqa: B023
        )
        print(verdict.encode().decode(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
