"""Golden files: what the code made once, read by a person in a diff.

``UPDATE_GOLDENS=1`` writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path


def check_golden(path: Path, content: str) -> None:
    if os.environ.get("UPDATE_GOLDENS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    known = path.read_bytes().decode() if path.exists() else None
    assert known is not None, f"no golden file {path}: UPDATE_GOLDENS=1 writes it"
    assert content == known, (
        f"{path.name} changed: if rightly so, UPDATE_GOLDENS=1 and read the diff"
    )
