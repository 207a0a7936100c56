"""What the Python of a drafted workflow may contain: an allow-list of its syntax tree.

Everything is refused that is not listed here: statements, expressions, imports, builtin functions,
attributes, and the arguments of steps. The list decides what a drafted file can say; it is not
what keeps it from the machine. That is the sandbox, in which its program runs, and the checks of
its steps outside (``sandboxed_program``). At the top of a file there are only imports, constants,
dataclasses and functions: so loading it, to read its parameters, executes nothing of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES = {
    "corral": {"workflow"},
    "json": {"dumps", "loads"},
    "math": {"ceil", "floor", "sqrt"},
    "re": {"escape", "findall", "fullmatch", "match", "search", "split", "sub"},
    "shlex": {"join", "quote", "split"},
}
"""Modules that ``import`` may name, and what may be used of each."""
NAMES = {
    "__future__": {"annotations"},
    "corral.errors": {"StepError"},
    "corral.workflows": {"AgentStep", "CommandStep", "Flow", "PersonAnswer"},
    "dataclasses": {"dataclass", "field"},
    "typing": {"Literal"},
}
"""Modules that ``from … import`` may name, and which names."""
_IMPORTABLE = frozenset[str]().union(*NAMES.values())
BUILTINS = words_of(
    """
    abs all any bool dict divmod enumerate float frozenset int isinstance len list max min range
    repr reversed round set sorted str sum tuple zip
    Exception KeyError IndexError RuntimeError ValueError
    """
)
STEPS = {
    "run": "output name worktree rounds max_retries thread_id timeout policy",
    "generate": "output name system reasoning_effort temperature max_tokens timeout max_retries",
    "command": "check name timeout max_retries",
    "ask": "default timeout name",
    "event": "output timeout",
    "sleep": "name",
    "now": "",
    "random": "",
    "parallel": "max_parallel",
}
"""The steps of ``Flow``, and the keywords of each."""
POSITIONAL = {"run": 2, "generate": 2, "command": 1, "ask": 2, "event": 1, "sleep": 1,
              "parallel": 1}  # fmt: skip
POLICIES = ("reads", "edits")
ATTRIBUTES = words_of(
    """
    text files branch commit denied agent model cost_usd tokens ok exit_code stdout stderr
    timed_out comment by step failure_class message run_id

    capitalize casefold count endswith find index isalnum isalpha isdigit isspace join lower
    lstrip partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split
    splitlines startswith strip title upper zfill append clear copy extend insert pop remove
    reverse sort get items keys setdefault update values add discard difference intersection
    union issubset issuperset

    group groups start end isoformat timestamp date year month day hour minute second
    """
)
"""Of the results of steps and of errors; of texts, lists, dicts and sets; of matches and times. The
fields of the file's dataclasses come to them."""
STATEMENTS = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.If, ast.For),
    *(ast.While, ast.Break, ast.Continue, ast.Pass, ast.Try, ast.Raise, ast.Assert, ast.Nonlocal),
    *(ast.FunctionDef, ast.AsyncFunctionDef),
)
EXPRESSIONS = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Call, ast.BinOp),
    *(ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.JoinedStr),
    *(ast.FormattedValue, ast.Starred, ast.Await, ast.NamedExpr, ast.Lambda),
)
_PARTS = (
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.comprehension),
    *(ast.keyword, ast.arguments, ast.arg, ast.ExceptHandler, ast.Module, ast.alias),
)
_LITERALS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.UnaryOp, ast.USub, ast.Load)
_TYPES = (ast.Name, ast.Subscript, ast.BinOp, ast.BitOr, ast.Constant, ast.Tuple, ast.List,
          ast.Load)  # fmt: skip
_TYPE_NAMES = frozenset(
    ["str", "int", "float", "bool", "list", "dict", "tuple", "set", "object", "None"]
)
LONGEST = 60_000
"""Characters of a file."""
DEEPEST = 60
"""Levels of its syntax tree."""


class Problem(msgspec.Struct, frozen=True):
    """Something that a drafted file must not contain."""

    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the text of a workflow."""

    line: int
    kind: str
    """``run``, ``command`` …"""
    what: str
    """The agent, the command or the question, as it is written."""
    policy: str = ""
    is_repeated: bool = False
    """Whether it is in a loop or a comprehension."""


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What a drafted file does, as far as its text says it."""

    workflow: str = ""
    about: str = ""
    parameters: list[str] = []
    steps: list[StepCall] = []


def find_problems(text: str, agents: tuple[str, ...] = ()) -> list[Problem]:
    """Everything in the file that is not allowed. ``agents``: those that a step may name; empty:
    any."""
    if len(text) > LONGEST:
        return [Problem(1, f"the file has more than {LONGEST} characters")]
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [Problem(error.lineno or 1, f"it is not Python: {error.msg}")]
    except (ValueError, RecursionError, MemoryError) as error:
        return [Problem(1, f"it is not Python: {error}")]
    if _is_deep(tree):
        return [Problem(1, f"its syntax tree has more than {DEEPEST} levels")]
    return sorted(_Checker(tree, agents).find(), key=lambda each: each.line)


def read_outline(text: str) -> Outline:
    """The steps of a file without problems, in the order of its lines."""
    tree = ast.parse(text)
    for function in tree.body:
        if isinstance(function, ast.AsyncFunctionDef) and function.decorator_list:
            arguments = [ast.unparse(arg) for arg in function.args.args[1:]]
            about = (ast.get_docstring(function) or "").partition("\n")[0]
            steps = sorted(_step_calls(tree, repeated=False), key=lambda each: each.line)
            return Outline(workflow=function.name, about=about, parameters=arguments, steps=steps)
    return Outline()


_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _step_calls(node: ast.AST, *, repeated: bool) -> Iterator[StepCall]:
    if isinstance(node, ast.Call) and (kind := _step_of(node)) and kind != "parallel":
        words = {keyword.arg: keyword.value for keyword in node.keywords}
        policy = words.get("policy")
        yield StepCall(
            line=node.lineno,
            kind=kind,
            what=ast.unparse(node.args[0]) if node.args else "",
            policy=str(policy.value) if isinstance(policy, ast.Constant) else "",
            is_repeated=repeated,
        )
    for child in ast.iter_child_nodes(node):
        yield from _step_calls(child, repeated=repeated or isinstance(node, _LOOPS))


def _step_of(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) and _is_step(node.func) else ""


def _is_step(node: ast.Attribute) -> bool:
    return node.attr in STEPS and not (
        isinstance(node.value, ast.Name) and node.value.id in MODULES
    )


def _is_deep(tree: ast.AST) -> bool:
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


class _Checker:
    def __init__(self, tree: ast.Module, agents: tuple[str, ...]) -> None:
        self._tree = tree
        self._agents = agents
        self._problems: dict[Problem, None] = {}
        self._imported: set[str] = set()
        """Modules, by their names."""
        self._classes = {each.name for each in tree.body if isinstance(each, ast.ClassDef)}
        self._fields = {
            part.target.id
            for each in tree.body
            if isinstance(each, ast.ClassDef)
            for part in each.body
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
        }
        self._bound: set[str] = set()
        self._texts: dict[str, list[str]] = {}
        """Names that stand for one of these texts: constants, and parameters with a default."""
        self._called: set[int] = set()
        """Attributes that are called as steps."""
        self._types: set[int] = set()
        """Nodes in annotations, which were checked as types."""

    def find(self) -> list[Problem]:
        for each in self._tree.body:
            self._top(each)
        for node in ast.walk(self._tree):
            self._collect(node)
        decorated = [
            each
            for each in self._tree.body
            if isinstance(each, ast.AsyncFunctionDef) and each.decorator_list
        ]
        if len(decorated) != 1:
            self._refuse(self._tree, f"one function needs @corral.workflow, {len(decorated)} have")
        for each in decorated:
            if not each.args.args or each.args.args[0].arg != "flow":
                self._refuse(each, "the first parameter of the workflow is flow")
        for node in ast.walk(self._tree):
            self._node(node)
        return [*self._problems]

    def _refuse(self, node: ast.AST, message: str) -> None:
        self._problems[Problem(getattr(node, "lineno", 1), message)] = None

    # The top of the file.

    def _top(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.ClassDef():
                self._class(node)
            case ast.AsyncFunctionDef() | ast.FunctionDef():
                for each in node.decorator_list:
                    if ast.unparse(each) != "corral.workflow" or not isinstance(
                        node, ast.AsyncFunctionDef
                    ):
                        self._refuse(each, "the only decorator is @corral.workflow of async def")
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                is_named = all(isinstance(each, ast.Name) for each in targets)
                if not is_named or (node.value is not None and not _is_literal(node.value)):
                    self._refuse(node, "at the top of the file, a constant is NAME = a literal")
            case ast.Expr(value=ast.Constant(value=str())):
                pass
            case _:
                self._refuse(
                    node, "at the top there are imports, constants, dataclasses and functions only"
                )

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name not in MODULES or each.asname:
                    known = ", ".join(sorted(MODULES))
                    self._refuse(node, f"import {each.name} is not allowed; allowed: {known}")
                else:
                    self._imported.add(each.name)
            return
        names = NAMES.get(node.module or "", set[str]()) if not node.level else set[str]()
        for each in node.names:
            if each.name not in names or each.asname:
                allowed = "; ".join(f"{key}: {', '.join(sorted(NAMES[key]))}" for key in NAMES)
                self._refuse(
                    node,
                    f"from {node.module} import {each.name} is not allowed; allowed: {allowed}",
                )
            else:
                self._bound.add(each.name)

    def _class(self, node: ast.ClassDef) -> None:
        if (
            node.bases
            or node.keywords
            or [ast.unparse(d) for d in node.decorator_list]
            not in (
                ["dataclass"],
                ["dataclass(frozen=True)"],
            )
        ):
            self._refuse(node, "a class is a @dataclass without a base class")
        for each in node.body:
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                continue
            is_field = isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            if not isinstance(each, ast.AnnAssign) or not is_field:
                self._refuse(each, "a dataclass has fields only: name: type")
            elif each.value is not None and not (
                _is_literal(each.value)
                or ast.unparse(each.value)
                in ("field(default_factory=list)", "field(default_factory=dict)")
            ):
                self._refuse(each, "the default of a field is a literal, or"
                             " field(default_factory=list)")  # fmt: skip

    # Names.

    def _collect(self, node: ast.AST) -> None:
        """The names, types and texts that a node brings."""
        names: list[str | None] = []
        match node:
            case ast.Name(ctx=ast.Store()):
                names = [node.id]
            case ast.arg():
                names = [node.arg]
                self._type(node.annotation)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names = [node.name]
                self._type(node.returns)
                self._defaults(node)
            case ast.ClassDef() | ast.ExceptHandler():
                names = [node.name]
            case ast.Nonlocal():
                names = [*node.names]
            case ast.AnnAssign():
                self._type(node.annotation)
                self._text(node.target, node.value)
            case ast.Assign():
                for target in node.targets:
                    self._text(target, node.value)
            case _:
                pass
        for name in filter(None, names):
            self._bind(node, name)

    def _bind(self, node: ast.AST, name: str) -> None:
        self._bound.add(name)
        if name.startswith("__"):
            self._refuse(node, f"the name {name} is not allowed")
        # A decorator or a type of this name would be called when the file is loaded.
        if name in MODULES or name in BUILTINS or name in _IMPORTABLE:
            self._refuse(node, f"{name} is a name of Python or corral: choose another one")

    def _text(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
            text = str(value.value) if isinstance(value, ast.Constant) and is_text else "\0"
            self._texts.setdefault(target.id, []).append(text)

    def _defaults(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        args = node.args
        given = [*zip(args.args[len(args.args) - len(args.defaults) :], args.defaults, strict=True)]
        given += [
            (arg, value)
            for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True)
            if value is not None
        ]
        for arg, value in given:
            if not _is_literal(value):
                self._refuse(value, "the default of a parameter is a literal")
            if node in self._tree.body and node.decorator_list:
                self._text(ast.Name(arg.arg), value)

    def _type(self, node: ast.expr | None) -> None:
        if node is None:
            return
        for each in ast.walk(node):
            self._types.add(id(each))
            named = isinstance(each, ast.Name) and each.id not in (
                _TYPE_NAMES | NAMES["corral.workflows"] | NAMES["typing"] | self._classes
            )
            is_text = isinstance(each, ast.Constant) and not (
                each.value is None or _is_in_literal(each, node)
            )
            if not isinstance(each, _TYPES) or named or is_text:
                self._refuse(
                    each, f"the type {ast.unparse(each)} is not allowed: use str, int, float, bool,"
                    " list, dict, tuple, Literal, dataclasses of this file, and |"
                )  # fmt: skip
                return

    # All nodes.

    def _node(self, node: ast.AST) -> None:
        if id(node) in self._types:
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._name(node)
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.ExceptHandler):
            self._handler(node)
        elif problem := self._form_problem(node):
            self._refuse(node, problem)

    def _form_problem(self, node: ast.AST) -> str:
        """What is wrong with a node of this type at all; empty: nothing."""
        match node:
            case ast.Import() | ast.ImportFrom() | ast.ClassDef():
                is_top = node in self._tree.body
                return "" if is_top else "imports and classes are at the top of the file"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                is_top = node in self._tree.body or not node.decorator_list
                return "" if is_top else "an inner function has no decorator"
            case ast.comprehension(is_async=1):
                return "async for is not allowed"
            case ast.FormattedValue(conversion=97):
                return "!a is not allowed in an f-string"
            case ast.Constant(value=bytes() | complex()):
                return "bytes and complex numbers are not allowed"
            case ast.BinOp(op=ast.Pow()) | ast.AugAssign(op=ast.Pow()):
                return "** is not allowed"
            case _:
                is_known = isinstance(node, (*STATEMENTS, *EXPRESSIONS, *_PARTS))
                return "" if is_known else f"{type(node).__name__} is not allowed"

    def _name(self, node: ast.Name) -> None:
        if node.id in MODULES:
            if id(node) not in self._called:
                self._refuse(node, f"{node.id} is a module: only its functions can be used")
            elif node.id not in self._imported:
                self._refuse(node, f"import {node.id} is missing")
        elif node.id not in self._bound and node.id not in BUILTINS:
            self._refuse(node, f"the name {node.id} is not allowed, or not defined")

    def _attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in MODULES:
            self._called.add(id(node.value))  # a parent comes before its children in ast.walk
            if node.attr not in MODULES[node.value.id] or not isinstance(node.ctx, ast.Load):
                allowed = ", ".join(sorted(MODULES[node.value.id]))
                self._refuse(node, f"{node.value.id}.{node.attr} is not allowed; allowed:"
                             f" {allowed}")  # fmt: skip
        elif node.attr in STEPS:
            if id(node) not in self._called:
                self._refuse(node, f"the step {node.attr} can only be called")
        elif not isinstance(node.ctx, ast.Load):
            if node.attr not in self._fields:
                self._refuse(node, f"the attribute {node.attr} cannot be set")
        elif node.attr not in ATTRIBUTES and node.attr not in self._fields:
            instead = ": `corral merge` merges branches" if node.attr == "merge" else ""
            self._refuse(node, f"the attribute {node.attr} is not allowed{instead}")
        if node.attr.startswith("_"):
            self._refuse(node, f"the attribute {node.attr} is not allowed")

    def _handler(self, node: ast.ExceptHandler) -> None:
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        allowed = {"StepError", "KeyError", "IndexError", "ValueError", "RuntimeError"}
        if not all(isinstance(each, ast.Name) and each.id in allowed for each in kinds):
            self._refuse(node, f"except needs one of {', '.join(sorted(allowed))}")

    def _call(self, node: ast.Call) -> None:
        if any(keyword.arg is None for keyword in node.keywords):
            self._refuse(node, "** in a call is not allowed")
        step = _step_of(node)
        if not step:
            return
        self._called.add(id(node.func))
        is_flow = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        if not is_flow or node.func.value.id != "flow":  # type: ignore[attr-defined]
            self._refuse(node, f"the step {step} is called as flow.{step}")
        starred = any(isinstance(each, ast.Starred) for each in node.args)
        if starred or len(node.args) > POSITIONAL.get(step, 0):
            self._refuse(node, f"flow.{step} has at most {POSITIONAL.get(step, 0)} positional"
                         " arguments, without *")  # fmt: skip
        allowed = STEPS[step].split()
        words = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        for name in words:
            if name not in allowed:
                known = ", ".join(allowed) or "none"
                self._refuse(node, f"flow.{step} has no argument {name} here; allowed: {known}")
        policy = words.get("policy")
        if policy is not None and not (
            isinstance(policy, ast.Constant) and policy.value in POLICIES
        ):
            self._refuse(node, "policy is 'reads' or 'edits'")
        if step in ("run", "generate"):
            self._agent(node, "agent" if step == "run" else "model")

    def _agent(self, node: ast.Call, what: str) -> None:
        first = node.args[0] if node.args else None
        names: list[str] = []
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            names = [first.value]
        elif isinstance(first, ast.Name):
            names = self._texts.get(first.id, ["\0"])
        if not names or "\0" in names:
            self._refuse(node, f"the {what} of a step is a text, a constant, or a parameter of the"
                         " workflow with a default")  # fmt: skip
        for name in names:
            if name != "\0" and self._agents and name not in self._agents:
                known = ", ".join(self._agents)
                self._refuse(node, f"the {what} {name!r} is not allowed; allowed: {known}")


def _is_literal(node: ast.expr) -> bool:
    return all(isinstance(each, _LITERALS) for each in ast.walk(node))


def _is_in_literal(constant: ast.Constant, annotation: ast.expr) -> bool:
    """Whether it is a value of ``Literal[…]`` in this annotation."""
    return any(
        isinstance(each, ast.Subscript)
        and isinstance(each.value, ast.Name)
        and each.value.id == "Literal"
        and any(inner is constant for inner in ast.walk(each.slice))
        for each in ast.walk(annotation)
    )
