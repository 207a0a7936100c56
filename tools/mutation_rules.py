"""Which mutations of a module there are, and which of them no test could notice.

A mutation replaces one expression or statement by another one. What is left out (``_is_left_out``,
``_TEXTS``, ``_SPEED``) is equivalent for every caller, or changes only what nobody relies on:
annotations and docstrings, texts of messages, constants of speed, code of other systems.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
}  # fmt: skip

_WORD = re.compile(r"[\w./:*@=-]{1,40}")
"""A string with a blank is the text of a message."""
_TEXTS = re.compile(r"(Error|Failed|Exception|Invalid|Lost|warn|echo|debug|info|log|cast|TypeVar)$")
"""Functions whose arguments are texts for people, or types."""
_SPEED = re.compile(
    r"CACHE|CHUNK|BUFFER|BLOCK|POLL|INTERVAL|FRESH|TIMEOUT|GRACE|SECONDS|PATIENCE|WIDTH"
)
"""Names of constants that decide how fast or how patient something is."""
_BOUND = re.compile(r"\b_?[A-Z]{3}|time|clock|now|ends|deadline|limit")
"""Limits of bytes and seconds: one more or less is the same."""
_MACHINE = re.compile(r"\b(LINUX|MACOS|WINDOWS|sys\.platform|version_info|TYPE_CHECKING)\b")
_UNUSED_KEYWORDS = {
    *("hint", "message", "help", "name", "timeout", "maxsize", "daemon", "stacklevel", "strict"),
    *("encoding", "errors", "frozen", "kw_only", "slots", "gc", "weakref", "metavar", "epilog"),
    *("flush", "exist_ok", "parents", "missing_ok", "check", "bufsize", "repr", "compare"),
}
"""Keywords of calls that change a text, the speed, or what happens only beside other processes."""
_NO_FUNCTIONS = {"__repr__", "__rich_repr__", "__hash__", "__dir__", "__del__"}
_NO_NAMES = {"__slots__", "__all__", "__match_args__"}
_IMPOSSIBLE = {"RuntimeError", "AssertionError", "NotImplementedError"}


@dataclass(frozen=True)
class Mutation:
    """Bytes ``start`` to ``end`` of the module become ``new``."""

    what: str
    old: str
    new: str
    start: int
    end: int
    lines: range
    """The lines of its statement: a test that runs one of them reaches it."""
    names: tuple[str, ...] = ()
    """What the statement defines, if it runs at the import of the module."""

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """All mutations of this module, in the order of the text."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutation] = []
    for what, node, new, statement, names in _walk(ast.parse(source), None, ()):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        body: list[ast.stmt] = getattr(statement, "body", [])
        first = statement.lineno
        last = body[0].lineno - 1 if body else statement.end_lineno or first
        lines = range(first, max(last, first) + 1)
        found.append(Mutation(what, source[start:end].decode(), new, start, end, lines, names))
    return found


def is_valid(mutation: Mutation, source: bytes) -> bool:
    """Whether it is Python, and other Python than before."""
    try:
        return ast.dump(ast.parse(mutation.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def uses(tree: ast.Module) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Each name that is used: the name, the line, and what the statement there defines, if it runs
    at the import of the module."""
    for statement in tree.body:
        defined = _defined(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ()
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield node.id, node.lineno, defined
            elif isinstance(node, ast.Attribute):
                yield node.attr, node.lineno, defined


Place = ast.expr | ast.stmt


def _walk(
    node: ast.AST, statement: ast.stmt | None, scope: tuple[str, ...] | None
) -> Iterator[tuple[str, Place, str, ast.stmt, tuple[str, ...]]]:
    """What is mutated in ``node``. ``scope`` are the classes around it; None in a function."""
    if _is_left_out(node):
        return
    if isinstance(node, ast.stmt):
        statement = node
    if isinstance(node, Place) and statement is not None:
        names = () if scope is None else (*scope, *_defined(statement))
        for what, new in _changes(node):
            yield what, node, new, statement, names
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for default in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from _walk(default, node, scope)
        for part in node.body:
            yield from _walk(part, node, None)
        return
    if isinstance(node, ast.ClassDef) and scope is not None:
        scope = (*scope, node.name)
    skipped = node.keywords if isinstance(node, ast.ClassDef) else [getattr(node, "annotation", 0)]
    for child in ast.iter_child_nodes(node):
        if child not in skipped:
            yield from _walk(child, statement, scope)


def _defined(statement: ast.stmt) -> tuple[str, ...]:
    """The names that a statement assigns or defines."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return (statement.name,)
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
        case ast.Assign():
            return tuple(each.id for each in statement.targets if isinstance(each, ast.Name))
        case _:
            return ()


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.JoinedStr() | ast.arguments():
            return True
        case ast.Expr(value=ast.Constant()) | ast.Subscript(value=ast.Name(id="Literal")):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            return node.name in _NO_FUNCTIONS or "overload" in decorators
        case ast.If() | ast.IfExp():
            return bool(_MACHINE.search(ast.unparse(node.test)))
        case ast.Assign() | ast.AnnAssign():
            names = _defined(node)
            is_number = node.value is not None and all(
                isinstance(part, ast.BinOp | ast.operator | ast.Constant)
                and isinstance(getattr(part, "value", 9), int | float)
                for part in ast.walk(node.value)
            )
            return any(
                name in _NO_NAMES or _SPEED.search(name.upper()) or (is_number and name.isupper())
                for name in names
            )
        case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]):
            return bool(_BOUND.search(ast.unparse(node)))
        case ast.Call():
            return bool(_TEXTS.search(ast.unparse(node.func)))
        case ast.keyword():
            return node.arg in _UNUSED_KEYWORDS
        case _:
            return False


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What replaces this node: the kind of the mutation, and the text."""
    match node:
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                other = copy(node)
                other.ops = [*node.ops]
                other.ops[number] = COMPARISONS[type(operator)]()
                yield "comparison", f"({ast.unparse(other)})"
        case ast.BoolOp():
            other_operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", f"({ast.unparse(ast.BoolOp(other_operator, node.values))})"
        case ast.UnaryOp(op=ast.Not()):
            yield "not", f"({ast.unparse(node.operand)})"
        case ast.BinOp() if type(node.op) in OPERATORS:
            if not any(isinstance(side, ast.JoinedStr) for side in (node.left, node.right)):
                swapped = ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
                yield "operator", f"({ast.unparse(swapped)})"
        case ast.Constant():
            yield from _other_constants(node.value)
        case ast.Dict() if len(node.keys) > 1:
            for number in range(len(node.keys)):
                keys, values = [*node.keys], [*node.values]
                del keys[number], values[number]
                yield "entry", ast.unparse(ast.Dict(keys, values))
        case ast.List() | ast.Set() | ast.Tuple() if len(node.elts) > 2:
            if not isinstance(getattr(node, "ctx", None), ast.Store):
                for number in range(len(node.elts)):
                    shorter = copy(node)
                    shorter.elts = [*node.elts[:number], *node.elts[number + 1 :]]
                    yield "element", ast.unparse(shorter)
        case ast.Call():
            for number, keyword in enumerate(node.keywords):
                if keyword.arg not in _UNUSED_KEYWORDS:
                    shorter_call = copy(node)
                    shorter_call.keywords = [*node.keywords]
                    del shorter_call.keywords[number]
                    yield f"without {keyword.arg}=", ast.unparse(shorter_call)
        case ast.Expr(value=ast.Call() | ast.Await()):
            if not any(_is_left_out(part) for part in ast.walk(node.value)):
                yield "without the call", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield "without the assignment", "pass"
        case ast.Return(value=ast.expr() as value):
            if not isinstance(value, ast.Constant):
                yield "returns None", "return None"
        case ast.Raise(exc=ast.expr() as error):
            if not any(name in ast.unparse(error) for name in _IMPOSSIBLE):
                yield "without the raise", "pass"
        case _:
            pass


def _other_constants(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool):
        yield "constant", repr(not value)
    elif isinstance(value, int) and abs(value) < 1000:
        yield "constant", repr(value + 1)
    elif isinstance(value, str) and _WORD.fullmatch(value):
        yield "constant", repr(f"{value}x")
