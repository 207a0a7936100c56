"""The entry point of ``corral``. It loads nothing but what the command needs."""

from __future__ import annotations

import atexit
import os
import sys
import threading


def main() -> None:
    """Run the command line. A further prompt to a named session takes a short way, if it can."""
    if sys.argv[1:2] == ["run"] and "--session" in sys.argv:
        from corral.cli import warm_prompt

        code = warm_prompt.send(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    from corral.cli.main import main as complete

    try:
        complete()
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
