"""A stored run is found by its id, a beginning of it, or ``last``."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import pytest
from support.event_samples import stored_pipeline, stored_session

import corral
from corral._comparison.plan import ComparisonPlan, save_plan
from corral._runs import kinds as kinds_of
from corral._runs import lookup
from corral._system import paths
from corral.errors import ConfigError, ResumeLost


def named(name: str, *kinds: str) -> tuple[str, str]:
    run = lookup.find(name, kinds=kinds or kinds_of.KINDS)
    return run.kind, run.id


def test_a_session_and_a_run_folder_are_found(tmp_path: Path) -> None:
    with pytest.raises(ResumeLost, match="there is no run yet"):
        named("last")
    session = stored_session()
    assert named(session[:-2]) == ("session", session)
    folder = stored_pipeline(paths.home() / "runs" / "ship-1a2b")
    assert named("ship") == named(str(folder)) == ("pipeline", "ship-1a2b")
    with pytest.raises(ConfigError, match="is not a run folder"):
        named(str(tmp_path))
    with pytest.raises(ResumeLost, match="no run is called 'nothing'"):
        named("nothing")


def test_an_id_that_fits_two_kinds_names_both() -> None:
    session = stored_session()
    stored_pipeline(paths.home() / "runs" / f"{session[:8]}-ship")
    with pytest.raises(ConfigError, match=rf"2 runs .*{session} \(session\).* \(pipeline\)"):
        named(session[:8])


# ``last`` means one thing.


def store_batch(name: str, workspace: Path) -> None:
    """A batch in the default database, which has ended."""
    with contextlib.chdir(workspace):
        corral.batch_sync([{"id": "a"}], "hi", name=name, simulate=True, durable=True)


def store_run(name: str, workspace: Path, age: float = 0.0) -> Path:
    folder = stored_pipeline(paths.home() / "runs" / name)
    manifest = {"name": "ship", "run_id": name, "workspace": str(workspace)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    moment = time.time() - age
    os.utime(folder / "events.ndjson", (moment, moment))
    return folder


def store_comparison(name: str, workspace: Path) -> None:
    save_plan(
        ComparisonPlan(
            name=name, title="A pair", created=0.0, agents=(), tasks=(), cwd=str(workspace)
        )
    )


def test_last_is_the_newest_run_of_any_kind_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
    monkeypatch.chdir(here)
    store_run("ship-1a2b", here, age=60)
    assert named("last")[1] == "ship-1a2b"
    session = stored_session(cwd=str(here))
    assert named("last", "session")[1] == session
    stored_session(cwd=str(other))  # newer, elsewhere
    assert named("last")[1] == session
    store_comparison("pair", here)
    assert named("last") == ("comparison", "pair")
    store_batch("many", here)
    assert named("last", "batch")[1] == "many"
    with pytest.raises(ConfigError, match="last is the batch many, not a session") as error:
        named("last", "session")
    assert error.value.hint == f"The newest session is {session}. See: corral runs show many"
    with pytest.raises(ConfigError, match="last is the batch many, not a pipeline"):
        named("last", "pipeline")


def test_last_is_elsewhere_only_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = stored_session(cwd="/absent/project")
    warning = f"no run in this project; last is the session {session} in /absent/project"
    with pytest.warns(UserWarning, match=warning):
        assert named("last")[1] == session
    assert lookup.find("last", cwd="/absent/project").id == session
