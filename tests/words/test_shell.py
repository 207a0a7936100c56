"""Patterns over shell commands, read with suspicion."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import unhurried

from corral.shell import covers, glob_to_regex, matches, split


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("git status", ["git status"]),
        ("  git   status\t ", ["git status"]),
        ("a; b & c && d || e | f\ng", ["a", "b", "c", "d", "e", "f", "g"]),
        ("echo ';' \"a && b\" \\; c", ["echo ';' \"a && b\" \\; c"]),
        ("(cd x; rm y)", ["cd x", "rm y"]),
        ("{ rm y; }", ["rm y"]),
        ("echo $(rm x)", ["echo $", "rm x"]),
        ("echo `rm x` y", ["echo", "rm x", "y"]),
        ('echo "a $(true; rm x) b; c"', ['echo "a $', "true", "rm x", 'b; c"']),
        ("echo '$(rm x)' \"(rm y)\"", ["echo '$(rm x)' \"(rm y)\""]),
        ('echo "`rm "x y"`"', ['echo "', 'rm "x y"', '"']),
        ("diff <(rm x) y", ["diff <", "rm x", "y"]),
        (";;  ;", []),
        ("", []),
    ],
)
def test_a_line_is_cut_into_its_simple_commands(command: str, parts: list[str]) -> None:
    assert split(command) == parts


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git status", "git status"),
        ("git *", "git"),
        ("git *", "git push origin"),
        ("git push*", "git pushy"),
        ("*", "anything at all"),
        ("npm run test:*", "npm run test:unit -- --watch"),
        ("git status", "git   status"),
        ("git *", "git log | git diff-tree --stdin"),
        ("echo *", "echo 'a; b'"),
        ("echo *", 'echo "a && b"'),
        ("git status", "(git status)"),
    ],
)
def test_an_allow_pattern_covers_what_it_says(pattern: str, command: str) -> None:
    assert covers(pattern, command)


HOSTILE = [
    "git status; rm -rf /",
    "git status && rm -rf /",
    "git status || rm -rf /",
    "git status | sh",
    "git status & rm -rf /",
    "git status\nrm -rf /",
    "git status $(rm -rf /)",
    'git status "$(rm -rf /)"',
    "git status `rm -rf /`",
    "git status ${x:-`rm`}",
    "git status > /etc/passwd",
    "git status >> ~/.bashrc",
    "git status < /etc/shadow",
    "git status <(rm -rf /)",
    "git status $'; rm -rf /'",
    "git status \\\nrm",
    "PATH=/tmp/evil git status",
    "LD_PRELOAD=./evil.so git status",
    "GIT_SSH_COMMAND=./evil git status",
    "(git status; rm x)",
    "rm x; git status",
    "if git status; then rm x; fi",
    "xgit status",
    "/tmp/git status",
    "gitx",
    "",
    " ; ",
]


@pytest.mark.parametrize("command", HOSTILE)
@pytest.mark.parametrize("pattern", ["git status", "git *", "git status *"])
def test_an_allow_pattern_covers_nothing_that_hides_a_command(pattern: str, command: str) -> None:
    assert not covers(pattern, command)


@pytest.mark.parametrize(
    "command",
    [
        "rm",
        "rm -rf /",
        "  rm   -rf   /",
        "rm\t-rf /",
        "true; rm x",
        "true && rm x",
        "true | rm x",
        "true & rm x",
        "true\nrm x",
        "(rm x)",
        "{ rm x; }",
        "! rm x",
        "if true; then rm x; fi",
        "while true; do rm x; done",
        "for f in *; do rm $f; done",
        "A=1 rm x",
        "A='1 2' B=\"3 4\" C=5\\ 6 rm x",
        ">log rm x",
        "2>/dev/null rm x",
        "echo $(rm x)",
        'echo "$(true; rm x)"',
        "echo `rm x`",
        'echo "`rm x`"',
        "cat <(rm x)",
        '"rm" x',
        "r'm' x",
        "\\rm x",
        "time rm x",
    ],
)
def test_a_deny_pattern_finds_its_command_anywhere_in_the_line(command: str) -> None:
    assert matches("rm *", command)


@pytest.mark.parametrize("command", ["echo rm x", "echo 'a; rm x'", "rmdir x", "git rm x", ""])
def test_a_deny_pattern_leaves_other_commands_alone(command: str) -> None:
    assert not matches("rm *", command)


def test_a_pattern_is_text_but_for_its_stars() -> None:
    assert covers("ls a.b+[c]?", "ls a.b+[c]?")
    assert not covers("ls a.b", "ls axb")
    assert not covers("ls [ab]", "ls a")


COMMANDS = st.text(alphabet="gr m;&|$()`'\"\\<>\n={}!x*", max_size=24)


@unhurried
@given(command=COMMANDS, pattern=st.text(alphabet="grm *", min_size=1, max_size=6))
def test_any_text_at_all_can_be_judged(command: str, pattern: str) -> None:
    assert re.compile(glob_to_regex(pattern))
    if covers(pattern, command):
        assert matches(pattern, command)


@unhurried
@given(command=COMMANDS)
def test_the_parts_hold_every_character_but_the_separators(command: str) -> None:
    kept = "".join(split(command))
    for char in "grmx=*'\"\\<>$":
        assert kept.count(char) == command.count(char)


@unhurried
@given(before=COMMANDS, tail=st.text(alphabet="abc ", max_size=5))
def test_what_is_allowed_holds_no_denied_command_of_another_name(before: str, tail: str) -> None:
    """``evil`` is put where a shell would run it; no allow pattern for ``g`` may cover that."""
    for glue in (";", "&&", "|", "\n", "$(", "`", "&"):
        assert not covers("g *", f"g {before}{glue}evil {tail}") or _quoted(before)


def _quoted(text: str) -> bool:
    """Whether what follows the text stands inside quotes, or behind a backslash."""
    bare = re.sub(r"\\.", "", text, flags=re.DOTALL)
    return bare.endswith("\\") or "'" in bare or '"' in bare
