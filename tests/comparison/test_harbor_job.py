"""A comparison as a job folder of harbor. The shape was checked with harbor 0.25's own models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from atif import Trajectory
from support.comparisons import FLASH, PRO, WORKS, compare, use_scripted_agents
from support.repositories import repository

from corral._comparison import harbor_job

__all__ = ["repository"]

pytestmark = pytest.mark.whole_program


@pytest.mark.deep
def test_every_ended_attempt_is_a_trial(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_scripted_agents(tmp_path, monkeypatch)
    tasks = [
        {"id": "works", "prompt": WORKS, "verify": "echo looked; grep -q fixed file"},
        {"id": "dies", "prompt": "init\ndie 9", "verify": "true"},
    ]
    found = compare(tasks, [FLASH, PRO], repository, attempts=1, name="job", work=["file"])
    job = harbor_job.write("job", tmp_path / "jobs")
    trials = {path.parent.name: json.loads(path.read_text()) for path in job.glob("*/result.json")}
    assert len(trials) == 4
    by_agent = {
        (each["task_name"], each["agent_info"]["name"]): (folder, each)
        for folder, each in trials.items()
    }
    folder, good = by_agent["works", PRO]
    assert good["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert good["exception_info"] is None
    assert good["agent_result"]["n_input_tokens"] == 20
    assert good["agent_info"]["version"] == "0.61.0"
    assert good["finished_at"] >= good["agent_execution"]["finished_at"] > good["started_at"]
    trial = job / folder
    assert (trial / "verifier" / "reward.txt").read_text() == "1\n"
    assert (trial / "verifier" / "test-stdout.txt").read_text() == "looked\n"
    assert "+fixed" in (trial / "artifacts" / "changes.patch").read_text()
    written = Trajectory.model_validate_json((trial / "agent" / "trajectory.json").read_bytes())
    assert written.agent.version == "0.61.0"
    _, failed = by_agent["works", FLASH]
    assert failed["verifier_result"] == {"rewards": {"reward": 0.0}}
    _, missing = by_agent["dies", PRO]
    assert (missing["verifier_result"], missing["exception_info"]["exception_type"]) == (
        None,
        "killed_by_signal",
    )
    for config in job.rglob("config.json"):  # without one, harbor reads docker
        assert json.loads(config.read_text())["environment"]["import_path"].startswith("corral")
    result = json.loads((job / "result.json").read_text())
    stats = result["stats"]
    assert (result["n_total_trials"], stats["n_completed_trials"]) == (4, 4)
    assert stats["n_errored_trials"] == 2
    assert sum(each["n_trials"] for each in stats["evals"].values()) == 2
    assert found.agents[0].missing == 1
