"""Where the links of a tree lead: computed as the system does it, without the folder.

A link is followed where it stands, and ``..`` is the folder above the one that a link led to. So
``a/a/../../x`` may be outside of the tree though its text is not: if ``a`` is a link to ``.``.
"""

from __future__ import annotations

from collections.abc import Mapping

MOST_LINKS = 40
"""Links that are followed for one path, as by the kernel."""


def leads_to(path: str, links: Mapping[str, str]) -> str:
    """The path from the root of the tree that ``path`` leads to, ``""`` for the root. What is
    outside begins with ``/`` or ``../``. ``links``: their paths and their targets."""
    reached: list[str] = []
    pending = path.split("/")[::-1]
    followed = 0
    while pending:
        part = pending.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            if not reached:
                return f"../{'/'.join(pending[::-1])}"
            reached.pop()
            continue
        reached.append(part)
        target = links.get("/".join(reached))
        if target is None:
            continue
        followed += 1
        if target.startswith("/") or followed > MOST_LINKS:
            return "/".join((f"/{target.lstrip('/')}", *pending[::-1]))
        reached.pop()
        pending += target.split("/")[::-1]
    return "/".join(reached)
