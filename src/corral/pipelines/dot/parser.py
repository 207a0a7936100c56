"""A pipeline's text → its graph.

Statements as people and programs usually write them, ``name [key="value", …];`` and
``one -> other [..];``, are each taken by one pattern in one go. All else, and every error,
is read word by word, which knows the whole language.
"""

from __future__ import annotations

import re
from itertools import pairwise

from corral.pipelines.dot import lexer
from corral.pipelines.dot.lexer import BARE, ID, KEY, KEYWORDS, STRING, DotError, Reader
from corral.pipelines.graph import Edge, Graph, Node, Value

__all__ = ["DotError", "decode", "parse"]

DEEPEST = 64
"""Subgraphs inside each other. Nobody draws more, and each costs stack."""
MOST_EDGES = 100_000
"""That ``{a b …} -> {c d …}`` may stand for: it grows with the square of what is written."""
UNNAMED = "pipeline"
"""What a digraph without a name is called."""

_NAME = rf'(?:{ID}|"[^"\\]*+")'
_ATTRIBUTE = rf"{KEY}\s*+=\s*+(?:{STRING}|{BARE})\s*+[,;]?+\s*+"
_USUAL = re.compile(
    rf"\s*+({_NAME})\s*+(?:->\s*+({_NAME})\s*+)?+(?:\[\s*+((?:{_ATTRIBUTE})*+)\]\s*+)?+"
    rf'(?:;|(?=[A-Za-z_"}}]))',
    re.DOTALL,
)
"""A node, or an edge between two, with at most one block of attributes. It ends at ``;`` or
before what can only be another statement: so neither ``a = b`` nor ``a:n -> b`` is taken."""
_PAIRS = re.compile(
    rf'({KEY})\s*+=\s*+(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|({BARE}))\s*+[,;]?+\s*+', re.DOTALL
)
_CLASS_SEPARATORS = re.compile(r"[,\s]+")
_NOT_IN_CLASS = re.compile(r"[^\w-]+")


def parse(text: str, source: str = "<string>") -> Graph:
    """The graph that this text describes. Raises ``DotError``, and nothing else."""
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _Parser(text, source).graph()


def decode(data: bytes, source: str) -> str:
    """The text of a file. Raises ``DotError`` where it is no UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        raise DotError(
            f"byte 0x{data[error.start]:02x} is no UTF-8",
            text=before,
            position=len(before),
            source=source,
            hint="Save the file as UTF-8.",
        ) from error


class _Scope:
    """What holds between two braces: the defaults, and who is mentioned there."""

    __slots__ = ("attrs", "depth", "edges", "line", "members", "nodes")

    def __init__(self, line: int, outer: _Scope | None = None) -> None:
        self.line = line
        """Where it opens."""
        self.depth: int = outer.depth + 1 if outer else 0
        self.nodes: dict[str, Value] = dict(outer.nodes) if outer else {}
        self.edges: dict[str, Value] = dict(outer.edges) if outer else {}
        self.attrs: dict[str, Value] = {}
        self.members: dict[str, None] = {}


class _Parser(Reader):
    def __init__(self, text: str, source: str) -> None:
        super().__init__(text, source)
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self.only_mentioned: set[str] = set()
        """Nodes that so far appear in edges alone: a declaration still brings defaults."""
        self.classes: dict[str, list[str]] = {}
        """Of nodes in labelled subgraphs."""

    # The file.

    def graph(self) -> Graph:
        self.skip()
        keyword = self.keyword()
        if keyword == "strict":
            raise self.error("strict graphs are not understood", hint="Take `strict` away.")
        if keyword == "graph":
            raise self.error(
                "an undirected graph", hint="A pipeline has a direction: write `digraph` and `->`."
            )
        if keyword != "digraph":
            raise self.error("expected `digraph`", hint="A pipeline is `digraph name { … }`.")
        self.at += len(keyword)
        self.skip()
        name = UNNAMED
        if not self.sees("{"):
            name = self.name("a name or {")
            self.skip()
        root = _Scope(self.place(self.at)[0])
        self.expect("{", f"expected {{ after digraph {name}")
        self.statements(root)
        self.skip()
        if self.at < len(self.text):
            hint = "One digraph a file; run another with a node of `type=include`."
            raise self.error("text after the end of the digraph", hint=hint)
        for node in self.nodes.values():
            if "class" in node.attrs or node.id in self.classes:
                node.classes = self.classes_of(node)
                node.within = next(iter(self.classes.get(node.id, ())), "")
        return Graph(name, root.attrs, self.nodes, self.edges)

    def classes_of(self, node: Node) -> tuple[str, ...]:
        own = _CLASS_SEPARATORS.split(str(node.attrs.get("class", "")))
        return tuple(dict.fromkeys(filter(None, [*own, *self.classes.get(node.id, ())])))

    # Statements, the usual ones.

    def statements(self, scope: _Scope) -> None:
        """Read all statements up to the brace that closes the scope, and that brace."""
        text, usual = self.text, _USUAL.match
        while True:
            found = usual(text, self.at)
            if found is None:
                if self.unusual(scope):
                    return
            elif self.usual(found, scope):
                self.at = found.end()
            else:  # read it slowly: a keyword, or an error that must be located
                self.statement(scope)

    def usual(self, found: re.Match[str], scope: _Scope) -> bool:
        """Take a statement that one pattern has matched. False: it must be read slowly."""
        first, other, body = found.groups()
        try:
            attrs = self.pairs(body) if body else {}
        except ValueError:
            return False
        source = self.usual_name(first)
        if source is None:
            return False
        line, column = self.place(found.start(1))
        if other is None:
            self.declare(source, attrs, line, column, scope)
            return True
        target = self.usual_name(other)
        if target is None:
            return False
        nodes, nested = self.nodes, scope.depth > 0
        if nested or source not in nodes:
            self.mention(source, line, column, scope)
        if nested or target not in nodes:
            self.mention(target, *self.place(found.start(2)), scope)
        if scope.edges:
            attrs = {**scope.edges, **attrs}
        self.edges.append(Edge(source, target, attrs, line, column))
        return True

    def pairs(self, body: str) -> dict[str, Value]:
        """The attributes of a block. Raises ``ValueError`` for a bare value that is invalid."""
        words, keys = self.words, self.keys
        if "\\" in body:
            return {
                keys[key]: words[bare] if bare else lexer.unescaped(quoted)
                for key, quoted, bare in _PAIRS.findall(body)
            }
        return {
            keys[key]: words[bare] if bare else quoted for key, quoted, bare in _PAIRS.findall(body)
        }

    def usual_name(self, text: str) -> str | None:
        """The name of a node; None: it is a keyword."""
        if text[0] == '"':
            return text[1:-1]
        if text not in self.nodes and text.lower() in KEYWORDS:
            return None
        return text

    # What statements mean.

    def declare(
        self, name: str, attrs: dict[str, Value], line: int, column: int, scope: _Scope
    ) -> None:
        """A node statement. Defaults reach a node when it first appears, and fill what is still
        missing when it is first declared; never later, so that naming it again in a subgraph,
        to group it, changes nothing."""
        node = self.nodes.get(name)
        if node is None:
            if scope.nodes:
                attrs = {**scope.nodes, **attrs}
            self.nodes[name] = Node(name, attrs, (), line, column)
        elif name in self.only_mentioned:
            self.only_mentioned.discard(name)
            node.attrs = {**scope.nodes, **node.attrs, **attrs}
            node.line, node.column = line, column
        else:
            node.attrs.update(attrs)
        if scope.depth:
            scope.members[name] = None

    def mention(self, name: str, line: int, column: int, scope: _Scope) -> None:
        """A node in an edge."""
        if name not in self.nodes:
            self.nodes[name] = Node(name, dict(scope.nodes), (), line, column)
            self.only_mentioned.add(name)
        if scope.depth:
            scope.members[name] = None

    # Statements, all of them.

    def unusual(self, scope: _Scope) -> bool:
        """One statement, or what stands between two; whether it was the closing brace."""
        before = self.at
        self.skip()
        if self.at >= len(self.text):
            raise self.error(f"expected }}: the {{ of line {scope.line} is not closed")
        character = self.text[self.at]
        if character == "}":
            self.at += 1
            return True
        if character == ";":
            self.at += 1
        elif self.at == before:
            self.statement(scope)
        return False

    def statement(self, scope: _Scope) -> None:
        self.skip()
        keyword = self.keyword()
        if keyword in ("node", "edge", "graph"):
            self.at += len(keyword)
            self.skip()
            if not self.sees("["):
                raise self.error(
                    f"expected [ after {keyword}",
                    hint=f'A node called {keyword} is written "{keyword}".',
                )
            given = self.blocks()
            target = {"node": scope.nodes, "edge": scope.edges, "graph": scope.attrs}[keyword]
            target.update(given)
        elif keyword in ("digraph", "strict"):
            raise self.error(
                f"{keyword} inside a digraph", hint="One digraph a file; use `subgraph` inside."
            )
        elif not keyword and self.is_assignment(scope):
            pass
        else:
            self.chain(scope)
        self.skip()
        if self.sees(";"):
            self.at += 1

    def is_assignment(self, scope: _Scope) -> bool:
        """``key = value``, read if it is that."""
        found = lexer.ATTRIBUTE_KEY.match(self.text, self.at) or lexer.QUOTED.match(
            self.text, self.at
        )
        if found is None:
            return False
        after = lexer.SKIP.match(self.text, found.end())
        end = after.end() if after else found.end()
        if not self.text.startswith("=", end):
            if "." in found[0] and found[0][0] != '"':
                hint = f'A node with a dot in its name is written "{found[0]}".'
                raise self.error(f"expected = after {found[0]}", at=end, hint=hint)
            return False
        key = lexer.unescaped(found[0][1:-1]) if found[0][0] == '"' else found[0]
        self.at = end + 1
        scope.attrs[self.keys[key]] = self.value(key)
        return True

    def chain(self, scope: _Scope) -> None:
        """``a``, ``a -> b -> c``, or a subgraph; an end of an edge may be a subgraph too."""
        begin = self.at
        ends = [self.operand(scope)]
        self.skip()
        while self.text.startswith("->", self.at):
            self.at += 2
            self.skip()
            ends.append(self.operand(scope))
            self.skip()
        self.check_arrow(begin)
        if len(ends) == 1:
            if self.text[begin] == "{" or self.keyword(begin) == "subgraph":
                return
            name, line, column = ends[0][0]
            self.declare(name, self.blocks(), line, column, scope)
            return
        attrs = self.blocks()
        for members in ends:
            for name, line, column in members:
                self.mention(name, line, column, scope)
        for sources, targets in pairwise(ends):
            if len(sources) * len(targets) > MOST_EDGES:
                raise self.error(f"more than {MOST_EDGES} edges at once", at=begin)
            for source, line, column in sources:
                for target, _, _ in targets:
                    given = {**scope.edges, **attrs}
                    self.edges.append(Edge(source, target, given, line, column))

    def check_arrow(self, begin: int) -> None:
        """Raises ``DotError`` if what follows the operands is neither an edge nor an end."""
        if self.text.startswith("--", self.at):
            raise self.error("an undirected edge", hint="Write -> instead of --.")
        if self.text.startswith("-", self.at):
            word = lexer.ODD_NAME.match(self.text, begin)
            name = word[0] if word else ""
            raise self.error(
                "expected -> or [ or ;",
                hint=f'A name with a - in it is written in quotes: "{name}".',
            )

    def operand(self, scope: _Scope) -> list[tuple[str, int, int]]:
        """The nodes at one end of an edge, and where it stands."""
        line, column = self.place(self.at)
        keyword = self.keyword()
        if keyword == "subgraph" or self.sees("{"):
            members = self.subgraph(scope, len(keyword))
            return [(name, line, column) for name in members]
        if keyword:
            hint = f'A node called {keyword} is written "{keyword}".'
            raise self.error(f"expected a node, not the keyword {keyword}", hint=hint)
        name = self.name("a node")
        self.skip()
        while self.sees(":"):  # a port, for drawing
            self.at += 1
            self.skip()
            self.port()
            self.skip()
        return [(name, line, column)]

    def subgraph(self, outer: _Scope, keyword: int) -> dict[str, None]:
        self.at += keyword
        self.skip()
        if not self.sees("{"):
            self.name("a name or { after subgraph")
            self.skip()
        scope = _Scope(self.place(self.at)[0], outer)
        if scope.depth > DEEPEST:
            raise self.error(f"subgraphs more than {DEEPEST} deep", hint="Nest them less.")
        self.expect("{", "expected { after subgraph")
        self.statements(scope)
        label = _NOT_IN_CLASS.sub("", "-".join(str(scope.attrs.get("label", "")).lower().split()))
        if label:
            for name in scope.members:
                self.classes.setdefault(name, []).append(label)
        if outer.depth:
            outer.members.update(scope.members)
        return scope.members
