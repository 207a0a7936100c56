"""``codergen``: a prompt to the node's agent, or to our own agent on the node's model."""

from __future__ import annotations

from corral.events import Json
from corral.pipelines import stage
from corral.pipelines.handlers import Handler, Work
from corral.pipelines.outcome import Outcome

RESPONSE = 200
"""Characters of an answer in the context; the whole is in ``response.md``."""


async def codergen(work: Work) -> Outcome:
    prompt = work.node.text("prompt") or work.node.label
    stage.put(work.folder / "prompt.md", prompt)
    return answered(work, simulated(work))


def simulated(work: Work) -> str:
    return f"[Simulated] Response for stage: {work.node.id}"


def answered(work: Work, text: str) -> Outcome:
    """A success, with the answer where people and later nodes find it."""
    stage.put(work.folder / "response.md", text)
    updates: dict[str, Json] = {"last_stage": work.node.id, "last_response": text[:RESPONSE]}
    return Outcome(context_updates=updates)


HANDLERS: dict[str, Handler] = {"codergen": codergen}
