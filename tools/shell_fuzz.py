"""Runs generated commands that allow rules accept in real shells, and looks at what they did.

Each accepted command is run by the shell with an empty PATH but for canaries. Canary programs
report their name and every argument. A report that is not one of the parsed simple commands, a
changed PATH or a file in the working directory is an evasion.

On demand, with as many commands as wanted::

    python tools/shell_fuzz.py 1000000 [SEED]
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from corral._core.shell_patterns import SimpleCommand, parse
from corral._core.shell_patterns import accepts as accepted_by

SHELLS = ("bash", "dash")
CANARIES = ("g", "h", "evil", "a")
"""Names of programs. Nothing else is on the PATH."""

WORDS = [
    *(
        "g",
        "h",
        "evil",
        "a",
        "x",
        "-v",
        "-n",
        "-c",
        "--",
        "-",
        "1",
        "a.b",
        "x/y",
        "HEAD~1",
        "@",
        "+",
    ),
    *(
        "a=b",
        "PATH=.",
        "a[0]=1",
        "BASH_ENV=e",
        "a:b",
        "%s",
        "%n",
        "%d",
        "%ln",
        "evil%n",
        "PATH",
        "IFS",
    ),
    *("''", '""', "'x y'", '"x y"', "'evil'", '"evil"', "'$(evil)'", "'`evil`'", "'a[$(evil)]'"),
    *("'a[`evil`]'", "'; evil'", '"; evil"', "'\\n'", "'%s\\n'", "'a'\"b\"c", "'#'", '"#"', "'!'"),
    *("'x=$(evil)'", "'-v'", "'é→'", '"é"', "'*'", '"*"', "'~'", "'{a,b}'", "'<(evil)'", "'\\'"),
]
BUILTINS = [
    *(
        "echo",
        "printf",
        "test",
        "cd",
        "true",
        "false",
        ":",
        "pwd",
        "type",
        "umask",
        "exit",
        "times",
    ),
    *(
        "break",
        "continue",
        "eval",
        "command",
        "exec",
        "builtin",
        "unset",
        "read",
        "export",
        "local",
    ),
    *(
        "declare",
        "typeset",
        "readonly",
        "let",
        "set",
        "shift",
        "source",
        ".",
        "trap",
        "wait",
        "hash",
    ),
    *(
        "alias",
        "unalias",
        "getopts",
        "mapfile",
        "enable",
        "shopt",
        "compgen",
        "complete",
        "jobs",
        "fc",
    ),
    *(
        "help",
        "return",
        "time",
        "coproc",
        "function",
        "if",
        "then",
        "while",
        "do",
        "for",
        "case",
        "[",
    ),
    *(
        "[[",
        "!",
        "{",
        "select",
        "until",
        "in",
        "readarray",
        "caller",
        "dirs",
        "pushd",
        "popd",
        "bind",
    ),
]
GLUE = [" && ", " || ", " | ", "; ", ";", "&&", "||", "|"]
HOSTILE = [
    *(
        "\n",
        "\nevil",
        "\revil",
        "\t",
        "\x0b",
        "\x0c",
        "\x01",
        "\x7f",
        "\x85",
        "\xa0",
        "\u2028",
        "\\\n",
    ),
    *(
        "#",
        " #",
        " # '",
        "#'",
        "\nevil #'",
        "$(evil)",
        "`evil`",
        "${x:-$(evil)}",
        "$((a[$(evil)]))",
    ),
    *("$[a[$(evil)]]", "$'\\nevil'", '$"evil"', '$"', "$'", "$", "$x", "${", "}", "$(", "((", "))"),
    *(
        "<(evil)",
        ">(evil)",
        ">x",
        ">>x",
        "<x",
        "<<x",
        "<<<x",
        "2>&1",
        "&>x",
        ">|x",
        "<>x",
        "&",
        " & evil",
    ),
    *(
        "|&",
        ";;",
        ";&",
        "(evil)",
        "{ evil; }",
        "{evil,}",
        "\\",
        "\\;",
        "\\'",
        '\\"',
        "~",
        "~+",
        "!",
        "!!",
    ),
    *(
        "^",
        "*",
        "?",
        "[a]",
        "[[",
        "]]",
        "'",
        '"',
        "''",
        "`",
        "evil",
        "x() { evil; }",
        "x()",
        "=",
        "=evil",
    ),
    *(
        '"a[\\$""(evil)]"',
        "'a[$'\"(evil)]\"",
        '"$"(evil)',
        "@(evil)",
        "+(x)",
        "!(x)",
        "a=(evil)",
        "a+=x",
    ),
    *(
        "PATH=. ",
        "a[$(evil)]=1 ",
        "time ",
        "! ",
        "exec ",
        "eval ",
        "if evil; then ",
        "coproc evil ",
        "%%",
    ),
]


def generated(count: int, seed: int) -> Iterator[str]:
    """Lines of the grammar, half of them with hostile insertions."""
    pick = random.Random(seed)
    for _ in range(count):
        line = _line(pick)
        for _ in range(pick.choice((0, 0, 1, 1, 2, 3))):
            line = _mutated(line, pick)
        yield line


def _line(pick: random.Random) -> str:
    parts: list[str] = []
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        first = pick.choice(BUILTINS) if pick.random() < 0.4 else pick.choice(CANARIES)
        words = [pick.choice(WORDS) for _ in range(pick.randrange(5))]
        parts.append(pick.choice((" ", " ", " ", "  ", "\t")).join([first, *words]))
    line = parts[0]
    for part in parts[1:]:
        line += pick.choice(GLUE) + part
    return line


def _mutated(line: str, pick: random.Random) -> str:
    at = pick.randrange(len(line) + 1)
    match pick.randrange(6):
        case 0:
            return line[:at] + line[at + 1 :]
        case 1:
            return line[:at] + pick.choice(line or " ") + line[at:]
        case 2:
            return line[:at] + pick.choice(WORDS) + line[at:]
        case 3:
            end = pick.randrange(at, len(line) + 1)
            return line[:at] + pick.choice(HOSTILE) + line[end:]
        case 4:
            return (
                pick.choice(HOSTILE) + line if pick.random() < 0.5 else line + pick.choice(HOSTILE)
            )
        case _:
            return line[:at] + pick.choice(HOSTILE) + line[at:]


def accepted(command: str) -> tuple[SimpleCommand, ...] | None:
    """The simple commands of a line that the widest rule accepts."""
    parts = parse(command)
    if parts is None or not all(accepted_by("*", part) for part in parts):
        return None
    return parts


PRELUDE = """\
exec 9>>"$1"
run() {
  (
    { eval "$1"; } </dev/null >/dev/null 2>&1
    case $PATH in "$KEPT") ;; *) printf 'PATH changed\\0' >&9 ;; esac
  )
  printf '\\n\\n\\0' >&9
}
"""
PRELUDE_EXACT = """\
exec 9>>"$1"
run() {
  "$KEPT_SHELL" -c "$1" </dev/null >/dev/null 2>&1
  printf '\\n\\n\\0' >&9
}
"""
FUNCTION = """\
%s() { printf '%%s\\0' "$#" %s "$@" >&9; }
"""


def run_in(shell: str, commands: list[str], *, exact: bool = False) -> list[list[list[str]]]:
    """What each command executed: the name and arguments of every canary. ``exact`` starts the
    shell with ``-c`` for each; otherwise one process evaluates all of them."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "bin").mkdir()
        (root / "cwd").mkdir()
        log = root / "log"
        for name in CANARIES:
            canary = root / "bin" / name
            canary.write_text(f'#!/bin/dash\nprintf \'%s\\0\' "$#" {name} "$@" >> {log}\n')
            canary.chmod(0o755)
        program = f"/bin/{shell}"
        script = [PRELUDE_EXACT if exact else PRELUDE]
        if not exact:
            script += [FUNCTION % (name, name) for name in CANARIES]
        script += ["run '" + command.replace("'", "'\\''") + "'\n" for command in commands]
        (root / "script").write_text("".join(script), "utf-8")
        path = str(root / "bin")
        env = {
            "PATH": path,
            "KEPT": path,
            "KEPT_SHELL": program,
            "HOME": folder,
            "LC_ALL": "C.UTF-8",
        }
        argv = [program, str(root / "script"), str(log)]
        subprocess.run(argv, cwd=root / "cwd", env=env, check=True, stdin=subprocess.DEVNULL)
        if left := os.listdir(root / "cwd"):
            raise AssertionError(f"files were made by commands: {left}")
        records = log.read_bytes().decode("utf-8", "replace").split("\n\n\0")
    assert records.pop() == ""
    assert len(records) == len(commands), "a command ended the shell that ran it"
    return [_calls(record.split("\0")[:-1]) for record in records]


def _calls(fields: list[str]) -> list[list[str]]:
    calls: list[list[str]] = []
    while fields:
        if fields[0] == "PATH changed":
            calls.append(fields[:1])
            del fields[0]
            continue
        end = int(fields[0]) + 2
        calls.append(fields[1:end])
        del fields[:end]
    return calls


def evasions(
    shell: str,
    commands: list[str],
    *,
    exact: bool = False,
    judge: Callable[[str], tuple[SimpleCommand, ...] | None] = accepted,
) -> tuple[int, list[str]]:
    """How many of the commands were accepted and run, and those that ran anything else than the
    words that were parsed."""
    judged = [(command, parts) for command in commands if (parts := judge(command)) is not None]
    ran = run_in(shell, [command for command, _ in judged], exact=exact)
    found: list[str] = []
    for (command, parts), calls in zip(judged, ran, strict=True):
        left = [list(part.words) for part in parts]
        for call in calls:
            if call not in left:
                found.append(f"{shell}: {command!r} ran {call!r}")
                break
            left.remove(call)
    return len(judged), found


def main(count: int, seed: int, chunk: int = 5000) -> int:
    total = dict.fromkeys(SHELLS, 0)
    bad = 0
    for number, start in enumerate(range(0, count, chunk)):
        commands = list(generated(min(chunk, count - start), seed + number))
        for shell in SHELLS:
            ran, found = evasions(shell, commands)
            total[shell] += ran
            bad += len(found)
            for line in found:
                print(line, flush=True)
        if number % 20 == 19:
            print(f"{start + chunk} generated, run {total}, {bad} evasions", flush=True)
    print(f"{count} commands generated, accepted and run {total}, {bad} evasions")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
