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
from corral._runs import find as runs
from corral._system import paths
from corral.errors import ConfigError, ResumeLost


def test_a_session_and_a_run_folder_are_found() -> None:
    with pytest.raises(ResumeLost, match="there is no run yet"):
        runs.find("last")
    session = stored_session()
    assert runs.find(session[:-2]) == ("session", session, paths.sessions() / session)
    folder = stored_pipeline(paths.home() / "runs" / "ship-1a2b")
    assert runs.find("ship") == ("pipeline", "ship-1a2b", folder)
    with pytest.raises(ResumeLost, match="no session or run is called 'nothing'"):
        runs.find("nothing")


def test_the_id_of_a_pipeline_run_is_read_from_its_folder(tmp_path: Path) -> None:
    assert runs.find_pipeline_run(str(stored_pipeline(tmp_path / "run")), None) == "ship-1a2b"
    with pytest.raises(ConfigError, match="is not a run folder"):
        runs.find_pipeline_run(str(tmp_path), None)
    assert runs.find_pipeline_run("absent", None) == "absent"


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
    folder = paths.home() / "comparisons" / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"cwd": str(workspace)}))


def test_last_is_the_newest_run_of_any_kind_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
    monkeypatch.chdir(here)
    store_run("ship-1a2b", here, age=60)
    assert runs.find("last").id == "ship-1a2b"
    session = stored_session(cwd=str(here))
    assert runs.find_last("session").id == session
    stored_session(cwd=str(other))  # newer, elsewhere
    assert runs.find("last").id == session
    store_comparison("pair", here)
    assert runs.find("last") == ("comparison", "pair", None)
    store_batch("many", here)
    assert runs.find_last("batch").id == "many"
    with pytest.raises(ConfigError, match="last is the batch many, not a session") as error:
        runs.find_last("session")
    assert error.value.hint == f"The newest session is {session}. See: corral batches show many"
    with pytest.raises(ConfigError, match="last is the batch many, not a pipeline run"):
        runs.find_pipeline_run("last", None)


def test_last_is_elsewhere_only_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = stored_session(cwd="/absent/project")
    warning = f"no run in this folder; last is the session {session} in /absent/project"
    with pytest.warns(UserWarning, match=warning):
        assert runs.find("last").id == session
    assert runs.find_last(cwd="/absent/project").id == session
