"""Golden files: stored output that a person has reviewed.

``UPDATE_GOLDENS=1`` rewrites them.
"""

from __future__ import annotations

import os
from pathlib import Path


def check_golden(path: Path, content: str) -> None:
    if os.environ.get("UPDATE_GOLDENS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    stored = path.read_bytes().decode() if path.exists() else None
    assert stored is not None, f"no golden file {path}: UPDATE_GOLDENS=1 writes it"
    assert content == stored, (
        f"{path.name} changed: if that is intended, run with UPDATE_GOLDENS=1 and read the diff"
    )
