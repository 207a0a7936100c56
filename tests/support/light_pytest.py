"""The command of a pytest that starts fast, for tests that run pytest as a program."""

from __future__ import annotations

import sys

_PLUGINS = ("cacheprovider", "hypothesispytest", "xdist", "xdist.looponfail", "anyio", "timeout")
LIGHT_PYTEST = [
    *(sys.executable, "-m", "pytest"),
    *(word for name in _PLUGINS for word in ("-p", f"no:{name}")),
]
"""Without the plugins of others, which take most of the time to start. Ours is found as always."""
