"""The entry point of ``corral``."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading

from corral._cli.main import main as run_command


def main() -> None:
    """Run the command line. The process ends as Python does, but without freeing its memory object
    by object, which takes as long as a tenth of a short run."""
    if sys.getfilesystemencoding() != "utf-8":
        from corral._system.platform import restart_in_utf8

        restart_in_utf8()
    try:
        run_command()
    except SystemExit as end:
        if threading.active_count() > 1 or not isinstance(end.code, int):
            raise  # there are threads to wait for
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        with contextlib.suppress(OSError, ValueError):  # Python reports it
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # pyright: ignore[reportUnnecessaryComparison]
                    stream.flush()
            os._exit(end.code)
        raise
