"""The rules that every pipeline is held against. One function a rule, by the rule's name."""

from __future__ import annotations

from corral.pipelines.linter.finding import Rule
from corral.pipelines.linter.rules import structure, texts, values, workers

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
    texts.condition_syntax,
    texts.condition_never_true,
    texts.stylesheet_syntax,
    values.required_attributes,
    values.prompt_file,
    values.attribute_value,
    values.attribute_known,
    values.fidelity_valid,
    values.retry_target_exists,
    values.goal_gate_has_retry,
    workers.type_known,
    workers.prompt_on_llm_nodes,
    workers.agent_known,
    workers.model_known,
)
