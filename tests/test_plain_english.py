"""Documentation is written in plain technical English: short sentences, the field's own words.

``BANNED`` lists words and phrases that texts of this project have had, each with what to write
instead. ``GLOBS`` says which files are checked; extend both lists. A pattern is a regular
expression. It ignores case, a space in it also matches a line break, and code is not searched:
inline code in a text; in Python everything except comments, strings and names of tests. The
patterns are narrow, so that ordinary English passes: "hands over" is banned, "hand-written" is not.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent

import click
import pytest

from corral._cli.main import command

ROOT = Path(__file__).parents[1]

GLOBS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "examples/*",
    "benchmarks/*.md",
    "benchmarks/**/*.py",
    "benchmarks/programs/*.sh",
    "Makefile",
    "src/corral/.agents/**/*.md",
    "src/corral/_pipelines/starters/*.dot",
    "src/corral/_workflows/starters/*.py",
    "src/corral/_agents/**/*.py",
    "src/corral/_models/**/*.py",
    "src/corral/_inference/**/*.py",
    "src/corral/_pipelines/**/*.py",
    "tests/agents/**/*.py",
    "tests/models/**/*.py",
    "tests/inference/**/*.py",
    "src/corral/_cli/**/*.py",
    "src/corral/providers/*.py",
    "tests/cli/**/*.py",
    "tests/providers/*.py",
    "tests/pipelines/**/*.py",
)
"""Files that are checked completely."""
CODE_GLOBS = ("src/**/*.py", "tests/**/*.py")
"""Files of which the comments, the docstrings and the names of tests are checked: other strings are
data, or messages that have their own test."""

IT_IS = r"\b(?:is|are|was|were|be|been)"

PROSE = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

BANNED: tuple[tuple[str, str], ...] = (
    # Reporting.
    (rf"{IT_IS} told\b(?! (?:apart|by))", "is reported, is given, is an error"),
    (r"\btold as\b|\bas told\b|\bwhere told\b|\btells? (?:no|of)\b", "report"),
    (r"\bsays? so (?:itself|themselves)\b|\bsaid by\b", "reports"),
    (r"\bwithout a word\b", "silently"),
    # Repair, completeness, repetition.
    (r"\bmend(?:s|ed|ing)?\b", "fix"),
    (r"\b(?:arrives?|takes?|takes it|written|read|replaced|is|are|runs?) whole\b", "complete"),
    (r"\b(?:begins?|begun|makes?|made|compiled?|writes?|started) anew\b", "again"),
    (r"\bbegun\b", "started"),
    # Permission.
    (r"\b(?:get|gets|got|given|gives|no|needs no|is|for|further) leave\b", "permission"),
    (r"\bleave (?:for a|to (?:run|write|use|read|do))\b", "permission"),
    # Secrets.
    (r"\bstr(?:uck|ike|ikes|iking) out\b", "redacted"),
    # Agents and processes.
    (
        r"\ban? (?:object|line|event|value|edge|file|idea|row) a (?:line|floor|file|prompt)\b",
        "one per line",
    ),
    (r"\bof ours\b|\bof its own accord\b", "corral's"),
    # Metaphors.
    (r"\bthe house\b|\bmap of the house\b", "the source tree"),
    (r"\bfloors?\b", "layer"),
    (r"\bdoors?\b", "function, API"),
    (r"\bdesks?\b", "resources"),
    (r"\b(?:by|in|with|of) (?:the )?hands\b|\bhands (?:over|in|out)\b", "passes, submits"),
    (r"\bdiar(?:y|ies)\b", "history"),
    (r"\btongues?\b", "language"),
    (r"\bmanners\b", "quirks"),
    (r"\boddit(?:y|ies)\b", "differences, malformed input"),
    (r"\bthe laws\b", "guarantees"),
    # Archaic or unclear grammar.
    (
        r"\bnobody knows of\b|\bnot to be had\b|\bcannot be had\b|\bthat cannot be\b(?=\s*[.,;:)])",
        "is unknown, is invalid",
    ),
    (r"(?<!there\s)\b(?:is|are) (?-i:none)\b(?! of)", "is invalid"),
    (r"\ban? [\w-]+ of (?:its|their|his|one's) own\b", "its own ..."),
    (r"\bat the most\b", "at most"),
    (r"\bnobody (?:can|to ask|is asked|reads|answers)\b", "no one can, there is no one to"),
)
"""(pattern, what to write instead)"""
NAMES_ONLY = (
    *("again", "fate", "hands", "heard", "keeper", "kids", "last_will", "ledger", "line_ear"),
    *("own_line", "said", "tape", "tell_all", "told", "undertaker", "untold", "whole", "zygote"),
)
"""What no module, class, function, parameter or variable may have as its name, beside the phrases
of ``BANNED``: plain words in a text."""

PATTERNS = tuple(
    (re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), use) for pattern, use in BANNED
)
_STARTS = [re.sub(r"(^|\|)\\b", r"\1", found.pattern) for found, _ in PATTERNS]
ANY = re.compile(rf"\b(?:{'|'.join(_STARTS)})")
"""All patterns at once, for text in lower case: several times faster. Each begins with a word."""
ROUGHLY = re.compile(
    r"""#.*|\btest_\w+|(?s:\"{3}(?:[^"\\]|\\.|"(?!""))*\"{3})|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
)
"""Comments, names of tests and strings of Python code. ``tokenize`` is exact and takes 20 times as
long, so it reads only files in which these have a banned phrase."""


def prose(path: Path) -> str:
    """The text of a file, with code blanked; the lines stay as they are.

    In Python that leaves comments, strings and the names of tests, as words.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = python_prose(text) if may_be_banned(text) else ""
    return re.sub(r"(`+)[^`\n]*\1", lambda found: "_" * len(found[0]), text)


def may_be_banned(text: str) -> bool:
    """Whether Python code has a banned phrase in what looks like a comment, a string or the name
    of a test."""
    words = "\n".join(ROUGHLY.findall(text)).lower()
    return ANY.search(words.replace("_", " ")) is not None


def python_prose(text: str) -> str:
    lines = [""] * (text.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        words = token.string
        if token.type == tokenize.NAME and words.startswith("test_"):
            words = words.replace("_", " ")
        elif token.type not in PROSE:
            continue
        for number, line in enumerate(words.splitlines(), token.start[0] - 1):
            lines[number] += f" {line}"
    return "\n".join(lines)


def findings(text: str) -> Iterator[str]:
    if not ANY.search(text.lower()):
        return
    for pattern, use in PATTERNS:
        for found in pattern.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"line {line}: {' '.join(found[0].split())!r}; write: {use}"


def files() -> list[Path]:
    return sorted({path for each in GLOBS for path in ROOT.glob(each) if path.is_file()})


def code_files() -> list[Path]:
    found = {path for each in CODE_GLOBS for path in ROOT.glob(each)}
    return sorted(found - {Path(__file__).resolve()})


def documentation(text: str) -> str:
    """The comments, the docstrings and the names of tests in Python code, on their lines."""
    lines = [""] * (text.count("\n") + 1)
    tree = ast.parse(text)
    docstrings = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        words = token.string
        if token.type == tokenize.NAME and words.startswith("test_"):
            words = words.replace("_", " ")
        elif token.type != tokenize.COMMENT and token.start not in docstrings:
            continue
        for number, line in enumerate(words.splitlines(), token.start[0] - 1):
            lines[number] += f" {line}"
    return re.sub(r"(`+)[^`\n]*\1", lambda found: "_" * len(found[0]), "\n".join(lines))


@pytest.mark.spine
def test_comments_docstrings_and_test_names_have_no_banned_phrase() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in code_files()}
    found = [
        f"{path.relative_to(ROOT)}: {each}"
        for path, text in texts.items()
        if may_be_banned(text)
        for each in findings(documentation(text))
    ]
    assert found == []


NAMES = (
    *(found.pattern for found, _ in PATTERNS),
    *(rf"\b{name.replace('_', ' ')}\b" for name in NAMES_ONLY),
)
BANNED_NAME = re.compile("|".join(NAMES), re.IGNORECASE)


@cache
def is_banned_name(name: str) -> bool:
    return BANNED_NAME.fullmatch(name.strip("_").replace("_", " ")) is not None


def may_have_banned_name(text: str) -> bool:
    """Whether a word outside of comments and strings is a banned name: parsing takes longer."""
    return any(map(is_banned_name, {*re.findall(r"[A-Za-z_]\w*", ROUGHLY.sub(" ", text))}))


def assigned_names(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


@pytest.mark.parametrize(
    "code", ["def _Said(): ...", "class Door: ...", "x.__tape = 1", "told = 2", "struck_out = 3"]
)
def test_a_banned_name_is_found(code: str) -> None:
    assert may_have_banned_name(code)
    assert any(map(is_banned_name, assigned_names(ast.parse(code))))


@pytest.mark.spine
def test_no_module_class_function_parameter_or_variable_has_a_banned_name() -> None:
    found: list[str] = []
    for path in code_files():
        text = path.read_text(encoding="utf-8")
        names = {path.stem} if path.is_relative_to(ROOT / "src") else set[str]()
        if may_have_banned_name(text):
            names |= assigned_names(ast.parse(text))
        found += [
            f"{path.relative_to(ROOT)}: {name}" for name in sorted(names) if is_banned_name(name)
        ]
    assert found == []


def test_no_file_has_a_banned_phrase() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {each}" for path in files() for each in findings(prose(path))
    ]
    assert found == []


def messages(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string in a source that people may read: no docstring, no bare word."""
    one_string = re.sub(r"""(?<!"")["'][\s\\]+[rf]*["'](?!"")""", "", text).replace("\\n", " ")
    if not may_be_banned(one_string):
        return  # parsing takes longer
    tree = ast.parse(text)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in alone:
            continue
        if isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


@pytest.mark.spine
def test_messages_in_the_sources_have_no_banned_phrase() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {each.partition(': ')[2]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in messages(path.read_text(encoding="utf-8"))
        for each in findings(text)
    ]
    assert found == []


def helps(group: click.Group, path: str = "corral") -> Iterator[tuple[str, str]]:
    """Every command with its ``--help``."""
    yield path, group.get_help(click.Context(group, info_name=path))
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from helps(found, f"{path} {name}")
        else:
            yield f"{path} {name}", found.get_help(click.Context(found, info_name=name))


@pytest.mark.parametrize(
    ("name", "text"), [*helps(command)], ids=lambda each: each if len(each) < 40 else "help"
)
def test_a_help_text_has_no_banned_phrase(name: str, text: str) -> None:
    assert [*findings(text)] == [], name


@pytest.mark.parametrize("glob", GLOBS)
def test_every_glob_finds_files(glob: str) -> None:
    assert any(ROOT.glob(glob))


@pytest.mark.parametrize(
    "text",
    [
        "A call is told once, with its result.",
        "A refused key is\ntold as such.",
        "Mend the file.",
        "It gave up when it got no leave.",
        "The file is read whole.",
        "Secrets are struck out.",
        "The map of the house.",
        "A condition of the graph is none.",
    ],
)
def test_a_phrase_is_found(text: str) -> None:
    assert [*findings(text)]


@pytest.mark.parametrize(
    "text",
    [
        "Leave the loop early only inside aclosing.",
        "The complete process tree ends; the whole file is read.",
        "A hand-written parser that handles errors.",
        "Two workers cannot be told apart.",
        "Leaving the block ends the agent.",
        "`shape=house` and ``doors`` are code.",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert [*findings(re.sub(r"`+[^`\n]*`+", "", text))] == []


def test_python_is_searched_in_comments_strings_and_test_names() -> None:
    source = """
        def test_a_key_is_told_as_such(doors):  # mend it
            'it is told'
            doors.desk = None
    """
    assert may_be_banned(source)
    found = [*findings(python_prose(dedent(source)))]
    assert len(found) == 4, found
    assert {each.partition(":")[0] for each in found} == {"line 2", "line 3"}


def test_documentation_is_searched_without_the_data() -> None:
    source = """
        def test_a_key_is_told_as_such():  # mend it
            'it is told'
            return 'echo begun'
    """
    found = [*findings(documentation(dedent(source)))]
    assert len(found) == 4, found
    assert {each.partition(":")[0] for each in found} == {"line 2", "line 3"}


@pytest.mark.parametrize(
    ("code", "may_be"),
    [
        ("x = 1  # mend it", True),
        ("def test_x_is_told_as_such(): ...", True),
        ('"""A line.\n\n    It says "so" and is begun\n    anew."""', True),
        ("x = f'{y} # no comment'\nat_the(most=1)", False),
        ("mend = door.desk  # plain", False),
        (r"x = r'\'; mend it'", True),
    ],
)
def test_a_file_is_read_exactly_if_a_phrase_may_be_in_its_prose(code: str, may_be: bool) -> None:
    assert may_be_banned(code) is may_be
