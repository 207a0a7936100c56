"""Parses the DOT text of a pipeline into its graph.

There are two ways to read a statement. ``_DotParser.statements`` first tries ``_USUAL``: one
pattern that matches a complete statement as people and programs usually write it,
``name [key="value", ...];`` or ``one -> other [...];``. That is fast. A statement that it does not
match, and every statement with an error, is read by the other methods, token by token:
they know all of the language, and the exact place of an error.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from sys import intern

from corral._pipelines.graph import Edge, Graph, Node, Value
from corral.errors import PipelineInvalid

ID = r"[A-Za-z_][A-Za-z0-9_]*+"
KEY = r"[A-Za-z_][A-Za-z0-9_]*+(?:\.[A-Za-z0-9_]++)*+"
STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
BARE = r"-?[A-Za-z0-9_.][A-Za-z0-9_.:-]*+"
"""Any value without quotes; ``convert_word`` converts it."""

SKIP = re.compile(
    r"(?:\s++|//[^\n]*+|\#[^\n]*+|/\*[^*]*+(?:\*(?!/)[^*]*+)*+\*/)*+",
)
IDENTIFIER = re.compile(ID)
PORT = re.compile(r"[A-Za-z0-9_]++")
ATTRIBUTE_KEY = re.compile(KEY)
QUOTED = re.compile(STRING, re.DOTALL)
UNQUOTED = re.compile(BARE)
AFTER_VALUE = re.compile(r"[\s,;\[\]{}#]|//|/\*|\Z")
ODD_NAME = re.compile(r"[^\s\[\]{}()\"';,=<>]++")
"""What the author may have meant as a name, for a message."""

KEYWORDS = frozenset(("node", "edge", "graph", "digraph", "subgraph", "strict"))
"""Case does not matter, as in Graphviz. In quotes they are names."""

_INTEGER = re.compile(r"-?[0-9]+")
_FLOAT = re.compile(r"-?(?:[0-9]+\.[0-9]*|\.[0-9]+)")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "\n": ""}
"""A backslash before the end of a line joins it to the next line, as in Graphviz. Any other
backslash stays as it is, because prompts often contain them."""
_LARGEST = 2**63 - 1
"""The largest integer that JSON readers accept."""
MAX_DEPTH = 64
"""How deep subgraphs may be nested. Each level needs stack."""
MAX_EDGES = 100_000
"""How many edges one ``{a b …} -> {c d …}`` may create: the number grows with the square of the
text."""
LINE_SHOWN = 100
"""Characters of a line that an error shows."""
UNNAMED = "pipeline"
"""The name of a digraph without a name."""

_NAME = rf'(?:{ID}|"[^"\\]*+")'
_ATTRIBUTE = rf"{KEY}\s*+=\s*+(?:{STRING}|{BARE})\s*+[,;]?+\s*+"
_USUAL = re.compile(
    rf"\s*+({_NAME})\s*+(?:->\s*+({_NAME})\s*+)?+(?:\[\s*+((?:{_ATTRIBUTE})*+)\]\s*+)?+"
    rf'(?:;|(?=[A-Za-z_"}}]))',
    re.DOTALL,
)
"""A node, or an edge between two nodes, with at most one block of attributes. It ends at ``;`` or
before text that can only be another statement, so it matches neither ``a = b`` nor
``a:n -> b``."""
_PAIRS = re.compile(
    rf"(?<![A-Za-z0-9_.])({KEY})\s*+=\s*+"
    rf'(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|({BARE}))\s*+[,;]?+\s*+',
    re.DOTALL,
)
_CLASS_SEPARATORS = re.compile(r"[,\s]+")
_NOT_IN_CLASS = re.compile(r"[^\w-]+")


class DotError(PipelineInvalid):
    """A text that is not a pipeline: the position, what was expected there, and what to do.

    ::

        try:
            pipelines.parse("digraph { a -> }")
        except pipelines.DotError as error:
            print(error)
    """

    __module__ = "corral.pipelines"  # tracebacks show the public name

    code = "dot"

    def __init__(
        self, message: str, *, text: str, position: int, source: str, hint: str | None = None
    ) -> None:
        self.line: int = text.count("\n", 0, position) + 1
        begin = text.rfind("\n", 0, position) + 1
        self.column: int = position - begin + 1
        self.source = source
        self.problem = message
        # The line, with a caret below the position. A long line is cut to the part near it.
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        first = max(begin, position - LINE_SHOWN // 2)
        last = min(end, first + LINE_SHOWN)
        before = "".join("\t" if c == "\t" else " " for c in text[first:position])
        head, tail = "…" * (first > begin), "…" * (last < end)
        excerpt = f"    {head}{text[first:last]}{tail}\n    {' ' * len(head)}{before}^"
        super().__init__(f"{source}:{self.line}:{self.column}: {message}\n{excerpt}", hint=hint)


def parse(text: str, source: str = "<string>") -> Graph:
    """Parse a pipeline. Raises ``DotError`` and no other error.

    ::

        graph = pipelines.parse("digraph { start [shape=Mdiamond]; start -> review }")
    """
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _DotParser(text, source).graph()


def decode(data: bytes, source: str) -> str:
    """Decode the content of a file. Raises ``DotError`` if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        raise DotError(
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            text=before,
            position=len(before),
            source=source,
            hint="Save the file as UTF-8.",
        ) from error


def unescaped(text: str) -> str:
    """The value of a quoted string, given the text between its quotes."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)


@lru_cache(4096)
def convert_word(text: str) -> Value:
    """The value of unquoted text. Raises ``ValueError``, with what to do, if it is not a value."""
    if text in ("true", "false"):
        return text == "true"
    if _WORD.fullmatch(text) or _DURATION.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text):
        value = int(text) if len(text) < 25 else _LARGEST + 1
        if abs(value) > _LARGEST:
            raise ValueError("Integers have at most 64 bits; put a longer one in quotes.")
        return value
    if _FLOAT.fullmatch(text) and isfinite(number := float(text)):
        return number
    raise ValueError(f'Put it in quotes: "{text[:40]}".')


class _Scope:
    """The text between two braces: its defaults, and the nodes that it mentions."""

    __slots__ = ("attrs", "depth", "edges", "line", "members", "nodes")

    def __init__(self, line: int, outer: _Scope | None = None) -> None:
        self.line = line
        """The line of the opening brace."""
        self.depth: int = outer.depth + 1 if outer else 0
        self.nodes: dict[str, Value] = dict(outer.nodes) if outer else {}
        self.edges: dict[str, Value] = dict(outer.edges) if outer else {}
        self.attrs: dict[str, Value] = {}
        self.members: dict[str, None] = {}


class _DotParser:
    """A text, the position in it, and the graph so far. Methods raise ``DotError`` if the text is
    invalid."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self._counted = 0
        self._line = 1
        self._line_begins = 0
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self.only_mentioned: set[str] = set()
        """Nodes that have appeared only in edges so far: their declaration still adds defaults."""
        self.own_timeouts: set[str] = set()
        """Nodes whose ``timeout`` is their own, not a default."""
        self.classes: dict[str, list[str]] = {}
        """Node -> its classes from the labelled subgraphs around it."""

    def line_and_column(self, position: int) -> tuple[int, int]:
        """Line and column of a position. Call it with ascending positions: it counts each line
        once."""
        lines = self.text.count("\n", self._counted, position)
        if lines:
            self._line += lines
            self._line_begins = self.text.rfind("\n", self._counted, position) + 1
        self._counted = position
        return self._line, position - self._line_begins + 1

    def blocks(self) -> dict[str, Value]:
        """Read all attribute blocks that follow: ``[a=1, b=2] [c=3]``."""
        given: dict[str, Value] = {}
        while self.sees("["):
            line, _ = self.line_and_column(self.at)
            self.at += 1
            self.skip()
            while not self.sees("]"):
                if self.at >= len(self.text):
                    raise self.error(f"expected ]: the [ of line {line} is not closed")
                self.attribute(given)
            self.at += 1
            self.skip()
        return given

    def attribute(self, given: dict[str, Value]) -> None:
        begin = self.at
        match = ATTRIBUTE_KEY.match(self.text, begin)
        if match is not None:
            key = match[0]
            self.at = match.end()
        elif self.sees('"'):
            key = self.string()
        else:
            raise self.error("expected the name of an attribute, or ]")
        self.skip()
        if not self.sees("="):
            raise self.error(f"expected = after {key}", hint=f'An attribute is {key}="value".')
        self.at += 1
        given[intern(key)] = self.value(key)  # most names occur often: one string each
        self.skip()
        if self.sees(",") or self.sees(";"):
            self.at += 1
            self.skip()

    def value(self, key: str) -> Value:
        after = self.at
        self.skip()
        if self.sees('"'):
            parts = [self.string()]
            self.skip()
            while self.sees("+"):  # Graphviz concatenates strings with +
                self.at += 1
                self.skip()
                if not self.sees('"'):
                    raise self.error("expected a string after +")
                parts.append(self.string())
                self.skip()
            return "".join(parts)
        if self.sees("<"):
            hint = f'Write text in quotes: {key}="…".'
            raise self.error("HTML values are not supported", hint=hint)
        match = UNQUOTED.match(self.text, self.at)
        if match is None:
            skipped = self.text[after : self.at].strip()
            hint = "A # begins a comment: put such a value in quotes." if skipped[:1] == "#" else ""
            raise self.error(f"expected a value after {key} =", hint=hint or self.quotes_hint())
        try:
            value = convert_word(match[0])
        except ValueError as error:
            raise self.error(f"{match[0][:40]} is not a value", hint=str(error)) from None
        if not AFTER_VALUE.match(self.text, match.end()):
            raise self.error("this value needs quotes", hint=self.quotes_hint())
        self.at = match.end()
        return value

    def name(self, wanted: str) -> str:
        if self.sees('"'):
            return self.string()
        match = IDENTIFIER.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected {wanted}", hint=self.quotes_hint())
        if self.text[match.end() : match.end() + 1].isalnum():  # a letter beyond ASCII
            raise self.error("a letter that needs quotes", hint=self.quotes_hint())
        self.at = match.end()
        return match[0]

    def port(self) -> None:
        match = PORT.match(self.text, self.at)
        if match is None:
            self.name("a port")
        else:
            self.at = match.end()

    def quotes_hint(self) -> str | None:
        """The hint for a name that needs quotes; None: the text here is not like a name."""
        match = ODD_NAME.match(self.text, self.at)
        if match is None or not (match[0][0].isalnum() or len(match[0]) > 2):
            return None
        return f'Put it in quotes: "{match[0][:40]}".'

    def string(self) -> str:
        match = QUOTED.match(self.text, self.at)
        if match is None:
            raise self.error("this string is not closed", hint='A " inside one is written \\".')
        self.at = match.end()
        return unescaped(match[0][1:-1])

    def keyword(self, at: int | None = None) -> str:
        match = IDENTIFIER.match(self.text, self.at if at is None else at)
        word = match[0].lower() if match else ""
        return word if word in KEYWORDS else ""

    def skip(self) -> None:
        match = SKIP.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        if self.text.startswith("/*", self.at):
            raise self.error("this comment is not closed", hint="It ends at */.")

    def sees(self, character: str) -> bool:
        return self.text.startswith(character, self.at)

    def expect(self, character: str, message: str) -> None:
        if not self.sees(character):
            raise self.error(message, hint=self.quotes_hint())
        self.at += 1

    def error(self, message: str, *, hint: str | None = None, at: int | None = None) -> DotError:
        position = self.at if at is None else at
        return DotError(
            message, text=self.text, position=position, source=self.source, hint=hint or None
        )

    # The file.

    def graph(self) -> Graph:
        self.skip()
        keyword = self.keyword()
        if keyword == "strict":
            raise self.error("strict graphs are not supported", hint="Remove `strict`.")
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
        root = _Scope(self.line_and_column(self.at)[0])
        self.expect("{", f"expected {{ after digraph {name}")
        self.statements(root)
        self.skip()
        if self.at < len(self.text):
            hint = "A file has one digraph; run another with a node of `type=include`."
            raise self.error("text after the end of the digraph", hint=hint)
        for node in self.nodes.values():
            if "class" in node.attrs or node.id in self.classes:
                node.classes = self.classes_of(node)
                node.within = next(iter(self.classes.get(node.id, ())), "")
            if "timeout" in node.attrs and node.id not in self.own_timeouts:
                node.inherits_timeout = True
        return Graph(name, root.attrs, self.nodes, self.edges)

    def classes_of(self, node: Node) -> tuple[str, ...]:
        own = _CLASS_SEPARATORS.split(str(node.attrs.get("class", "")))
        return tuple(dict.fromkeys(filter(None, [*own, *self.classes.get(node.id, ())])))

    # Statements in their usual form.

    def statements(self, scope: _Scope) -> None:
        """Read all statements up to the brace that closes the scope, and that brace."""
        text, usual = self.text, _USUAL.match
        while True:
            match = usual(text, self.at)
            if match is None:
                if self.unusual(scope):
                    return
            elif self.usual(match, scope):
                self.at = match.end()
            else:  # a keyword, or an error whose place must be match: read it token by token
                self.statement(scope)

    def usual(self, match: re.Match[str], scope: _Scope) -> bool:
        """Add a statement that ``_USUAL`` has matched. False: it must be read token by token."""
        first, other, body = match.groups()
        try:
            attrs = self.pairs(body) if body else {}
        except ValueError:
            return False
        source = self.usual_name(first)
        if source is None:
            return False
        line, column = self.line_and_column(match.start(1))
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
            self.mention(target, *self.line_and_column(match.start(2)), scope)
        if scope.edges:
            attrs = {**scope.edges, **attrs}
        self.edges.append(Edge(source, target, attrs, line, column))
        return True

    def pairs(self, body: str) -> dict[str, Value]:
        """The attributes of a block. Raises ``ValueError`` for a bare value that is invalid."""
        pairs = _PAIRS.findall(body)
        if "\\" in body:
            pairs = [(key, unescaped(quoted), bare) for key, quoted, bare in pairs]
        return {intern(key): convert_word(bare) if bare else quoted for key, quoted, bare in pairs}

    def usual_name(self, text: str) -> str | None:
        """The name of a node; None: it is a keyword."""
        if text[0] == '"':
            return text[1:-1]
        if text not in self.nodes and text.lower() in KEYWORDS:
            return None
        return text

    # The meaning of statements.

    def declare(
        self, name: str, attrs: dict[str, Value], line: int, column: int, scope: _Scope
    ) -> None:
        """A node statement. Defaults are applied when the node first appears, and when it is first
        declared they fill the attributes that are still missing. They are not applied later: a
        node that is named again in a subgraph, to group it, does not change."""
        node = self.nodes.get(name)
        if "timeout" in attrs:
            self.own_timeouts.add(name)
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
        """A node that an edge names."""
        if name not in self.nodes:
            self.nodes[name] = Node(name, dict(scope.nodes), (), line, column)
            self.only_mentioned.add(name)
        if scope.depth:
            scope.members[name] = None

    # Statements in any form.

    def unusual(self, scope: _Scope) -> bool:
        """Read one statement, or the text between two. Returns whether it was the closing
        brace."""
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
                f"{keyword} inside a digraph", hint="A file has one digraph; use `subgraph` inside."
            )
        elif not keyword and self.is_assignment(scope):
            pass
        else:
            self.chain(scope)
        self.skip()
        if self.sees(";"):
            self.at += 1

    def is_assignment(self, scope: _Scope) -> bool:
        """Read ``key = value`` if that follows. Returns whether it did."""
        match = ATTRIBUTE_KEY.match(self.text, self.at) or QUOTED.match(self.text, self.at)
        if match is None:
            return False
        after = SKIP.match(self.text, match.end())
        end = after.end() if after else match.end()
        if not self.text.startswith("=", end):
            if "." in match[0] and match[0][0] != '"':
                hint = f'A node with a dot in its name is written "{match[0]}".'
                raise self.error(f"expected = after {match[0]}", at=end, hint=hint)
            return False
        key = unescaped(match[0][1:-1]) if match[0][0] == '"' else match[0]
        self.at = end + 1
        scope.attrs[intern(key)] = self.value(key)
        return True

    def chain(self, scope: _Scope) -> None:
        """Read ``a``, ``a -> b -> c``, or a subgraph. Either end of an edge may be a subgraph."""
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
            if len(sources) * len(targets) > MAX_EDGES:
                raise self.error(f"more than {MAX_EDGES} edges at once", at=begin)
            for source, line, column in sources:
                for target, _, _ in targets:
                    given = {**scope.edges, **attrs}
                    self.edges.append(Edge(source, target, given, line, column))

    def check_arrow(self, begin: int) -> None:
        """Raises ``DotError`` if the text after the operands starts with a wrong arrow."""
        if self.text.startswith("--", self.at):
            raise self.error("an undirected edge", hint="Write -> instead of --.")
        if self.text.startswith("-", self.at):
            word = ODD_NAME.match(self.text, begin)
            name = word[0] if word else ""
            raise self.error(
                "expected -> or [ or ;",
                hint=f'A name with a - in it is written in quotes: "{name}".',
            )

    def operand(self, scope: _Scope) -> list[tuple[str, int, int]]:
        """The nodes at one end of an edge, each with the line and column of that end."""
        line, column = self.line_and_column(self.at)
        keyword = self.keyword()
        if keyword == "subgraph" or self.sees("{"):
            members = self.subgraph(scope, len(keyword))
            return [(name, line, column) for name in members]
        if keyword:
            hint = f'A node called {keyword} is written "{keyword}".'
            raise self.error(f"expected a node, not the keyword {keyword}", hint=hint)
        name = self.name("a node")
        self.skip()
        while self.sees(":"):  # a port, which only matters for drawing
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
        scope = _Scope(self.line_and_column(self.at)[0], outer)
        if scope.depth > MAX_DEPTH:
            raise self.error(
                f"subgraphs are nested more than {MAX_DEPTH} deep", hint="Nest them less."
            )
        self.expect("{", "expected { after subgraph")
        self.statements(scope)
        label = _NOT_IN_CLASS.sub("", "-".join(str(scope.attrs.get("label", "")).lower().split()))
        if label:
            for name in scope.members:
                self.classes.setdefault(name, []).append(label)
        if outer.depth:
            outer.members.update(scope.members)
        return scope.members
