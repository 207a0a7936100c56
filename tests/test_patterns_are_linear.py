"""No regular expression of corral takes longer than in proportion to its input.

Text of agents, models, tools, repositories and vendors reaches most patterns, and Python's ``re``
holds the interpreter while it matches: a quadratic pattern blocks the event loop, with all
deadlines. So every pattern in ``src/corral`` is found here, in the syntax trees, and is run over
inputs of doubling size that are made of its own parts (``support.pattern_inputs``).

Times are CPU times of this thread, the smallest of several, and are compared with each other only.
"""

from __future__ import annotations

import ast
import fnmatch
import functools
import importlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from support.pattern_inputs import Shape, shapes

from corral._agents import registry
from corral._agents.spec import AcpTransport
from corral._system.git.scan import IgnoreRule

IGNORED = tuple(IgnoreRule(each).source for each in (b"*a*a*b", b"?*[a-c]*x", b"a*", b"[!a]*b*"))
SOURCE = Path(__file__).parents[1] / "src"
SEARCHES = frozenset({"search", "sub", "subn", "split", "findall", "finditer"})
METHODS = SEARCHES | {"match", "fullmatch"}
CALLS = METHODS | {"compile"}

SMALLEST, LARGEST = 10, 2_560
"""Characters of the inputs."""
NOTICED = 0.001
"""Seconds from which the growth is looked at. A quadratic pattern takes longer for ``LARGEST``."""
GROWTH = 10
"""Of the time, over two doublings of the size: 4 if it is linear, 16 if it is quadratic."""


class Examples:
    """Patterns like those that are made, and how they are run."""

    def __init__(self, method: str, *patterns: str | bytes) -> None:
        self.method, self.patterns = method, [re.compile(each) for each in patterns]


BOUNDED = {
    "corral._agents.gemini.controls": "sees corral's own rules, of at most LONGEST_PATTERN",
}
"""Modules whose patterns need not be linear, with the reason."""
AUTHORS = "the pattern of a pipeline's author, over a value of the context (MAX_IN_CONTEXT)"
SCRIPT = "the pattern of a test's author, over a prompt of the test"
MADE: dict[tuple[str, str], str | Examples] = {
    ("corral._builtin.tools.search", "expression"): "runs in another process, which can be ended",
    ("corral._builtin.tools.search", "fnmatch.translate(part)"): Examples(
        "match", *map(fnmatch.translate, ("a*b", "*a*a*b", "?*?*?", "[a-c]*[!a]*x"))
    ),
    ("corral._docs.pages", "f'(?<![a-z0-9]){re.escape(begin)}{end}'"): Examples(
        "finditer", "(?<![a-z0-9])policy"
    ),
    ("corral._runs.redactor", r"re.escape(self._home) + b'(?![\\w.-])'"): Examples(
        "finditer", rb"/home/u(?![\w.-])"
    ),
    ("corral._pipelines.conditions", "text"): AUTHORS,
    (
        "corral._pipelines.execution.interviewers",
        r"f'{re.escape(name)}[:,.]?\\s+(?=\\S)'",
    ): Examples("match", r"yes[:,.]?\s+(?=\S)"),
    ("corral._pipelines.nodes.data", "node.text('pattern')"): AUTHORS,
    ("corral._pipelines.attempts", r"f'(?<![\\w./-]){re.escape(name)}(?![\\w-])'"): Examples(
        "finditer", r"(?<![\w./-])/app/sub(?![\w-])"
    ),
    ("corral._protocol.acp.conversation", "quirks.error_pattern"): Examples(
        "finditer",
        *{
            agent.transport.quirks.error_pattern
            for agent in registry.all_agents()
            if isinstance(agent.transport, AcpTransport)
        },
    ),
    ("corral._system.cassette.replay", "f'({forms})'"): Examples(
        "finditer", r"(/tmp/a|/tmp/a\-b|\\/tmp)"
    ),
    ("corral._core.shell_patterns", "regex"): Examples(
        "fullmatch", r"-[a-z]+|!|[-+]?[0-9]+(?:\.[0-9]+)?"
    ),
    ("corral._system.git.scan", "self.source"): Examples("fullmatch", *IGNORED),
    ("corral._system.git.scan", "_expression(part)"): Examples("fullmatch", *IGNORED),
    ("corral._system.git.scan", "b'|'.join((b'(?:%s)' % each for each in by_name))"): Examples(
        "fullmatch", b"|".join(b"(?:%s)" % each for each in IGNORED)
    ),
    ("corral._system.environment", "f'[{first}]'"): Examples("finditer", "[abc]"),
    ("corral._testing.hostile", r"f'{self.marker} ([\\w./-]*\\w)'"): SCRIPT,
    ("corral._testing.model_server.script", "self.pattern"): SCRIPT,
    ("corral.values", "f'[^A-Za-z0-9{re.escape(allowed)}]'"): Examples(
        "finditer", "[^A-Za-z0-9._]"
    ),
}
"""Patterns that are made when they run: (module, source of the pattern) → examples of them, or why
they are not looked at."""


class Use(NamedTuple):
    """A pattern in the source, and a way in which it is run."""

    place: str
    pattern: re.Pattern[Any]
    method: str


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The modules that have patterns, or call their methods."""
    found: dict[str, ast.Module] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text("utf-8")
        if re.search(rf"\bre\b|\bregex\b|\.(?:{'|'.join(METHODS)})\b", text):
            parts = path.relative_to(SOURCE).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = ast.parse(text)
    return found


def calls_of_re(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = node.func.value, node.func.attr
            if isinstance(owner, ast.Name) and owner.id == "re" and name in CALLS:
                yield node, name


def methods_of_names() -> dict[str, dict[str, set[str]]]:
    """Module → name of a value → the methods of patterns that are called on it there."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                owner = node.value
                if isinstance(owner, ast.Name | ast.Attribute):
                    name = owner.id if isinstance(owner, ast.Name) else owner.attr
                    found[module][name].add(node.attr)
    return found


def flags_of(call: ast.Call, name: str) -> ast.expr | None:
    at = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(name, 2)
    given = [keyword.value for keyword in call.keywords if keyword.arg == "flags"]
    return given[0] if given else call.args[at] if len(call.args) > at else None


def evaluated(node: ast.expr, module: ModuleType) -> Any:
    return eval(compile(ast.Expression(node), "<source>", "eval"), {**vars(module)})


def compiled(call: ast.Call, name: str, module: ModuleType) -> re.Pattern[Any] | None:
    """None if the pattern is known only when it runs."""
    flags = flags_of(call, name)
    try:
        given = evaluated(call.args[0], module)
        return re.compile(given, evaluated(flags, module) if flags is not None else 0)
    except NameError:
        return None


def names_and_methods(tree: ast.Module) -> dict[ast.expr, str]:
    """What is done with a value: the method that is taken of it (``.match``), or its new name."""
    found: dict[ast.expr, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found[node.value] = f".{node.attr}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.value] = node.targets[0].id
    return found


def all_patterns() -> tuple[list[Use], list[tuple[str, str]]]:
    """The patterns with how they are used; and (module, source of the pattern) where the pattern is
    made when it runs."""
    by_name = methods_of_names()
    found: dict[tuple[re.Pattern[Any], str], Use] = {}
    made: list[tuple[str, str]] = []
    for module, tree in trees().items():
        done = names_and_methods(tree)
        for call, name in calls_of_re(tree):
            pattern = compiled(call, name, importlib.import_module(module))
            if pattern is None:
                made.append((module, ast.unparse(call.args[0])))
                continue
            ways = {name}
            if name == "compile":
                what = done.get(call, "")
                places = [module] if what.startswith("_") else [*by_name]
                of_name = {way for place in places for way in by_name[place].get(what, ())}
                # If it cannot be seen how a pattern is used, all ways are tried.
                ways = {what[1:]} if what.startswith(".") else of_name or {*METHODS}
            for way in {"finditer" if way in SEARCHES else way for way in ways}:
                use = Use(f"{module}:{call.lineno}", pattern, way)
                found.setdefault((pattern, way), use)
    return [*found.values()], made


def seconds(run: Callable[[Any], object], given: str | bytes, times: int = 1) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.thread_time()
        run(given)
        best = min(best, time.thread_time() - start)
    return best


def slow_shape(pattern: re.Pattern[Any], method: str) -> Shape | None:
    """An input whose time grows faster than its size; None if there is none."""

    def run(given: str | bytes) -> object:
        if method == "finditer":
            return sum(1 for _ in pattern.finditer(given))
        return getattr(pattern, method)(given)

    def text(shape: Shape, size: int) -> str | bytes:
        made = shape.text(size)
        is_bytes = isinstance(pattern.pattern, bytes)
        return made.encode("latin-1", "replace") if is_bytes else made

    for shape in shapes(pattern):
        size = SMALLEST
        while (last := seconds(run, text(shape, size))) < NOTICED and size < LARGEST:
            size *= 2
        if last >= NOTICED:
            first, last = (seconds(run, text(shape, part), 5) for part in (size // 4, size))
            if last > GROWTH * first:
                return shape
    return None


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(?m)^\*\*\* (?:Add File|Move to):[ \t]*(.+?)[ \t]*\r?$", "finditer"),
        (r"\d+(?:\.\d+)+", "finditer"),
        (r"(`+)(.+?)(?<!`)\1(?!`)", "finditer"),
        (r"((?: {0,3}> ?)+)(.*)$", "match"),
        (r"( *)(`{3,}|~{3,}) *([^`\s]*)[^`]*$", "match"),
        (r"/+(?:.*/)?messages/?", "fullmatch"),
        (r"<(script|style).*?</\1>|<[^>]*>", "finditer"),
        (r"(a+)+b", "match"),
        (rb"eyJ[A-Za-z0-9_-]{10,}\.eyJ", "finditer"),
    ],
    ids=lambda given: ascii(given[:12]),
)
def test_a_slow_pattern_is_found(pattern: str | bytes, method: str) -> None:
    assert slow_shape(re.compile(pattern), method) is not None


@pytest.mark.deep
def test_patterns_are_called_by_the_name_of_the_module() -> None:
    """So that ``calls_of_re`` finds them."""
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named = {alias.name: alias.asname for alias in node.names}
                assert named.get("re") is None, module
                assert "regex" not in named, module
            elif isinstance(node, ast.ImportFrom):
                assert node.module != "re", module


@pytest.mark.deep
def test_no_pattern_takes_longer_than_in_proportion_to_its_input() -> None:
    uses, made = all_patterns()
    assert {*made} == {*MADE}, "list a pattern that is made when it runs in MADE"
    for place, examples in MADE.items():
        if not isinstance(examples, str):
            uses += [Use(place[0], each, examples.method) for each in examples.patterns]
    assert len(uses) > 200
    slow = [
        f"{use.place}: {use.pattern.pattern!r} is slow for {shape}"
        for use in uses
        if use.place.partition(":")[0] not in BOUNDED
        and (shape := slow_shape(use.pattern, use.method)) is not None
    ]
    assert slow == []
