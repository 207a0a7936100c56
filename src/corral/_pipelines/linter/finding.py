"""A finding of the linter: the place, the severity, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from corral._pipelines.graph import Edge, Graph, Node

Severity = Literal["error", "warning"]
Owner: TypeAlias = Graph | Node | Edge
"""What has attributes."""


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


Rule: TypeAlias = Callable[[Graph], Iterable[Finding]]


class Problem(NamedTuple):
    """What a built-in rule finds. The finding has the name and the severity of the rule."""

    owner: Owner
    message: str
    fix: str | None = None
    severity: Severity | None = None
    """Instead of that of the rule."""

    def as_finding(self, rule: str, severity: Severity) -> Finding:
        owner = self.owner
        return Finding(
            rule=rule,
            severity=self.severity or severity,
            message=self.message,
            line=0 if isinstance(owner, Graph) else owner.line,
            column=0 if isinstance(owner, Graph) else owner.column,
            node=owner.id if isinstance(owner, Node) else None,
            edge=(owner.source, owner.target) if isinstance(owner, Edge) else None,
            fix=self.fix,
        )
