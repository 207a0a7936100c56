"""The diagnostic bundle has what is needed to understand a run, and no secret."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.event_samples import first_turn, session_events, stored_pipeline, stored_session

from corral._export import bundle
from corral._runs import stored_run
from corral._system import paths
from corral.events import Error, Event, Init, Text, Vendor

CANARIES = {
    "OPENAI_API_KEY": "sk-canary-of-the-environment-0001",
    "DATABASE_URL": "postgres://ada:canary-password@db.example/app",
    "SERVICE_COOKIE": "canary-cookie-0123456789",
}
FOUND_KEY = "sk-canary-that-no-variable-has-0002"


def files_of(run: stored_run.StoredRun, report: str = "it works\n") -> dict[str, str]:
    data = io.BytesIO()
    described = bundle.write(run, data.write, lambda agent: f"{agent}: {report}")
    with zipfile.ZipFile(data) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(names) == len({*names}) == len(described)
        assert all(":" in line for line in described), described
        return {name: archive.read(name).decode() for name in names}


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> str:
    """Secrets in the environment and the configuration; returns the home folder."""
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    config = paths.user_config()
    config.parent.mkdir(parents=True)
    config.write_text(
        '[agents.codex-cli]\nmodel = "gpt-5"\nenv = { MODE = "canary-of-the-file" }\n'
    )
    return str(paths.user_home())


def hostile_events(home: str) -> list[Event]:
    secrets = " ".join([*CANARIES.values(), FOUND_KEY, f"{home}/project/x.py"])
    return [
        *session_events(),
        Init(run_id="s.3", agent="codex-cli", cwd=f"{home}/project"),
        Vendor("prompt", secrets),
        Vendor("run_facts", {"policy": [{"capability": "shell", "verdict": "deny"}]}),
        Text(secrets),
        Error("killed", f"failed: {secrets}", facts={"stderr": secrets}),
    ]


def test_no_file_has_a_secret_or_the_home_folder(canaries: str) -> None:
    run = stored_run.find(stored_session(hostile_events(canaries), cwd=f"{canaries}/project"))
    found = files_of(run, report=f"{canaries}/bin/codex {CANARIES['OPENAI_API_KEY']}\n")
    for name, text in found.items():
        assert "canary" not in text, name
        assert canaries not in text, name
    assert "~/project/x.py" in found["events.ndjson"]
    assert "[OPENAI_API_KEY redacted]" in found["doctor.txt"]
    assert "OPENAI_API_KEY\n" in found["environment.txt"]


def test_a_bundle_explains_the_run(canaries: str) -> None:
    found = files_of(stored_run.find(stored_session(hostile_events(canaries))))
    assert set(found) == {
        *("README.txt", "run.json", "events.ndjson", "meta.json", "policy.json", "stderr.txt"),
        *("versions.json", "environment.txt", "config.json", "doctor.txt"),
    }
    run = json.loads(found["run.json"])
    assert (run["agent"], run["kind"]) == ("codex-cli", "session")
    assert [turn["status"] for turn in run["turns"]] == ["success", "interrupted"]
    assert [error["code"] for error in run["errors"]][-1] == "killed"
    assert json.loads(found["policy.json"]) == [{"capability": "shell", "verdict": "deny"}]
    assert json.loads(found["versions.json"])["msgspec"]
    (config,) = json.loads(found["config.json"]).values()
    assert config["content"]["agents"]["codex-cli"] == {
        "model": "gpt-5", "env": {"MODE": "[value left out]"}
    }  # fmt: skip
    assert "events.ndjson: the events of the run" in found["README.txt"]


def test_a_bundle_of_a_pipeline_run_has_its_nodes(tmp_path: Path) -> None:
    found = files_of(stored_run.at(stored_pipeline(tmp_path / "run")))
    assert {"manifest.json", "visits/build.1/events.ndjson", "visits/build.1/prompt.md"} <= {*found}


def test_the_middle_of_a_long_log_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_LOG", 20_000)
    events = [replace(Text(f"number {n}"), seq=n) for n in range(2000)]
    found = files_of(stored_run.find(stored_session([*first_turn()[:1], *events])))
    lines = [json.loads(line) for line in found["events.ndjson"].splitlines()]
    assert (lines[1]["delta"], lines[-1]["delta"]) == ("number 0", "number 1999")
    assert len(found["events.ndjson"]) < 25_000
    (notice,) = [line["text"] for line in lines if line["type"] == "log"]
    assert notice.endswith("events are left out here")


def test_a_log_that_was_cut_off_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    path.write_bytes(b'{"type":"init","version":1}\n{"type":"te')
    assert "ends in the middle of a line" in files_of(stored_run.at(path))["README.txt"]
