"""Decide one tool call by the paths it names, as a hook that an agent runs before the call.

``python -m corral._system.hook_guard GUARD`` reads the call from stdin, as JSON in the form that
coding agents pass to their ``PreToolUse`` hooks. It exits with 0 if the call is allowed, or with 2
and a reason on stderr if it is denied. ``GUARD`` is JSON: the folders of the session (``Guarded``).

It is for agents whose own sandbox protects less than ``core.protected_paths`` names. It denies
what it does not understand: another tool, another form of the arguments, a patch that names no
file. An agent treats any other exit code, and a hook that cannot be started, as permission. So the
command given to the agent ends in ``|| exit 2``.
"""

from __future__ import annotations

import os
import re
import sys

import msgspec

from corral._system.path_guard import Access, PathGuard

ALLOW, DENY = 0, 2

_HEADER = re.compile(
    r"\*\*\*\s*(?:add\s+file|update\s+file|delete\s+file|move\s+to)\s*:(.*)", re.I | re.S
)
"""A line of a patch that names a file. Wider than any agent's parser: a line that only looks like
one is judged as well."""


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of a session, as ``PathGuard`` takes them."""

    cwd: str | None = None
    """None: the folder that the agent names, whose process has sessions in several folders."""
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


class HookCall(msgspec.Struct, frozen=True):
    """The tool call that the agent is about to make."""

    tool_name: str
    tool_input: dict[str, object]
    cwd: str | None = None


def refusal_reason(guarded: Guarded, call: HookCall) -> str | None:
    """Why the call is denied; None if it is allowed."""
    folder = guarded.cwd or call.cwd
    if not folder:
        return "the call does not name its working directory"
    guard = PathGuard(folder, guarded.readable, guarded.writable)
    access: Access
    match call.tool_name, call.tool_input:
        case "apply_patch", {"command": str(text)} | {"input": str(text)}:
            access, paths = "write", patched_paths(text)
        case "view_image", {"path": str(path)}:
            access, paths = "read", [path]
        case name, _:
            return f"the call cannot be checked: {name}"
    if not paths:
        return "the patch names no file"
    here = call.cwd or folder
    return guard.refusal([os.path.join(here, path) for path in paths], access)


def patched_paths(text: str) -> list[str]:
    """The files that a patch would change, in every reading of its lines."""
    headers = (_HEADER.match(line.strip()) for line in text.split("\n"))
    return [header[1].strip() for header in headers if header is not None]


def main(arguments: list[str]) -> int:
    """Return the exit code. Every failure is a denial."""
    try:
        guarded = msgspec.json.decode(arguments[0], type=Guarded)
        call = msgspec.json.decode(sys.stdin.buffer.read(), type=HookCall)
        why = refusal_reason(guarded, call)
    except Exception as error:
        why = f"the call cannot be checked: {error}"
    if why is None:
        return ALLOW
    print(f"refused by policy: {why}", file=sys.stderr)
    return DENY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
