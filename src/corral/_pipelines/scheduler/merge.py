"""The files of branches with their own worktrees are merged before their node ends.

The branches of a ``parallel`` node, or the items of a ``for_each``, are over (``RunLane.merging``).
The driver visits the node once more, as ``<visit>.merge``, and merges what they changed. If there
is a conflict and the node says ``on_conflict=ask``, a person chooses a branch
(``<visit>.conflict``), and the driver merges again (``<visit>.chosen``). Then the node ends with
the outcome of its branches, or with that of the merge if it failed.
"""

from __future__ import annotations

import msgspec

from corral._pipelines import node_kinds
from corral._pipelines.graph import Graph, Node
from corral._pipelines.scheduler import human_gate
from corral._pipelines.scheduler.commands import Answer, BranchWork, Choice, Question
from corral._pipelines.scheduler.outcome import Outcome, failed
from corral._pipelines.scheduler.state import BRANCHES, LEFT_OUT, WORKTREE, ForkEnd, RunLane, State
from corral.values import as_list, as_object, as_text, as_texts, convert_to

_FAIL = Choice("f", "fail: nothing is merged", "fail")
MOST_FILES = 20
"""Files that a question names."""


def has_worktrees(node: Node) -> bool:
    """Whether each branch of this node, or item, has its own worktree."""
    return node.text("worktree") == "branch"


def merges_files(node: Node) -> bool:
    """False: the branches of this node, or its items, are kept for a node ``merge``."""
    return node.attrs.get("merge") not in (False, "false")


def uses_worktrees(graph: Graph) -> bool:
    """Whether a node of this graph wants worktrees for its branches or items."""
    return any(has_worktrees(node) for node in graph.nodes.values())


def has_lanes(graph: Graph, state: State) -> bool:
    """Whether worktrees of lanes may be left when the run ends: those of a graph, or of a workflow,
    which has no graph before."""
    return uses_worktrees(graph) or any(key.startswith(WORKTREE) for key in state.context)


def needs_repository(graph: Graph) -> bool:
    """Whether it makes worktrees or merges branches."""
    return uses_worktrees(graph) or any(graph.of_kind(node_kinds.MERGE.name))


def end_of_items(outcome: Outcome) -> ForkEnd | None:
    """The outcome of a node whose items changed files in worktrees; None: there is nothing to
    merge."""
    updates = {**outcome.context_updates}
    branches = tuple(convert_to(each, BranchWork) for each in as_list(updates.pop(BRANCHES, None)))
    if not branches:
        return None
    outcome = msgspec.structs.replace(outcome, context_updates=updates)
    return ForkEnd(outcome=outcome, merges=branches)


def must_ask(node: Node, end: ForkEnd, outcome: Outcome) -> bool:
    """Whether a person is asked after a merge with this outcome."""
    return (
        node.text("on_conflict") == "ask"
        and not outcome.ok
        and end.conflict is None
        and bool(outcome.context_updates.get(LEFT_OUT))
    )


def question(lane: RunLane, node: Node, end: ForkEnd) -> Question:
    """Which branch is merged first?"""
    conflict = {} if end.conflict is None else end.conflict.context_updates
    left_out = [as_object(each) for each in as_list(conflict.get(LEFT_OUT))]
    files = sorted({file for each in left_out for file in as_texts(each.get("files"))})
    named = ", ".join(files[:MOST_FILES])
    against = ", ".join(as_text(each.get("id")) for each in left_out)
    choices = [
        Choice(str(number), f"{branch.id}, without those that conflict with it", branch.id)
        for number, branch in enumerate(end.merges, 1)
    ]
    return Question(
        id=f"{lane.visit}.conflict",
        node=node.id,
        text=f"{against} changed the same lines as branches before: {named}. Which branch stays?",
        choices=(*choices, _FAIL),
    )


def with_answer(end: ForkEnd, asked: Question, answer: Answer) -> ForkEnd:
    """With the branch that the person chose, if it is one."""
    choice = None if answer.skipped else human_gate.find_choice(asked.choices, answer.value)
    chosen = "" if choice is None or choice == _FAIL else choice.target
    return msgspec.structs.replace(end, chosen=chosen)


def combined(end: ForkEnd, merge: Outcome) -> ForkEnd:
    """The end of the node, after the files were merged with this outcome."""
    outcome = end.outcome
    updates = {**outcome.context_updates, **merge.context_updates}
    if not merge.ok:
        outcome = failed(merge.failure_reason, retryable=False)
        return ForkEnd(outcome=msgspec.structs.replace(outcome, context_updates=updates))
    status = outcome.status if merge.status == "success" else merge.status
    notes = "; ".join(text for text in (outcome.notes, merge.notes) if text)
    outcome = msgspec.structs.replace(outcome, status=status, notes=notes, context_updates=updates)
    return ForkEnd(outcome=outcome, join=end.join)
