"""Lints a pipeline: finds what is wrong before anything runs. Needs no key and no network.

A rule is a function from a graph to its findings. A program can add its own::

    def no_shell(graph):
        for node in graph.of_kind("tool"):
            yield warning("no_shell", f"{node.id} runs a command", node=node)

    lint(graph, rules=[no_shell])
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from corral.errors import PipelineInvalid
from corral.pipelines.graph import Graph
from corral.pipelines.linter import attributes, conditions, context_keys, structure
from corral.pipelines.linter.finding import Finding, Rule

RULES: tuple[Rule, ...] = (
    structure.start_node,
    structure.terminal_node,
    structure.edge_target_exists,
    structure.start_no_incoming,
    structure.exit_no_outgoing,
    structure.reachability,
    structure.no_path_to_exit,
    structure.dead_end,
    structure.fan_out_has_fan_in,
    conditions.condition_syntax,
    conditions.condition_never_true,
    attributes.stylesheet_syntax,
    attributes.required_attributes,
    attributes.prompt_file,
    attributes.attribute_value,
    attributes.attribute_known,
    attributes.fidelity_valid,
    attributes.retry_target_exists,
    attributes.goal_gate_has_retry,
    attributes.type_known,
    attributes.prompt_on_llm_nodes,
    attributes.agent_known,
    attributes.policy_known,
    attributes.model_known,
)
"""The built-in rules. A rule is one function; findings have its name. ``lint`` also calls
``key_known``, with the keys that the run gives a value."""
MAX_SHOWN = 20
"""Errors in the message of a ``LintError``."""


class LintError(PipelineInvalid):
    """The pipeline has errors. ``findings`` has all errors and warnings."""

    code = "lint"

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
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
    findings = [finding for rule in (*RULES, *rules) for finding in rule(graph)]
    findings += context_keys.key_known(graph, values)
    return sorted(findings, key=lambda finding: (finding.line, finding.column))


def raise_on_errors(findings: Iterable[Finding]) -> None:
    """Raises ``LintError`` if one of them is an error."""
    findings = list(findings)
    if any(finding.severity == "error" for finding in findings):
        raise LintError(findings)
