"""The entry point of ``corral``."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from corral.cli.main import main as run_command


def main() -> None:
    """Run the command line."""
    try:
        run_command()
    except SystemExit as end:
        _end_process(end.code)
        raise


def _end_process(code: object) -> None:
    """End the process as Python does, but without freeing its memory object by object, which takes
    as long as a tenth of a short run. Returns if there are threads to wait for."""
    if threading.active_count() > 1 or not isinstance(code, int):
        return
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # pyright: ignore[reportUnnecessaryComparison]
                stream.flush()
    except (OSError, ValueError):
        return  # Python reports it
    os._exit(code)
