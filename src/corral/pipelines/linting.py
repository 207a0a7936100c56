"""What is wrong with a pipeline, before anything runs. Needs no key and no network.

A rule is a function from a graph to its findings. Add one's own::

    def no_shell(graph):
        for node in graph.of_kind("tool"):
            yield warning("no_shell", f"{node.id} runs a command", node=node)

    lint(graph, rules=[no_shell])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from corral.errors import PipelineInvalid
from corral.pipelines.graph import Edge, Graph, Node

Severity = Literal["error", "warning"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    rule: str
    severity: Severity
    message: str
    line: int = 0
    """0: of the graph as a whole."""
    column: int = 0
    node: str | None = None
    edge: tuple[str, str] | None = None
    fix: str | None = None
    """What to do."""

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        fix = f" ({self.fix})" if self.fix else ""
        return f"{place}{self.severity}: {self.message} [{self.rule}]{fix}"


Rule: TypeAlias = Callable[[Graph], Iterable[Finding]]


class LintError(PipelineInvalid):
    """A pipeline with errors in it. ``findings`` has them, and the warnings."""

    code = "lint"

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        errors = [finding for finding in self.findings if finding.severity == "error"]
        count = "an error" if len(errors) == 1 else f"{len(errors)} errors"
        shown = "\n".join(f"  {finding}" for finding in errors[:SHOWN])
        more = f"\n  … and {len(errors) - SHOWN} more" if len(errors) > SHOWN else ""
        super().__init__(f"the pipeline has {count}:\n{shown}{more}")


SHOWN = 20
"""Errors in the message; ``findings`` has all."""


def lint(graph: Graph, rules: Iterable[Rule] = ()) -> list[Finding]:
    """All findings of our rules and the caller's, in the order of the text."""
    from corral.pipelines.rules import RULES

    findings = [finding for rule in (*RULES, *rules) for finding in rule(graph)]
    return sorted(findings, key=lambda finding: (finding.line, finding.column))


def refuse(findings: Iterable[Finding]) -> None:
    """Raises ``LintError`` where one of them is an error."""
    findings = list(findings)
    if any(finding.severity == "error" for finding in findings):
        raise LintError(findings)


def error(
    rule: str,
    message: str,
    *,
    node: Node | None = None,
    edge: Edge | None = None,
    fix: str | None = None,
) -> Finding:
    """A finding that must not run."""
    place = node or edge
    return Finding(
        rule=rule,
        severity="error",
        message=message,
        line=place.line if place else 0,
        column=place.column if place else 0,
        node=node.id if node else None,
        edge=(edge.source, edge.target) if edge else None,
        fix=fix,
    )


def warning(
    rule: str,
    message: str,
    *,
    node: Node | None = None,
    edge: Edge | None = None,
    fix: str | None = None,
) -> Finding:
    """A finding that may run."""
    found = error(rule, message, node=node, edge=edge, fix=fix)
    return msgspec.structs.replace(found, severity="warning")
