"""The types of a journal: what is stored in a format can be read as long as it has its number."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import get_args

import msgspec

from corral._core.stored_formats import JOURNAL
from corral._engine.node_runner import AttemptResult, Retrying
from corral._engine.payloads import AgentAsks, NodeInput, NodesStep, PipelineOutput, RunInput
from corral._pipelines.scheduler.commands import Message
from corral._workflows.program_turn import ProgramTurn

STORED = Path(__file__).parent / "journal_formats" / f"{JOURNAL}.txt"
CHANGED = (
    "a field of what is stored was renamed, removed or has another type or default: if runs of the"
    " format before cannot be continued, raise JOURNAL in _core/stored_formats.py (CONTRIBUTING.md)"
    " and run this with UPDATE_GOLDENS=1"
)


def fields() -> dict[str, bool]:
    """Each field of a stored type, with its schema and default → whether it is required."""
    kinds = [
        RunInput,
        NodeInput,
        NodesStep,
        AgentAsks,
        ProgramTurn,
        PipelineOutput,
        AttemptResult,
        Retrying,
    ]
    _, types = msgspec.json.schema_components([*kinds, *get_args(Message)], ref_template="{name}")
    return {
        f"{name}.{field} {json.dumps(schema, sort_keys=True)}": field in type["required"]
        for name, type in types.items()
        for field, schema in type["properties"].items()
    }


def test_a_format_changes_only_by_new_types_and_new_fields_with_a_default() -> None:
    current = fields()
    stored = {*STORED.read_text().splitlines()} if STORED.exists() else set[str]()
    assert stored - current.keys() == set(), CHANGED
    types = {field.partition(".")[0] for field in stored}
    added = {
        field
        for field in current.keys() - stored
        if current[field] and field.partition(".")[0] in types
    }
    assert added == set(), "a field that is added to a stored type needs a default"
    if os.environ.get("UPDATE_GOLDENS"):
        STORED.parent.mkdir(exist_ok=True)
        STORED.write_text("\n".join(sorted(current)) + "\n")
        return
    new = {field.partition(".")[0] for field in current} - types
    assert new == set(), "new stored types: run this with UPDATE_GOLDENS=1, so that they stay"
