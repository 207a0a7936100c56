"""A finding of the linter: the place, the severity, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import msgspec

from corral.pipelines.graph import Edge, Graph, Node

Severity = Literal["error", "warning"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error or a warning of the linter, with its place and, if known, a fix."""

    rule: str
    severity: Severity
    message: str
    line: int = 0
    """0: the finding is about the graph itself."""
    column: int = 0
    node: str | None = None
    edge: tuple[str, str] | None = None
    fix: str | None = None
    """What to do."""

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.line else ""
        fix = f" ({self.fix})" if self.fix else ""
        return f"{place}{self.severity}: {self.message} [{self.rule}]{fix}"


Problem: TypeAlias = tuple[str, str | None]
"""What is wrong, and what to do about it."""
Rule: TypeAlias = Callable[[Graph], Iterable[Finding]]


def error(
    rule: str,
    message: str,
    *,
    node: Node | None = None,
    edge: Edge | None = None,
    fix: str | None = None,
) -> Finding:
    """A finding because of which the pipeline must not run."""
    owner = node or edge
    return Finding(
        rule=rule,
        severity="error",
        message=message,
        line=owner.line if owner else 0,
        column=owner.column if owner else 0,
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
    """A finding with which the pipeline may run."""
    finding = error(rule, message, node=node, edge=edge, fix=fix)
    return msgspec.structs.replace(finding, severity="warning")
