"""Where the headless Gemini CLI may write, as patterns over the arguments of a call.

The CLI itself keeps its tools inside the workspace and the included folders, after links are
resolved. Everything narrower is a rule of corral, and a rule sees the path as the model wrote it:

- The tool decodes ``%xx``, removes NULs and a leading ``@``, and searches the included folders
  and all subfolders for a relative path of ``replace`` that does not exist. Such paths are denied.
- A link is followed after the rules have seen the path. A path with the name of a link that leads
  to where the agent may not write (``LaunchContext.links``) is denied, wherever the name is:
  the link may be reached through another link.
- Protected names (``corral.core.protected_paths``) are denied at any depth, in any case.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from string import ascii_letters

from corral.agents.spec import LaunchContext
from corral.core.protected_paths import globs
from corral.core.quoting import json_pattern
from corral.errors import PolicyNotEnforceable

PATH = r'\x00"file_path":"'
LONGEST_PATTERN = 2048
"""The CLI drops a rule with a longer one."""
OWN_SETTINGS = PATH + r'(|[^\x00]*/)\.gemini[/"]'
REWRITTEN = (PATH + r"[^\x00]*%[0-9A-Fa-f][0-9A-Fa-f]", PATH + r"[^\x00]*\\u0000")
"""Paths that the tool changes after the rules have seen them."""
UNUSUAL = (PATH + r"[^\x00]*\\", PATH + "@", PATH + r'(|[^\x00]*/)\.\.[/"]')
"""A character that JSON escapes, a leading ``@``, and a parent folder."""
RELATIVE = PATH + r"([^/A-Za-z]|[A-Za-z][^:])"


def allowed(writable: Sequence[str], place: LaunchContext) -> Iterator[str]:
    """Patterns of the paths in the workspace and the writable folders."""
    yield rf'{PATH}{_roots(writable, place)}/[^\x00\\]*"\x00'
    yield rf'{PATH}[^/\x00\\][^\x00\\]*"\x00'


def protected(writable: Sequence[str], place: LaunchContext) -> Iterator[str]:
    """Patterns of the paths with a protected name below a folder that may be written. The
    workspace itself may have such a name above it."""
    names = [
        glob.removeprefix("**/").replace(".", r"\.").replace("*", r"[^/\x00]*")
        for glob in globs(below=False, any_case=True)
    ]
    yield from _chunked(rf"{PATH}(?!/)(|[^\x00]*/)", names)
    yield from _chunked(rf"{PATH}{_roots(writable, place)}/(|[^\x00]*/)", names)


def _roots(writable: Sequence[str], place: LaunchContext) -> str:
    folders = (place.cwd, *(os.path.join(place.cwd, name) for name in writable))
    roots = dict.fromkeys(name for f in folders for name in (f, os.path.realpath(f)))
    return "(" + "|".join(json_pattern(os.path.normpath(root).rstrip("/")) for root in roots) + ")"


def through_links(place: LaunchContext) -> Iterator[str]:
    """Patterns of the paths that have the name of a link that leads out.

    Raises ``PolicyNotEnforceable`` where not all links could be found."""
    if not place.links.complete:
        raise PolicyNotEnforceable(
            "the workspace has too many files to find the links that lead out of it,"
            " and the Gemini CLI writes through them",
            hint="Use gemini-acp, which asks before it writes, or deny writing.",
            phase="config",
        )
    names = {os.path.basename(link.path) for link in place.links.found}
    # A path with a character that JSON escapes is denied in any case.
    yield from _chunked(rf"{PATH}(|[^\x00]*/)", sorted(map(_any_case, names)))


def _chunked(prefix: str, names: Iterable[str]) -> Iterator[str]:
    """``prefix(name|name)[/"]``, in as many patterns as their length demands."""
    chunk: list[str] = []
    size = room = LONGEST_PATTERN - len(prefix) - len('()[/"]')
    for name in names:
        if chunk and len(name) + 1 > size:
            yield f'{prefix}({"|".join(chunk)})[/"]'
            chunk, size = [], room
        chunk.append(name)
        size -= len(name) + 1
    if chunk:
        yield f'{prefix}({"|".join(chunk)})[/"]'


def _any_case(name: str) -> str:
    return "".join(
        f"[{c.lower()}{c.upper()}]" if c in ascii_letters else json_pattern(c) for c in name
    )
