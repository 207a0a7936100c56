"""A command of corral in a background process: what ``corral view`` starts on request."""

from __future__ import annotations

import contextlib
import os
import sys


def main(lock: str, *words: str) -> None:
    """Run a command. Its output is the process's log, which is removed if it succeeds."""
    from corral._cli.main import main as run

    sys.argv[:] = ["corral", *words]
    code: object = 1
    try:
        run()
    except SystemExit as end:
        code = end.code
        raise
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)
        if code in (0, None):
            with contextlib.suppress(OSError):
                os.unlink(lock.removesuffix(".lock") + ".log")
