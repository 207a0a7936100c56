"""What a simulated run does instead of the work of its nodes.

``simulate=True`` simulates agents and models; their handlers do that. A ``Simulation`` goes
further. With ``all`` no command runs, no request is sent and no file is used: only nodes that
compute values of the context work (``NodeKind.is_pure``), and gates are answered with their default
or first choice. A script says what chosen visits of nodes give instead, so that every path can be
tried::

    {"review": ["fail", "success"],
     "tests":  {"outcome": "fail", "output": "2 failed", "context": {"coverage": 71}},
     "gate":   [{"label": "Revise"}, {"label": "Approve"}]}

The first entry is for the first visit of the node, and so on; the last one is for all later visits.
A scripted failure is final: it is not retried.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal, TypeAlias

import msgspec

from corral._core.nesting import decode_json
from corral._pipelines import node_kinds
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler import human_gate
from corral._system import fs
from corral.errors import ConfigError
from corral.values import Json, convert_to, is_sequence

SIMULATED = "[Simulated] Response for stage: "


class ScriptedVisit(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one visit of a node gives."""

    outcome: str = "success"
    label: str = ""
    """The preferred label; of a gate, the choice."""
    output: Json = None
    """The answer of an agent, the output of a command; of a gate, the text of the person."""
    context: dict[str, Json] = {}
    """Context updates."""
    reason: str = ""
    """Of a failure."""
    failure_class: str = ""


class Simulation(msgspec.Struct, frozen=True, omit_defaults=True):
    all: bool = False
    """Whether commands, requests and files are simulated too, and gates are answered."""
    script: dict[str, tuple[ScriptedVisit, ...]] = {}
    """By the id of the node."""

    def visit(self, node: str, number: int) -> ScriptedVisit | None:
        """What the script says about this visit (from 1); None: nothing."""
        visits = self.script.get(node, ())
        return visits[min(number, len(visits)) - 1] if visits else None


Simulate: TypeAlias = bool | Simulation
SimulateMode: TypeAlias = bool | Literal["all"]
Script: TypeAlias = Mapping[str, object] | str | os.PathLike[str]
"""The script, or a JSON file that has it."""


def build(mode: SimulateMode, script: Script | None, graph: Graph) -> Simulate:
    """With a script everything else is simulated, unless ``mode`` is True. Raises
    ``ConfigError``."""
    if mode not in (True, False, "all"):
        raise ConfigError(f"simulate must be True, False or 'all', got: {mode!r}")
    if script is None:
        return Simulation(all=True) if mode == "all" else mode is True
    source = "the script"
    if not isinstance(script, Mapping):
        source = f"the script {os.fspath(script)}"
        try:
            script = convert_to(decode_json(fs.read_bytes(script)), dict[str, object])
        except OSError as error:
            raise ConfigError(f"{source} cannot be read: {error.strerror}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} is not a JSON object of nodes: {error}") from error
    visits = {name: _read_visits(name, given, source) for name, given in script.items()}
    for name, entries in visits.items():
        _check_node(graph, name, entries, source)
    return Simulation(all=mode is not True, script=visits)


def _read_visits(node: str, given: object, source: str) -> tuple[ScriptedVisit, ...]:
    entries = given if is_sequence(given) else [given]
    try:
        return tuple(
            convert_to({"outcome": entry} if isinstance(entry, str) else entry, ScriptedVisit)
            for entry in entries
        )
    except (msgspec.ValidationError, TypeError) as error:
        raise ConfigError(
            f"{source}: {node}: {error}",
            hint='An entry is "fail", or {"outcome": …, "label": …, "output": …, "context": {…}}.',
        ) from error


def _check_node(graph: Graph, name: str, entries: tuple[ScriptedVisit, ...], source: str) -> None:
    """Raises ``ConfigError`` for a node or a choice that does not exist."""
    node = graph.nodes.get(name)
    if node is None:
        if any(graph.of_kind(*node_kinds.CHILD_KINDS)):
            return  # it may be a node of a child pipeline
        near = get_close_matches(name, graph.nodes, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Nodes: {', '.join([*graph.nodes][:20])}."
        raise ConfigError(f"{source}: there is no node {name}", hint=hint)
    if node.kind in node_kinds.SCHEDULER_KINDS and node.kind != node_kinds.WAIT_HUMAN.name:
        raise ConfigError(
            f"{source}: {name} is a {node.kind}: it has no outcome of its own",
            hint="Name the node before it, or a node of its child pipeline.",
        )
    if node.kind == node_kinds.WAIT_HUMAN.name:
        offered = human_gate.choices(graph.edges_from(name))
        for entry in entries:
            if entry.label and human_gate.find_choice(offered, entry.label) is None:
                known = ", ".join(choice.label for choice in offered)
                raise ConfigError(
                    f"{source}: {name} has no choice {entry.label!r}", hint=f"One of {known}."
                )


def runs_nothing(simulate: Simulate) -> bool:
    """Whether commands, requests and files are simulated too."""
    return isinstance(simulate, Simulation) and simulate.all


def simulated_answer(node: Node) -> str:
    return f"{SIMULATED}{node.id}"
