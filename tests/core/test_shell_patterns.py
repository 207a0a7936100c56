"""Which commands the patterns of shell rules accept and find, also as regular expressions."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.stream_checks import no_deadline

from corral._core.shell_patterns import (
    MAX_LENGTH,
    allow_regex,
    covers,
    fits,
    matches,
    parse,
    split_commands,
)


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
def test_split_cuts_any_line_into_its_simple_commands(command: str, parts: list[str]) -> None:
    assert split_commands(command) == parts


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("git status", [["git", "status"]]),
        (" git\t \tlog  -n1 ", [["git", "log", "-n1"]]),
        ("git diff HEAD~1 a/b.c:d", [["git", "diff", "HEAD~1", "a/b.c:d"]]),
        ("echo 'a; $(b) \\ # !' \"c '&' d\"", [["echo", "a; $(b) \\ # !", "c '&' d"]]),
        ("echo a'b c'\"d e\"f ''", [["echo", "ab cd ef", ""]]),
        (
            "cd x && pytest -q | cat; true||ls",
            [["cd", "x"], ["pytest", "-q"], ["cat"], *[["true"], ["ls"]]],
        ),
        ("make CC=gcc --x=y", [["make", "CC=gcc", "--x=y"]]),
        ("git commit -m 'naïve → ok'", [["git", "commit", "-m", "naïve → ok"]]),
        ("./run.sh @file %x +y", [["./run.sh", "@file", "%x", "+y"]]),
    ],
)
def test_parse_reads_plain_words_and_operators(command: str, words: list[list[str]]) -> None:
    parts = parse(command)
    assert parts is not None
    assert [list(part.words) for part in parts] == words


REFUSED = [
    *("", " ", ";", "a;", "a;;b", "a &", "a && ", "&& a", "a |& b", "a ||| b", "a & b", "| a"),
    *("a\nb", "a\rb", "a\x0bb", "a\x00", "a \x1b[2J", "a\u2028b", "a\u00a0b", "a \ud800", "é a"),
    *("a # b", "a #", "#", "a 'b\nc'", "a '\t'", 'a "\n"', "a 'b", 'a "b', "a 'b'c'"),
    *("a $b", "a $(b)", "a `b`", 'a "$(b)"', 'a "$b"', 'a "`b`"', "a $[b]", "a $'b'", 'a $"b"'),
    *("a \\b", 'a "\\b"', "a b\\", "a {b,c}", "a *", "a ?", "a [b]", "a ~", "a ~b", "a b=~/c"),
    *("a !b", 'a "!b"', "! a", "a ^b", "a >b", "a <b", "a 2>&1", "a <<x", "a <(b)", "(a)", "a()"),
    *("a=b", "a=b c", "a+=b c", "a[1]=b c", "'a' b", '"a" b', "a'b' c", "=a", "a =b", "%1", "- a"),
    *("if a; then b; fi", "time a", "coproc a", "[[ a ]]", "{ a; }", "for a", "while a", "do a"),
    *("a; time b", "[ a ]", "a ~/b", "a :~", "-a", "@a", "+a", "a" * (MAX_LENGTH + 1)),
]


@pytest.mark.parametrize("command", REFUSED)
def test_parse_rejects_everything_else(command: str) -> None:
    assert parse(command) is None
    assert not covers("*", command)


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
        ("printf *", "printf '%s\\n' x"),
        ("printf *", "printf '100%% of %-5.2s: %d %.1f\\n' 1 2 3"),
        ("test *", "test -f x"),
        ("test *", "test 1 -eq 2 -a -f"),
        ("exit *", "exit 1"),
        ("cd *", "cd sub && cd .."),
        ("source .venv/bin/activate", "source .venv/bin/activate"),
        ("ls *.py > out", "x"),
        ("FOO=1 make test 2>&1", "FOO=1 make test 2>&1"),
    ],
)
def test_an_allow_pattern_accepts_what_it_names(pattern: str, command: str) -> None:
    assert covers(pattern, command) is (command != "x")


HOSTILE = [
    "git status; rm -rf /",
    "git status && rm -rf /",
    "git status || rm -rf /",
    "git status | sh",
    "git status & rm -rf /",
    "git status\nrm -rf /",
    "git status # '\nrm -rf / #'",
    "git status $(rm -rf /)",
    'git status "$(rm -rf /)"',
    "git status `rm -rf /`",
    "git status ${x:-`rm`}",
    "git status $[$(rm)]",
    "git status > /etc/passwd",
    "git status >> ~/.bashrc",
    "git status < /etc/shadow",
    "git status <(rm -rf /)",
    "git status $'; rm -rf /'",
    'git status "a[\\$""(rm)]"',
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


@pytest.mark.parametrize(
    "line", ["cd /tmp && ./x", "cd sub; bin/x y", "./x && cd .. && ./x", "pushd /tmp || x/y"]
)
def test_after_cd_a_program_with_a_relative_path_is_not_accepted(line: str) -> None:
    assert parse(line) is None
    assert parse(line.replace("./x", "/x").replace("bin/", "/").replace("x/y", "x")) is not None
    assert covers(line, line)


@pytest.mark.parametrize("command", HOSTILE)
@pytest.mark.parametrize("pattern", ["git status", "git *", "git status *"])
def test_an_allow_pattern_accepts_no_other_command(pattern: str, command: str) -> None:
    assert not covers(pattern, command)


@pytest.mark.parametrize(
    "command",
    [
        "printf -v 'a[$(id)]' x",
        "printf -vPATH x",
        "printf '-v' PATH x",
        "printf %n PATH",
        "printf 'abc%*n' 1 PATH",
        "printf %ln PATH",
        "printf %-5.3hhn PATH",
        *("printf %d 'path[$(id)]'", "printf %s%d x PATH=5", "printf '%*s' 'path[`id`]' x"),
        *("exit 'path[$(id)]'", "break 'path[$(id)]'", "continue PATH=5", "exit PATH"),
        *("test 1 -eq PATH=5", "test PATH=5 -lt 1", "test -t PATH=5", "test -f x -a 1 -ge PATH"),
        "test -v 'a[$(id)]'",
        "test -R 'a[`id`]'",
        *("eval id", "source x", ". x", "exec id", "command id", "builtin eval id", "trap id EXIT"),
        *("unset 'a[$(id)]'", "read 'a[$(id)]'", "declare 'a[$(id)]=1'", "let 'a[$(id)]'"),
        *("export PATH=.", "hash -p ./x git", "alias a=b", "enable -f x y", "mapfile -C id -c 1"),
        *("wait -p 'a[$(id)]'", "getopts a 'b[$(id)]'", "compgen -C id", "set -k", "shopt -s x"),
        *("jobs -x id", "fc -s", "bind -x x", "ulimit -v 1", "local 'a[$(id)]=1'", "typeset -i x"),
    ],
)
def test_a_star_accepts_no_builtin_that_evaluates_or_assigns(command: str) -> None:
    program = command.split(" ", maxsplit=1)[0]
    for pattern in (f"{program} *", f"{program}*", "*", f"{command}*"):
        assert not covers(pattern, command)
    assert covers(command, command) is ("*" not in command)


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
        "> log rm x",
        "2>/dev/null rm x",
        "echo $(rm x)",
        'echo "$(true; rm x)"',
        "echo `rm x`",
        'echo "`rm x`"',
        "cat <(rm x)",
        '"rm" x',
        "r'm' x",
        "\\rm x",
        "r\\\nm x",
        "time rm x",
        *("/bin/rm x", "'/bin/rm' x", "sudo rm x", "sudo -n env A=1 rm x", "timeout -k 5 10 rm x"),
        *("command rm x", "exec rm x", "eval 'rm x'", "bash -c 'rm x'", "/bin/sh -ec 'cd y; rm x'"),
        *("bash -c \"sh -c 'rm x'\"", "find . -exec rm {} +", "ls | xargs -0 rm", "nohup rm x &"),
        "! " * 2000 + "rm x",
    ],
)
def test_a_deny_pattern_finds_its_command_anywhere_in_the_line(command: str) -> None:
    assert matches("rm *", command)


@pytest.mark.parametrize("command", ["echo rm x", "echo 'a; rm x'", "rmdir x", "git rm x", ""])
def test_a_deny_pattern_ignores_other_commands(command: str) -> None:
    assert not matches("rm *", command)


def test_a_pattern_is_literal_text_except_for_stars() -> None:
    assert covers("ls a.b+[c]?", "ls a.b+[c]?")
    assert not covers("ls a.b", "ls axb")
    assert not covers("ls [ab]", "ls a")


def test_many_stars_and_long_texts_take_linear_time() -> None:
    """A backtracking matcher does not come to an end here."""
    long = "a " * (MAX_LENGTH // 2 - 1)
    for pattern in ("a *a*a*a*a*b", "*" * 1000 + "b", "a * " * 500 + "b", " *" * 5000):
        covers(pattern, long)
        matches(pattern, long)
        assert not fits("*" + pattern + "c", long * 10)
    for hostile in ("! ", "a=b ", "> ", "'", '"', "(", "`", "$(", "env ", "/", "\\", "sh -c '"):
        text = hostile * (MAX_LENGTH // len(hostile))
        covers("rm *", text)
        matches("rm *", text)


TEXTS = st.text(alphabet="ab *", max_size=12)


@no_deadline
@given(pattern=TEXTS, text=st.text(alphabet="ab ", max_size=12))
def test_patterns_fit_as_the_regular_expression_does(pattern: str, text: str) -> None:
    bare, end = (
        (pattern[:-2], "(?: .*)?") if pattern.endswith(" *") and pattern != " *" else (pattern, "")
    )
    regex = ".*".join(re.escape(piece) for piece in bare.split("*")) + end
    assert fits(pattern, text) is bool(re.fullmatch(regex, text))


COMMANDS = st.text(alphabet="gr m;&|$()`'\"\\<>\n={}!x*", max_size=24)


@no_deadline
@example(command=" g  g", pattern="g  g")
@given(command=COMMANDS, pattern=st.text(alphabet="grm *", min_size=1, max_size=6))
def test_any_text_can_be_checked_and_accepted_commands_are_found(
    command: str, pattern: str
) -> None:
    if covers(pattern, command):
        assert matches(pattern, command)


@no_deadline
@given(command=COMMANDS)
def test_the_parts_have_every_character_but_the_separators(command: str) -> None:
    kept = "".join(split_commands(command))
    for char in "grmx=*'\"\\<>$":
        assert kept.count(char) == command.count(char)


@no_deadline
@given(before=COMMANDS, tail=st.text(alphabet="abc ", max_size=5))
def test_no_accepted_line_has_an_unquoted_command_of_another_name(before: str, tail: str) -> None:
    """``evil`` is put where a shell would run it; no allow pattern for ``g`` may accept that."""
    for glue in (";", "&&", "|", "\n", "$(", "`", "&"):
        assert not covers("g *", f"g {before}{glue}evil {tail}") or _quoted(before)


def _quoted(text: str) -> bool:
    """Whether what follows the text stands inside quotes."""
    return "'" in text or '"' in text


PATTERNS = ["git *", "git log *", "npm run test:*", "make -C * all", "g -m * *", "cd *"]
NESTED_REPETITION = r"\([^)]*[*+?{].*\)[*+?{]"
"""What the Gemini CLI refuses."""


def accepted(pattern: str, command: str) -> bool:
    regex = allow_regex(pattern)
    assert regex is not None
    text = json.dumps(command, ensure_ascii=False)
    return re.fullmatch(f'"{regex}"', text) is not None


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("git status", "git status"),
        ("git *", "git"),
        ("git *", "git log --format=%H -- src/a.py"),
        ("git *", "git commit -m 'a; b | c (d)' -q"),
        ("git *", 'git commit -m "it\'s done" --author "a <b@c>"'),
        ("npm run test:*", "npm run test:unit"),
        ("make -C * all", "make -C sub/dir all"),
        ("ls | wc -l", "ls | wc -l"),
    ],
)
def test_plain_and_quoted_words_are_accepted(pattern: str, command: str) -> None:
    assert accepted(pattern, command)


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "g*t *",
        "a*",
        "eval *",
        "printf *",
        "test *",
        "time *",
        "'git' *",
        "a * * *",
        "git -m '*'",
    ],
)
def test_what_cannot_be_exact_has_no_expression(pattern: str) -> None:
    assert allow_regex(pattern) is None


@pytest.mark.parametrize("pattern", PATTERNS)
def test_there_is_no_nested_repetition(pattern: str) -> None:
    regex = allow_regex(pattern)
    assert regex is not None
    assert not re.search(NESTED_REPETITION, regex)


@no_deadline
@given(data=st.data(), pattern=st.sampled_from(PATTERNS))
def test_every_text_of_the_expression_is_accepted_by_the_pattern(
    data: st.DataObject, pattern: str
) -> None:
    regex = allow_regex(pattern)
    assert regex is not None
    text = data.draw(st.from_regex(f'"{regex}"', fullmatch=True))
    assert covers(pattern, json.loads(text))


SHELL_TEXT = st.text(alphabet="git ;&|$()`'\"\\<>\n={}!x*#~%", max_size=30)


@no_deadline
@given(command=SHELL_TEXT, pattern=st.sampled_from(PATTERNS))
def test_what_the_expression_accepts_the_pattern_accepts(command: str, pattern: str) -> None:
    line = pattern.replace("*", "").strip() + " " + command
    if accepted(pattern, line):
        assert covers(pattern, line)
