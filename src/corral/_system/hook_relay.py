"""A program that an agent runs as its hook before a tool call: it passes the call on to corral.

``python hook_relay.py ADDRESS`` sends its stdin to corral, and prints what comes back, which is the
agent's own format. ADDRESS is a Unix socket, or a file that contains a TCP port of this machine and
a secret, which is sent first. If anything fails it prints the reason to stderr and exits with 2,
which agents take as a denial. Any other failure of a hook is permission for most agents, so the
command given to the agent ends in ``|| exit 2``.

It runs as a file, without site packages: a call of the agent waits for it.
"""

from __future__ import annotations

import os
import socket
import sys

DENY = 2


def relay(address: str, call: bytes) -> bytes:
    """The answer of corral. Raises ``OSError``, or ``EOFError`` if there is none."""
    if os.path.isfile(address):
        with open(address, encoding="ascii") as file:
            port, secret = file.read().split()
        connection = socket.create_connection(("127.0.0.1", int(port)))
        call = secret.encode() + b"\n" + call
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    with connection:
        connection.sendall(call)
        connection.shutdown(socket.SHUT_WR)
        pieces: list[bytes] = []
        while piece := connection.recv(65536):
            pieces.append(piece)
    if not pieces:
        raise EOFError("corral ended before it answered")
    return b"".join(pieces)


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    try:
        answer = relay(arguments[0], sys.stdin.buffer.read())
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()
    except Exception as error:
        print(f"the call was not shown to on_tool_call: {error}", file=sys.stderr)
        return DENY
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
