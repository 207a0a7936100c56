"""A receipt as a record of Agent Trace (version 0.1 of https://agent-trace.dev): which lines of
which files the agent wrote.

The record has the lines of the state that the receipt is about. ``vcs.revision`` is the commit that
has exactly these files; without one it is left out. Deleted files have no lines, and are left out.
Files are changed by the agent's tools and by its shell alike, so all lines of the run are the
agent's. What the format has no field for is below ``metadata.corral``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

from corral.receipt import Receipt
from corral.values import Json, JsonObject

VERSION = "0.1"
LONGEST_MODEL = 250


def trace_record(
    receipt: Receipt, lines: Mapping[str, Sequence[tuple[int, int]]], commit: str | None = None
) -> JsonObject:
    """The record. ``lines``: path → the first and last line of each part that the run wrote."""
    run = receipt.run
    contributor: JsonObject = {"type": "ai"}
    if run.model:
        contributor["model_id"] = run.model.replace(":", "/", 1)[:LONGEST_MODEL]
    files: list[Json] = []
    for path, ranges in sorted(lines.items()):
        parts: list[Json] = [{"start_line": first, "end_line": last} for first, last in ranges]
        if parts:
            conversation: JsonObject = {"contributor": contributor, "ranges": parts}
            files.append({"path": path, "conversations": [conversation]})
    record: JsonObject = {
        "version": VERSION,
        # The same receipt gives the same record.
        "id": str(uuid5(NAMESPACE_URL, receipt.hash)),
        "timestamp": datetime.fromtimestamp(receipt.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if commit:
        record["vcs"] = {"type": "git", "revision": commit}
    record["tool"] = {"name": "corral", "version": receipt.corral}
    record["files"] = files
    record["metadata"] = {
        "corral": {
            "run_id": run.run_id,
            "agent": run.agent,
            "agent_version": run.agent_version,
            "verdict": receipt.verdict,
            "receipt": receipt.hash,
        }
    }
    return record
