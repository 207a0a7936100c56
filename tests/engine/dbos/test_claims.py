"""Workflows that a process runs itself: who may store their outputs."""

from __future__ import annotations

from corral._engine.dbos import client
from corral._engine.dbos.database import WorkflowSubmission, find, prepare
from corral.values import Json

QUEUE = "own-someone"


def claims(*ids: str) -> list[WorkflowSubmission]:
    return [
        WorkflowSubmission(name="w", id=each, queue=QUEUE, payload={"of": each}) for each in ids
    ]


def test_an_output_is_stored_once_and_only_by_the_owner(db: str) -> None:
    database = find(db)
    prepare(database)
    with client.connect(database) as connected:
        first, second = connected.claims("one"), connected.claims("two")
        assert first.begin(claims("a", "b", "c")) == {"a", "b", "c"}
        assert second.begin(claims("c", "d")) == {"d"}
        started = connected.get_workflow("a")
        assert started is not None
        assert (started.state, started.executor, started.input) == ("running", "one", {"of": "a"})
        connected.cancel(["b"])
        connected.resume(["c"], QUEUE)
        outputs: dict[str, Json] = {"a": [1], "b": [2], "c": [3]}
        assert second.complete(outputs) == set()
        assert first.complete(outputs) == {"a"}
        assert first.complete(outputs) == set()
        ended = {each.id: (each.state, each.output) for each in connected.get_outputs([*"abcd"])}
        assert ended == {"a": ("succeeded", [1]), "b": ("cancelled", None)}
        assert [each.state for each in connected.list_workflows(ids=["c"])] == ["queued"]
