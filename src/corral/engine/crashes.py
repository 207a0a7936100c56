"""An attempt that a crash cut short, begun again: as the node's ``on_crash`` says.

``rerun`` (the default) begins anew. ``fail`` fails the node: nobody knows what it had done.
``resume`` goes on in the agent's own session, where it told of one before it died, and else
begins anew; such a node keeps its sessions.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from corral.events import Done
from corral.pipelines import events
from corral.pipelines.folder import EVENTS
from corral.pipelines.graph import Node
from corral.pipelines.orders import Visit
from corral.pipelines.outcome import Outcome, failed

POLICIES = ("rerun", "fail", "resume")
GO_ON = "You were interrupted while you worked on this. Go on where you were:\n\n"
_TAIL = 64 * 1024
"""Bytes of a diary in which its last event is."""


def begin(folder: Path, node: Node, visit: Visit, attempt: int) -> tuple[Node, Visit] | Outcome:
    """The node and the visit as they are to be worked at, or at once what came of them. Notes
    in the visit's folder that it has begun. Raises ``OSError``."""
    policy = node.text("on_crash", "rerun")
    if policy not in POLICIES:
        said = f"on_crash={policy}: write {', '.join(POLICIES)}"
        return failed(said, retryable=False)
    if policy == "rerun":
        return node, visit
    note = folder / f".begun.{attempt}"
    was_begun = note.exists()
    note.touch()
    if policy == "fail":
        if was_begun:
            return failed("it was cut short by a crash while it ran", retryable=False)
        return node, visit
    thread = visit.thread or visit.id
    visit = replace(visit, fidelity="full", thread=thread)
    session = _session(folder / EVENTS) if was_begun else None
    if session is None:
        return node, visit
    agent, token = session
    kept = {f"internal.thread.{thread}": {"agent": agent, "resume_token": token}}
    prompt = GO_ON + (node.text("prompt") or node.label)
    return (
        replace(node, attrs={**node.attrs, "prompt": prompt}),
        replace(visit, context={**visit.context, **kept}),
    )


def _session(diary: Path) -> tuple[str, str] | None:
    """The agent and its session that were cut short, by the last thing that was said."""
    try:
        with diary.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = events.from_json(line)
        except msgspec.MsgspecError:
            continue  # half a line, or the end of one
        session = event.run_id.rpartition(".")[0]
        return None if isinstance(event, Done) or not session else (event.agent, session)
    return None
