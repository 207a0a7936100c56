"""The public modules of corral: those without a leading underscore in their path."""

from __future__ import annotations

from pathlib import Path

import corral

SOURCE = Path(corral.__file__).parent


def public_modules() -> list[str]:
    paths = (path.relative_to(SOURCE).with_suffix("") for path in SOURCE.rglob("*.py"))
    names = (".".join(("corral", *path.parts)).removesuffix(".__init__") for path in paths)
    return sorted(name for name in names if "._" not in name)
