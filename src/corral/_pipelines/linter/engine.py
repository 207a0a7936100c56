"""Lints a pipeline: finds what is wrong before anything runs. Needs no key and no network.

A rule is a function from a graph to its findings. A program can add its own::

    def no_shell(graph):
        for node in graph.of_kind("tool"):
            message = f"{node.id} runs a command"
            yield Finding(rule="no_shell", severity="warning", message=message, node=node.id)

    lint(graph, rules=[no_shell])
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from corral._pipelines.graph import Graph
from corral._pipelines.linter import attributes, conditions, structure
from corral._pipelines.linter.finding import Finding, Problem, Rule, Severity
from corral.errors import PipelineInvalid

Check: TypeAlias = Callable[[Graph], Iterable[Problem]]
RULES: dict[Check, Severity] = {
    structure.start_node: "error",
    structure.terminal_node: "error",
    structure.edge_target_exists: "error",
    structure.start_no_incoming: "error",
    structure.exit_no_outgoing: "error",
    structure.reachability: "error",
    structure.no_path_to_exit: "error",
    structure.dead_end: "warning",
    structure.fan_out_has_fan_in: "warning",
    structure.visits_of_branches: "warning",
    structure.merge_has_branches: "error",
    conditions.condition_syntax: "error",
    conditions.condition_never_true: "warning",
    attributes.stylesheet_syntax: "error",
    attributes.required_attributes: "error",
    attributes.prompt_file: "error",
    attributes.attribute_value: "error",
    attributes.attribute_known: "warning",
    attributes.fidelity_valid: "warning",
    attributes.retry_target_exists: "warning",
    attributes.goal_gate_has_retry: "warning",
    attributes.allow_partial_has_retries: "warning",
    attributes.type_known: "warning",
    attributes.prompt_on_llm_nodes: "warning",
    attributes.agent_known: "warning",
    attributes.policy_known: "error",
    attributes.model_known: "warning",
}
"""The built-in rules. A rule is one function; findings have its name. ``lint`` also calls
``key_known``, with the keys that the run gives a value."""
MAX_SHOWN = 20
"""Errors in the message of a ``LintError``."""


class LintError(PipelineInvalid):
    """The pipeline has errors. ``findings`` has all errors and warnings.

    ::

        try:
            pipelines.run_sync("digraph { a -> b }")
        except pipelines.LintError as error:
            print(error.findings)
    """

    __module__ = "corral.pipelines"  # tracebacks show the public name

    code = "lint"

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(findings)
        errors = [finding for finding in self.findings if finding.severity == "error"]
        count = "an error" if len(errors) == 1 else f"{len(errors)} errors"
        shown = "\n".join(f"  {finding}" for finding in errors[:MAX_SHOWN])
        more = f"\n  … and {len(errors) - MAX_SHOWN} more" if len(errors) > MAX_SHOWN else ""
        super().__init__(f"the pipeline has {count}:\n{shown}{more}")


def lint(
    graph: Graph, rules: Iterable[Rule] = (), *, values: Collection[str] = ()
) -> list[Finding]:
    """All findings of the built-in rules and of ``rules``, in the order of the text. ``values`` are
    the keys that the run gives a value.

    ::

        for finding in pipelines.lint(pipelines.parse("digraph { a -> b }")):
            print(finding.line, finding.message)
    """
    found: list[tuple[str, Severity, Iterable[Problem]]] = [
        (check.__name__, severity, check(graph)) for check, severity in RULES.items()
    ]
    found.append(("key_known", "warning", conditions.key_known(graph, values)))
    findings = [
        problem.as_finding(name, severity)
        for name, severity, problems in found
        for problem in problems
    ]
    findings += (finding for rule in rules for finding in rule(graph))
    return sorted(findings, key=lambda finding: (finding.line, finding.column))


def raise_on_errors(findings: Iterable[Finding]) -> None:
    """Raises ``LintError`` if one of them is an error."""
    findings = list(findings)
    if any(finding.severity == "error" for finding in findings):
        raise LintError(findings)
