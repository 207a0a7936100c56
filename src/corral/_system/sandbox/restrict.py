"""Restricts itself to writing in some folders by Landlock, drops all capabilities, then executes a
program.

It is passed to Python as text. Arguments: the version of the kernel's interface, the number of
folders, the folders, the program and its arguments.
"""

import ctypes
import os
import struct
import sys

_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_VERSION = 0x20080522
_DROP_FROM_BOUNDING_SET = 24
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
# Write to a file, and remove or make any kind of entry in a folder (bits 1 and 4 to 12).
_WRITES = 0b1_1111_1111_0010
_MAKE_DEVICE = 1 << 6 | 1 << 11
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_ON_FILES = 0b10 | _TRUNCATE


def main() -> None:
    version, count = int(sys.argv[1]), int(sys.argv[2])
    folders, program = sys.argv[3 : 3 + count], sys.argv[3 + count :]
    try:
        _restrict(version, folders)
    except OSError as error:
        sys.exit(f"corral: cannot restrict writing by Landlock: {error.strerror}")
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"corral: cannot run {program[0]} in the sandbox: {error.strerror}")


def _restrict(version: int, folders: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(*arguments: object) -> int:
        result: int = libc.syscall(*arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    handled = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    rules = struct.pack("Q", handled)
    ruleset = call(_CREATE_RULESET, rules, len(rules), 0)
    for folder in folders:
        opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        allowed = handled & (~_MAKE_DEVICE if os.path.isdir(folder) else _ON_FILES)
        call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, opened), 0)
        os.close(opened)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    number = 0
    while libc.prctl(_DROP_FROM_BOUNDING_SET, number, 0, 0, 0) == 0:
        number += 1
    if os.geteuid() == 0:
        header = struct.pack("Ii", _CAPABILITIES_VERSION, 0)
        call(_CAPSET[os.uname().machine], header, bytes(24))


if __name__ == "__main__":
    main()
