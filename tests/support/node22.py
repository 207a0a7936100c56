"""A Node that has the compile cache: ``make agents`` installs it beside the system's own."""

from __future__ import annotations

from pathlib import Path

import pytest

_FOUND = sorted((Path(__file__).parents[2] / "tools/node/node_modules").glob("*/bin/node"))
needs_node22 = pytest.mark.skipif(
    not _FOUND, reason="Node 22 is not installed (make tools/node/node_modules/.ready)"
)


def node22_folder() -> str:
    """The folder to put on PATH."""
    return str(_FOUND[0].parent)
