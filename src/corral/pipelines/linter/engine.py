"""What is wrong with a pipeline, before anything runs. Needs no key and no network.

A rule is a function from a graph to its findings. Add one's own::

    def no_shell(graph):
        for node in graph.of_kind("tool"):
            yield warning("no_shell", f"{node.id} runs a command", node=node)

    lint(graph, rules=[no_shell])
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.errors import PipelineInvalid
from corral.pipelines.graph import Graph
from corral.pipelines.linter.finding import Finding, Rule
from corral.pipelines.linter.rules import RULES


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
    findings = [finding for rule in (*RULES, *rules) for finding in rule(graph)]
    return sorted(findings, key=lambda finding: (finding.line, finding.column))


def raise_on_errors(findings: Iterable[Finding]) -> None:
    """Raises ``LintError`` where one of them is an error."""
    findings = list(findings)
    if any(finding.severity == "error" for finding in findings):
        raise LintError(findings)
