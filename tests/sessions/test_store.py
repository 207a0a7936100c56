"""Sessions on disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from support.descriptors import free_descriptors
from support.scripted_agent import GOOD, open_descriptors, scripted_options

import corral
from corral._runs import transcript
from corral._sessions import store
from corral._sessions.store import SessionRecord
from corral._system import paths
from corral.errors import ConfigError, FormatUnsupported, ResumeLost, StorageFailed
from corral.events import Done, Error, Event, Init, Text, Vendor
from corral.options import RunOptions
from corral.run_kwargs import RunKwargs


def made() -> SessionRecord:
    session = store.create("an-agent", "/work")
    session.make_folders()
    return session


def stored(updated: float, session_id: str | None = None) -> SessionRecord:
    session = made()
    session.meta.updated = updated
    session.meta.session_id = session_id
    session.save()
    return session


def test_a_session_without_a_prompt_leaves_nothing_on_disk() -> None:
    session = store.create("an-agent", "/work")
    session.close(keep=True)
    assert not paths.home().exists()


def test_a_turns_folders_are_private_and_made_once() -> None:
    session = made()
    session.make_folders()
    assert session.folder.parent == paths.sessions()
    for folder in (session.folder, session.home, session.tmp):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert (session.meta.agent, session.meta.cwd, session.meta.session_id) == (
        "an-agent",
        "/work",
        None,
    )


def test_a_session_of_a_newer_format_is_refused_and_left_out_of_lists() -> None:
    session = stored(5.0)
    session.close(keep=True)
    meta = session.folder / store.META
    newer = meta.read_text().replace('"format":1', '"format":9').replace('"agent"', '"program"')
    meta.write_text(newer)
    line = f"session {session.meta.id} is stored in format 9, and this corral uses format 1"
    with pytest.raises(FormatUnsupported) as raised:
        store.find(session.meta.id)
    assert str(raised.value) == f"{line}: update corral"
    assert store.all_sessions() == []
    assert meta.read_text() == newer


def test_what_was_saved_is_found_again() -> None:
    session = stored(5.0, "vendor-1")
    session.meta.title, session.meta.turns, session.meta.status = "hello", 2, "success"
    session.save()
    found = store.find(session.meta.id)
    assert msgspec.to_builtins(found.meta) == msgspec.to_builtins(session.meta)
    assert (session.folder / store.META).stat().st_mode & 0o777 == 0o600


def test_a_session_is_found_by_our_id_its_tail_the_vendors_id_or_as_the_last() -> None:
    old, new = stored(1.0, "vendor-1"), stored(2.0, "vendor-2")
    assert store.find(old.meta.id).folder == old.folder
    assert store.find(old.meta.id.rsplit("-", 1)[1]).folder == old.folder
    assert store.find("vendor-1").folder == old.folder
    assert store.find("last").folder == new.folder


def test_all_sessions_are_listed_newest_first() -> None:
    ids = [stored(updated).meta.id for updated in (2.0, 3.0, 1.0)]
    assert [session.meta.id for session in store.all_sessions()] == [ids[1], ids[0], ids[2]]


@pytest.mark.parametrize("name", ["none", "vendor", "19990101"])
def test_an_unknown_session_is_an_error(name: str) -> None:
    stored(1.0, "vendor-1")
    with pytest.raises(ResumeLost):
        store.find(name)


def test_without_any_session_there_is_no_last() -> None:
    assert store.all_sessions() == []
    with pytest.raises(ResumeLost, match="no session yet"):
        store.find("last")


@pytest.mark.parametrize("name", ["", "../x", "/etc", ".", "..", "a/b", ".hidden"])
def test_a_path_is_not_a_session_name(name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a session"):
        store.find(name)


def test_a_folder_that_is_not_a_session_is_skipped() -> None:
    session = stored(1.0)
    (paths.sessions() / "empty").mkdir()
    broken = paths.sessions() / "broken"
    broken.mkdir()
    (broken / store.META).write_text("{")
    (paths.sessions() / "a-file").write_text("x")
    assert [found.meta.id for found in store.all_sessions()] == [session.meta.id]


EVENTS: list[Event] = [
    Init(run_id="r", seq=1),
    Text("hä\n\u2028", seq=2),
    Done(status="success", seq=3),
]


def test_a_transcript_is_read_back_as_it_was_written() -> None:
    session = made()
    session.append_events([EVENTS[0]])
    session.append_events(EVENTS[1:])
    assert list(session.events()) == EVENTS
    assert (session.folder / store.EVENTS).stat().st_mode & 0o777 == 0o600
    session.close(keep=True)


def test_a_transcript_is_continued_with_the_last_free_descriptor() -> None:
    session = made()
    session.append_events([EVENTS[0]])
    session.close(keep=True)
    with free_descriptors(1):
        session.append_events(EVENTS[1:])
    session.close(keep=True)
    assert list(session.events()) == EVENTS


def test_a_second_turn_is_added_to_the_transcript() -> None:
    session = made()
    session.append_events([EVENTS[0]])
    session.close(keep=True)
    session.append_events([EVENTS[1]])
    session.close(keep=True)
    assert list(session.events()) == EVENTS[:2]


def test_a_last_line_that_was_cut_is_left_out() -> None:
    session = made()
    session.append_events(EVENTS)
    path = session.folder / store.EVENTS
    path.write_bytes(path.read_bytes()[:-5])
    assert list(session.events()) == EVENTS[:2]
    session.close(keep=True)


def test_without_a_transcript_there_are_no_events() -> None:
    assert list(store.create("an-agent", "/work").events()) == []


def test_a_stored_session_keeps_its_home_and_not_its_temporary_files() -> None:
    session = stored(1.0)
    for folder in (session.tmp, session.images):
        folder.mkdir(exist_ok=True)
        (folder / "x").write_text("x")
    (session.home / "y").write_text("y")
    session.close(keep=True)
    assert not session.tmp.exists()
    assert not session.images.exists()
    assert (session.home / "y").exists()


def test_a_session_that_is_not_stored_leaves_nothing() -> None:
    session = stored(1.0)
    session.append_events(EVENTS)
    session.close(keep=False)
    assert list(paths.sessions().iterdir()) == []


def test_the_error_for_a_folder_that_cannot_be_made_has_a_hint() -> None:
    session = store.create("an-agent", "/work")
    paths.make_dir(paths.sessions())
    session.folder.write_text("not a folder")
    with pytest.raises(StorageFailed, match="cannot make a session folder") as raised:
        session.make_folders()
    assert "CORRAL_HOME" in (raised.value.hint or "")


async def test_a_home_that_cannot_be_written_costs_the_record_and_not_the_run(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-file").write_text("x")
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "a-file"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    async with corral.session("gemini-cli", **scripted_options(workspace)) as session:
        events = [event async for event in session.prompt(GOOD)]
        second = await session.run(GOOD)
        assert len(list(temporary.glob("corral-session-*"))) == 1
    assert list(temporary.glob("corral-session-*")) == []
    (warning,) = [event for event in events if isinstance(event, Error)]
    assert (warning.code, warning.recoverable) == ("session_lost", True)
    assert "cannot be written: set CORRAL_HOME" in warning.message
    assert (second.status, second.resume_token) == ("success", None)


async def test_a_run_in_python_is_recorded_as_one_of_the_command_line(workspace: Path) -> None:
    await corral.run("gemini-cli", GOOD, **scripted_options(workspace))
    found = store.find("last")
    kinds = [type(event) for event in found.events()]
    assert (kinds[:2], kinds[-1]) == ([Init, Vendor], Done)
    (turn,) = transcript.turns(found.events())
    assert (turn.prompt, turn.text) == (GOOD, "hello")


@pytest.mark.parametrize("declined", [{"record": False}, {"keep": False}])
async def test_a_run_is_not_recorded_if_that_is_declined(
    declined: RunKwargs, workspace: Path
) -> None:
    await corral.run("gemini-cli", GOOD, **scripted_options(workspace, **declined))
    assert list(paths.sessions().rglob(store.EVENTS)) == []


def test_a_configuration_can_decline_the_record() -> None:
    assert not RunOptions.build("an-agent", {}, {"record": False}).record
    assert not RunOptions.build("an-agent", {"keep": False}, {"record": True}).record


async def test_on_a_full_disk_the_transcript_ends_and_a_warning_names_the_folder(
    workspace: Path,
) -> None:
    async with corral.session("gemini-cli", **scripted_options(workspace, record=True)) as session:
        folder = paths.sessions() / session.id
        folder.mkdir(parents=True)
        (folder / "events.ndjson").symlink_to("/dev/full")
        events = [event async for event in session.prompt(GOOD)]
    assert corral.result_from_events(events).ok
    [warning] = [event for event in events if isinstance(event, Error)]
    assert warning.code == "transcript_lost"
    assert f"cannot write in {folder}: No space left on device" in warning.message
    assert "free some space" in warning.message


async def test_the_changes_of_files_are_stored_and_redacted(workspace: Path) -> None:
    (workspace / "old.txt").write_text("before\n")
    key = "scripted-key-0123456789"
    script = f"init\nsh echo after {key} > old.txt\ntext done\nresult"
    await corral.run("gemini-cli", script, **scripted_options(workspace))
    diff = store.find("last").diff(1)
    assert "-before\n" in diff
    assert "+after" in diff
    assert key not in diff
    await corral.run("gemini-cli", script, **scripted_options(workspace, record=False))
    assert store.find("last").diff(1) == ""


def test_an_unnamed_transcript_is_read_after_the_stored_one_and_leaves_no_file() -> None:
    session = made()
    before = open_descriptors()
    session.append_events([Init(seq=1)])
    session.append_unnamed([Text("one", seq=2)])
    session.append_unnamed([Text("two", seq=3)])
    assert [event.seq for event in session.events()] == [1, 2, 3]
    session.append_unnamed([Done("success", seq=4)])
    assert [event.seq for event in session.events()] == [1, 2, 3, 4]
    assert [path.name for path in session.folder.glob("events*")] == ["events.ndjson"]
    session.save()
    session.close(keep=True)
    assert [event.seq for event in store.find(session.meta.id).events()] == [1]
    assert open_descriptors() - before == set()
