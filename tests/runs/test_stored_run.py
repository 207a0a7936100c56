"""Runs are found by id, path and 'last'; damaged logs are read as far as possible."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.event_samples import (
    pipeline_events,
    session_events,
    stored_pipeline,
    stored_session,
    write_events,
)

from corral._pipelines.events import to_json as run_event_to_json
from corral._runs import stored_run
from corral._system import paths
from corral.errors import ConfigError, CorralError, ResumeLost
from corral.events import Done, Init, Text, to_json


def types(run: stored_run.StoredRun) -> list[str]:
    return [event.type for event in run.events()]


def test_a_session_is_found_by_its_id_a_beginning_of_it_its_folder_and_last() -> None:
    name = stored_session()
    folder = paths.sessions() / name
    for given in (name, name.rpartition("-")[2][:5], str(folder)):
        found = stored_run.find(given)
        assert (found.kind, found.id, found.title) == ("session", name, "Fix the parser"), given
    with pytest.warns(UserWarning, match="no run in this project"):
        assert stored_run.find("last").id == name
    assert types(stored_run.find(str(folder / "events.ndjson"))) == types(stored_run.find(name))


def test_a_pipeline_run_is_found_by_its_id_its_folder_and_last(tmp_path: Path) -> None:
    stored_session()
    folder = stored_pipeline(paths.home() / "runs" / "ship-1a2b")
    later = time.time() + 60
    os.utime(folder / "events.ndjson", (later, later))
    for given in ("ship-1a2b", "ship", str(folder)):
        found = stored_run.find(given)
        assert (found.kind, found.id, found.title) == ("pipeline", "ship-1a2b", "Ship it"), given
    with pytest.warns(UserWarning, match="no run in this project"):
        assert stored_run.find("last").id == "ship-1a2b"
    elsewhere = stored_pipeline(tmp_path / "elsewhere")
    assert types(stored_run.find(str(elsewhere))) == types(stored_run.find("ship"))


def test_the_events_of_agents_stand_inside_their_node(tmp_path: Path) -> None:
    folder = stored_pipeline(tmp_path / "run")
    found = [run_event_to_json(event) for event in stored_run.at(folder).events()]
    assert found == [run_event_to_json(event) for event in pipeline_events()]
    # A round that is over was moved, and its visits with it.
    (folder / "rounds" / "1").mkdir(parents=True)
    (folder / "visits").rename(folder / "rounds" / "1" / "visits")
    assert [run_event_to_json(event) for event in stored_run.at(folder).events()] == found


def test_the_events_of_a_pipeline_that_a_node_started_are_read(tmp_path: Path) -> None:
    folder = stored_pipeline(tmp_path / "run")
    stored_pipeline(folder / "visits" / "build.1" / "child")
    assert types(stored_run.at(folder)).count("pipeline_started") == 2


def test_a_node_that_has_not_ended_is_read(tmp_path: Path) -> None:
    folder = stored_pipeline(tmp_path / "run")
    log = folder / "events.ndjson"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:5]))  # the node build has just started
    assert types(stored_run.at(folder))[-1] == "done"


def test_a_name_that_nothing_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResumeLost, match="there is no run yet"):
        stored_run.find("last")
    with pytest.raises(ResumeLost, match="no run is called 'nothing'"):
        stored_run.find("nothing")
    with pytest.raises(ConfigError, match="is no run"):
        stored_run.find(str(tmp_path))
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(ConfigError, match="has no events"):
        stored_run.find(str(tmp_path / "notes.txt"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        stored_run.find(str(tmp_path / "pipe"))


def test_a_log_that_is_cut_off_is_read_to_its_last_complete_line(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.ndjson", session_events())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 20])
    found = stored_run.at(path)
    assert len(types(found)) == len(session_events()) - 1
    assert "ends in the middle of a line" in " ".join(found.notices.sentences())


def test_a_last_line_without_a_newline_is_read(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.ndjson", session_events())
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    found = stored_run.at(path)
    assert (types(found)[-1], found.notices.sentences()) == ("done", [])


def test_an_empty_log_has_no_events(tmp_path: Path) -> None:
    (tmp_path / "log.ndjson").touch()
    assert types(stored_run.at(tmp_path / "log.ndjson")) == []


def test_a_log_of_a_newer_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    future = b'{"type":"hologram","seq":2,"run_id":"s.1"}'
    path.write_bytes(
        b"\n".join([to_json(Init(version=7)), future, to_json(Done(status="success")), b""])
    )
    found = stored_run.at(path)
    assert types(found) == ["init", "done"]
    assert "a newer corral wrote the log (version 7" in " ".join(found.notices.sentences())
    assert future in list(found.lines())  # ndjson keeps it


def test_what_is_no_event_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    bad = [b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"type":"text"}', b""]
    path.write_bytes(b"\n".join([to_json(Init()), *bad, to_json(Text("hello")), b""]))
    found = stored_run.at(path)
    assert types(found) == ["init", "text"]
    assert found.notices.unreadable == 5


def test_a_line_that_is_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_run, "MAX_LINE", 1000)
    path = write_events(tmp_path / "log.ndjson", [Init(), Text("x" * 5000), Text("short")])
    found = stored_run.at(path)
    assert types(found) == ["init", "text"]
    assert found.notices.too_long == 1


def test_a_log_that_grows_is_read_to_the_end_that_it_had(tmp_path: Path) -> None:
    path = write_events(tmp_path / "log.ndjson", session_events())
    events = stored_run.at(path).events()
    next(events)
    with path.open("ab") as file:
        file.write(to_json(Text("later")) + b"\n")
    assert len(list(events)) == len(session_events()) - 1


def test_secrets_of_the_environment_and_keys_are_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "canary-0123456789")
    text = "canary-0123456789 and sk-abcdefghijklmnopqrstuvwx and Bearer abcdefghijklmnop1234"
    path = write_events(tmp_path / "log.ndjson", [Init(), Text(text)])
    line = [*stored_run.at(path).lines()][-1]
    assert b"[SERVICE_TOKEN redacted] and [key redacted] and Bearer [key redacted]" in line


def test_a_session_without_a_transcript_is_refused() -> None:
    name = stored_session()
    (paths.sessions() / name / "events.ndjson").unlink()
    with pytest.raises(CorralError, match="has no transcript"):
        stored_run.find(name)
