"""docs/pipeline-reference.md, made of the records of node types and attributes, and the rules."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

from corral._docs.error_pages import from_docstring
from corral._option_definitions import BY_NAME as OPTIONS
from corral._pipelines import node_kinds
from corral._pipelines.attribute_definitions import BY_NAME, DEFINITIONS, OwnerName
from corral._pipelines.linter import conditions
from corral._pipelines.linter.engine import RULES
from corral._pipelines.node_kinds import KINDS, PUBLIC, attributes_of

BEGIN, END = "<!-- made of the records of pipelines -->", "<!-- end -->"


def with_reference(page: str) -> str:
    """The page with the tables between the two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{rest.partition(END)[2]}"


def reference() -> str:
    sections = [
        ("Node types", ("`type`", "shape", "", "attributes"), _types()),
        ("Attributes of the graph", ("attribute", "default", ""), _attributes("graph")),
        ("Attributes of every node", ("attribute", "default", ""), _attributes("node")),
        ("Attributes of agents and models", ("attribute", "default", ""), _of_agents()),
        ("Attributes of other types", ("attribute", "default", "", "of"), _of_other_types()),
        ("Attributes of an edge", ("attribute", "default", ""), _attributes("edge")),
        ("Rules of the linter", ("rule", "a finding is", ""), _rules()),
    ]
    parts: list[str] = []
    for title, columns, rows in sections:
        parts += [f"## {title}", "", _row(columns), f"|{'---|' * len(columns)}", *map(_row, rows)]
        parts.append("")
    return "\n".join(parts)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _types() -> Iterator[tuple[str, ...]]:
    """``attributes`` are those that only some types have, without those of agents and models."""
    for kind in (KINDS[name] for name in PUBLIC):
        names = _listed((kind.name, *kind.aliases))
        shape = f"`{kind.shape}`" if kind.shape else ""
        attributes = _listed(sorted(kind.attributes))
        if kind.llm != "none":
            also = "those of agents and models"
            attributes = f"{attributes}, and {also}" if attributes else also
        yield names, shape, kind.text, attributes


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _attributes(owner: OwnerName) -> Iterator[tuple[str, ...]]:
    for each in DEFINITIONS:
        if owner in each.owners:
            yield _described(each.name)


OF_AGENTS = attributes_of(node_kinds.CODERGEN.name)
"""The attributes that every node with an agent or a model has."""


def _of_agents() -> Iterator[tuple[str, ...]]:
    every = {each.name for each in DEFINITIONS if "node" in each.owners}
    for name in sorted(OF_AGENTS - every):
        yield _described(name, of_run=True)


def _of_other_types() -> Iterator[tuple[str, ...]]:
    for name in (each.name for each in DEFINITIONS if not each.owners):
        kinds = [kind for kind in PUBLIC if name in KINDS[kind].attributes]
        if kinds:
            yield *_described(name), _listed(kinds)


def _described(name: str, *, of_run: bool = False) -> tuple[str, str, str]:
    """Name, default and text. ``of_run``: those of the option of ``corral.run``, if it is one."""
    attribute, option = BY_NAME.get(name), OPTIONS.get(name)
    names = _listed((name, *(attribute.aliases if attribute else ())))
    if option is not None and (attribute is None or (of_run and "graph" in attribute.owners)):
        return names, option.default, option.text
    assert attribute is not None
    assert attribute.text, name
    choices = f" {_listed(attribute.choices)}." if attribute.choices else ""
    return names, attribute.default, attribute.text + choices


def _rules() -> Iterator[tuple[str, ...]]:
    known = {**RULES, conditions.key_known: "warning"}
    for rule, severity in known.items():
        text = " ".join(from_docstring(inspect.getdoc(rule) or "").split())
        assert text, rule
        yield f"`{getattr(rule, '__name__', '')}`", f"{severity}", text
