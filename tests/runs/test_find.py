"""A stored run is found by its id, a beginning of it, or ``last``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.event_samples import stored_pipeline, stored_session

from corral.errors import ConfigError, ResumeLost
from corral.runs import find as runs
from corral.system import paths


def test_a_session_and_a_run_folder_are_found_and_last_is_the_newest_of_both() -> None:
    with pytest.raises(ResumeLost, match="there is no run yet"):
        runs.find("last")
    session = stored_session()
    assert runs.find(session[:-2]) == ("session", session, paths.sessions() / session)
    assert runs.find("last").id == session
    folder = stored_pipeline(paths.home() / "runs" / "ship-1a2b")
    later = time.time() + 60
    os.utime(folder / "events.ndjson", (later, later))
    assert runs.find("last") == runs.find("ship") == ("pipeline", "ship-1a2b", folder)
    with pytest.raises(ResumeLost, match="no session or run is called 'nothing'"):
        runs.find("nothing")


def test_the_id_of_a_pipeline_run_is_read_from_its_folder(tmp_path: Path) -> None:
    assert runs.find_pipeline_run(str(stored_pipeline(tmp_path / "run")), None) == "ship-1a2b"
    with pytest.raises(ConfigError, match="is not a run folder"):
        runs.find_pipeline_run(str(tmp_path), None)
    assert runs.find_pipeline_run("absent", None) == "absent"
