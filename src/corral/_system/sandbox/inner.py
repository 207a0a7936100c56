"""The first program in the sandbox, which replaces itself with the agent.

It is passed to Python as text (``python -c``), because corral's own files need not exist inside. It
opens the listening sockets in the network of the sandbox and sends them to corral, which accepts
the connections outside. Then it closes everything of its own and executes the agent.

It imports only modules that are written in C: ``os`` and ``array`` would double its CPU time.

Arguments: a descriptor of a socket to corral, the number of addresses, the addresses
(``127.0.0.1:8080``), the program and its arguments.
"""

import _socket
import posix
import sys


def main() -> None:
    outside = _socket.socket(fileno=int(sys.argv[1]))
    count = int(sys.argv[2])
    listeners: list[_socket.socket] = []
    for address in sys.argv[3 : 3 + count]:
        host, port = address.split(":")
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(128)
        listeners.append(listener)
    numbers = b"".join(each.fileno().to_bytes(4, sys.byteorder) for each in listeners)
    outside.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    outside.close()
    for listener in listeners:
        listener.close()
    program = sys.argv[3 + count :]
    error = _execute(program)
    sys.exit(f"corral: cannot run {program[0]} in the sandbox: {error.strerror}")


def _execute(program: list[str]) -> OSError:
    """Execute the program, found as a shell finds it. Return the error if that is not possible."""
    folders = (
        [b""] if "/" in program[0] else posix.environ.get(b"PATH", b"/bin:/usr/bin").split(b":")
    )
    name = program[0].encode(sys.getfilesystemencoding(), "surrogateescape")
    result = OSError(2, "No such file or directory")
    for folder in folders:
        try:
            posix.execv(folder + b"/" + name if folder else name, program)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            result = error
    return result


if __name__ == "__main__":
    main()
