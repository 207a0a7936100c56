"""A profile for macOS's ``sandbox-exec``. Untested: corral's tests run on Linux.

Everything is allowed but what the box restricts: writing outside its folders, reading the user's
home, the network but for the endpoints on this machine. Endpoints elsewhere cannot be named by host
in a profile, so with one of them outgoing connections to its port are allowed to any host.
"""

from __future__ import annotations

import json
import os

from corral.system.sandbox.box import TOOLCHAINS, Box, Wrapped

PROGRAM = "/usr/bin/sandbox-exec"


def profile(box: Box, home: str) -> str:
    """The profile; the last rule that matches wins."""
    lines = ["(version 1)", "(allow default)", "(deny file-write*)"]
    writable = [*box.writable, "/dev", "/private/tmp", "/private/var/folders"]
    lines += [_allow("file-write*", path) for path in writable]
    lines += [f"(deny file-write* (subpath {_quote(path)}))" for path in box.read_only]
    lines.append(f"(deny file-read* (subpath {_quote(home)}))")
    shown = [os.path.join(home, name) for name in TOOLCHAINS]
    lines += [_allow("file-read*", path) for path in (*shown, *box.readable, *box.writable)]
    lines += [f"(deny file-read* file-write* (subpath {_quote(path)}))" for path in box.hidden]
    if not box.network:
        lines.append("(deny network*)")
        for endpoint in box.endpoints:
            host = "localhost" if endpoint.is_local else "*"
            lines.append(f'(allow network-outbound (remote tcp "{host}:{endpoint.port}"))')
        if any(not endpoint.is_local for endpoint in box.endpoints):
            resolver = _quote("/private/var/run/mDNSResponder")
            lines.append(f"(allow network-outbound (literal {resolver}))")
    return "\n".join([*lines, ""])


def wrap(box: Box, home: str) -> Wrapped:
    return Wrapped(argv=(PROGRAM, "-p", profile(box, home)))


def _allow(operation: str, path: str) -> str:
    return f"(allow {operation} (subpath {_quote(os.path.realpath(path))}))"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
