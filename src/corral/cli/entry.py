"""The entry point of ``corral``. It loads nothing but what the command needs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A further prompt to a named session takes a short way, if it can."""
    if sys.argv[1:2] == ["run"] and "--session" in sys.argv:
        from corral.cli import warm_prompt

        code = warm_prompt.send(sys.argv[2:])
        if code is not None:
            sys.exit(code)
    from corral.cli.main import main as complete

    complete()
