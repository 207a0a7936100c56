"""Wait until a file is saved."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from corral.system import platform

_FOLDER_ITSELF = 0x400 | 0x800 | 0x8000
"""The folder was removed, moved away, or can no longer be watched."""


class Watch:
    """``with Watch(folder, "answer.md") as watch:`` and then ``await watch.wait_saved(seconds)``.

    A file counts as saved when a writer closed it or when it was moved into place: then it is
    complete. Nothing runs in between, except for a check from time to time.
    """

    WITH_EVENTS = 60.0
    """Seconds between two checks if the kernel reports saves: on a network file system it reports
    only those made on this machine."""
    WITHOUT_EVENTS = 2.0
    """The same if the kernel cannot report saves."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = os.fsencode(name)
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._fd = -1

    @property
    def pause(self) -> float:
        """Seconds after which to check without a report."""
        return Watch.WITHOUT_EVENTS if self._fd < 0 else Watch.WITH_EVENTS

    def __enter__(self) -> Watch:
        with contextlib.suppress(OSError):  # not available: checks from time to time must do
            self._fd = platform.inotify_open()
            platform.inotify_saves(self._fd, self._folder)
            self._loop.add_reader(self._fd, self._ready.set)
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def wait_saved(self, seconds: float) -> bool:
        """True when the file was saved, or its folder is gone; False after ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self._ready.wait()
                    self._ready.clear()
                    if self._has_our_file():
                        return True
        except TimeoutError:
            return False

    def _has_our_file(self) -> bool:
        """Whether the reports of the kernel, all of which are read, are about our file."""
        found = False
        for _, mask, name in platform.inotify_events(self._fd):
            found = found or name == self._name or bool(mask & _FOLDER_ITSELF)
        return found
