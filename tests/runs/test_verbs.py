"""The verbs of runs as a table: each kind, by the command and in Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_in_process import run_in_process
from support.event_samples import stored_pipeline, stored_session

import corral
from corral import runs
from corral._comparison.plan import ComparisonPlan, save_plan
from corral._merging.queue import MergeEntry, MergeQueue, QueueStore
from corral._pipelines.execution.run_dir import RunDir
from corral._review import review_store
from corral._review.result import Review
from corral._runs.kinds import KINDS, kind_of
from corral._runs.lookup import find
from corral._system import paths
from corral.errors import ConfigError


def session(folder: Path) -> str:
    return stored_session(cwd=str(folder))


def pipeline(folder: Path, kind: str = "pipeline") -> str:
    place = stored_pipeline(paths.home() / "runs" / f"{kind}-1a2b")
    manifest = {"name": "ship", "goal": "Ship it", "run_id": place.name, "kind": kind}
    (place / "manifest.json").write_text(json.dumps({**manifest, "workspace": str(folder)}))
    (place / "checkpoint.json").write_text('{"status": "success", "cost_usd": 0.5}')
    RunDir(place).write_graph(
        corral.pipelines.load("digraph ship { s [shape=Mdiamond]; e [shape=Msquare]; s -> e }")
    )
    return place.name


def workflow(folder: Path) -> str:
    return pipeline(folder, "workflow")


def batch(folder: Path) -> str:
    tasks = [{"id": "a"}]
    corral.batch_sync(tasks, "Say {{id}}", name="many", simulate=True, durable=True, cwd=folder)
    return "many"


def comparison(folder: Path) -> str:
    plan = ComparisonPlan(
        name="pair", title="A pair", created=1.0, agents=(), tasks=(), cwd=str(folder)
    )
    save_plan(plan)
    return "pair"


def review(folder: Path) -> str:
    with review_store.recorded(
        "main...HEAD", str(folder), "", review_store.ReviewCall(), None
    ) as stored:
        stored.review = Review(title="main...HEAD", status="reviewed", summaries=("Good.",))
    return stored.id


def merge(folder: Path) -> str:
    store = QueueStore.of(folder, "main")
    entry = MergeEntry(number=1, branch="one", commit="c", state="merged", result="d" * 40)
    store.write(
        MergeQueue(
            id=store.id, repository=str(folder), into="main", gates=["true"], entries=[entry]
        )
    )
    return store.id


MAKERS: dict[str, Callable[[Path], str]] = {
    "session": session,
    "pipeline": pipeline,
    "workflow": workflow,
    "batch": batch,
    "comparison": comparison,
    "review": review,
    "merge": merge,
}
SHOWN = {
    "session": "> ",
    "pipeline": "Ship it",
    "workflow": "Ship it",
    "batch": "tasks      1: 1 done, 0 failed, 0 left",
    "comparison": "0 of 0 attempts have a verdict",
    "review": "main...HEAD",
    "merge": "✓ ",
}
"""What ``show`` has besides the head."""


def test_each_kind_is_in_the_table() -> None:
    assert KINDS.keys() == MAKERS.keys() == SHOWN.keys()


@pytest.mark.parametrize("kind", MAKERS)
def test_the_verbs_of_a_kind(
    kind: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(workspace)
    id = MAKERS[kind](workspace)

    def command(words: str) -> str:
        done = run_in_process(f"runs {words}", monkeypatch)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # list
    (run,) = runs.list_sync(project=".")
    assert (run.id, run.kind, run.project) == (id, kind, str(workspace))
    assert run.title
    (listed,) = json.loads(command(f"list --kind {kind} --project . --json"))
    assert listed["id"] == id
    assert listed.keys() == set(runs.Run.__struct_fields__)
    assert runs.list_sync(state="queued") == []
    assert runs.list_sync(text="no such text") == []
    # show
    assert runs.show_sync(id).run == run
    shown = command("show last")
    assert f"run        {id}\nkind       {kind}\n" in shown
    assert SHOWN[kind] in shown
    assert json.loads(command(f"show {id} --json"))["run"]["id"] == id
    # export, replay
    if kind_of(run).formats:
        assert runs.replay_sync(id)
        for name in ("ndjson", "atif", "otel", "html", "md"):
            assert runs.export_sync(id, name), name
        assert command(f"export {id}") == runs.export_sync(id).decode()
        assert command(f"replay {id} --speed max --json")
    else:
        with pytest.raises(ConfigError, match="has no events of its own"):
            runs.export_sync(id)
        refused = run_in_process(f"runs replay {id}", monkeypatch)
        assert (refused.returncode, "has no events of its own" in refused.stderr) == (2, True)
    # watch
    refused = run_in_process(f"runs watch {id}", monkeypatch)
    assert (refused.returncode, "is not running" in refused.stderr) == (2, True)
    # usage
    assert runs.usage_sync(run=id, by="run").total.turns == json.loads(
        command(f"usage --run {id} --by run --json")
    )["total"].get("turns", 0)
    # prune, delete
    assert [each.id for each in runs.prune_sync(older_than=0, dry_run=True)] == [id]
    assert "0 deleted" in command("prune --older-than 1d") or kind == "comparison"
    if kind == "comparison":  # it is as old as its plan says
        return
    assert find(id) == run
    assert command(f"delete {id}") == f"{id} deleted\n"
    assert runs.list_sync() == []
