"""Parse a pipeline in one way and print the cost: ``dot.py WAY FILE``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

GRAMMAR = r"""
start: "digraph" id? "{" stmt* "}"
?stmt: (attr_stmt | assign | edge | node | subgraph) ";"?
attr_stmt: ("graph" | "node" | "edge") attrs
assign: id "=" id
edge: end ("->" end)+ attrs?
?end: id | subgraph
node: id attrs?
subgraph: ("subgraph" id?)? "{" stmt* "}"
attrs: ("[" (id "=" id (","|";")?)* "]")+
?id: NAME | NUMBER | STRING
NAME: /[a-zA-Z_][a-zA-Z0-9_.]*/
NUMBER: /-?(\.[0-9]+|[0-9]+(\.[0-9]*)?)/
STRING: /"(\\.|[^"\\])*"/s
COMMENT: /\/\/[^\n]*|\/\*.*?\*\/|#[^\n]*/s
%ignore COMMENT
%ignore /\s+/
"""
"""Graphviz's own grammar, without ports and HTML."""


def corral_parse(text: str) -> Callable[[], int]:
    from corral._pipelines import dot_parser

    return lambda: len(dot_parser.parse(text).nodes)


def corral_lint(text: str) -> Callable[[], int]:
    from corral._pipelines import dot_parser
    from corral._pipelines.linter import engine

    def read() -> int:
        graph = dot_parser.parse(text)
        assert not any(finding.severity == "error" for finding in engine.lint(graph))
        return len(graph.nodes)

    return read


def pygraphviz(text: str) -> Callable[[], int]:
    module: Any = import_module("pygraphviz")
    return lambda: int(module.AGraph(string=text).number_of_nodes())


def pydot(text: str) -> Callable[[], int]:
    module: Any = import_module("pydot")
    return lambda: len(module.graph_from_dot_data(text)[0].get_node_list())


def lark(text: str) -> Callable[[], int]:
    module: Any = import_module("lark")
    parser = module.Lark(GRAMMAR, parser="lalr")
    return lambda: len(list(parser.parse(text).find_data("node")))


WAYS = {
    "corral": corral_parse,
    "corral-lint": corral_lint,
    "pygraphviz": pygraphviz,
    "pydot": pydot,
    "lark": lark,
}


def main() -> None:
    way, file = sys.argv[1:3]
    with open(file, encoding="utf-8") as opened:
        read = WAYS[way](opened.read())
    if way in ("corral", "corral-lint", "pygraphviz"):
        read()  # not counted: modules are loaded at the first use
    cpu = time.process_time()
    count = read()
    cpu = time.process_time() - cpu
    print(json.dumps({"cpu": cpu, "count": count, "peak": peak()}))


def peak() -> int:
    """Of this program alone: the figure of ``getrusage`` starts with the size of its parent."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file has modules with the names of packages
    main()
