"""Names for files, branches and identifiers, made from any text."""

from __future__ import annotations

import re


def slug(text: str, *, limit: int, allowed: str = "", fill: str = "-", default: str = "") -> str:
    """Return ``text`` as a name of ASCII letters and digits, and characters of ``allowed``.

    Every other character becomes ``fill``. The name has at most ``limit`` characters and no
    ``fill`` or dot at its ends; if nothing is left it is ``default``. Different texts may get the
    same slug: add a hash where that matters.
    """
    name = re.sub(f"[^A-Za-z0-9{re.escape(allowed)}]", fill, text)
    return name.strip(f"{fill}.")[:limit].rstrip(f"{fill}.") or default
