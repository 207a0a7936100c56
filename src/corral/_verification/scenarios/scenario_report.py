"""The complete report of scenarios, for the user only.

It is a file in corral's home, which no sandbox shows, readable by its owner only: one line of JSON
for each time that the scenarios of a run were run. No receipt, event or log names it or repeats
what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from corral._system import clock, fs, paths
from corral._system.randomness import random_hex
from corral._verification.scenarios.counts import ScenarioCounts, ScenarioResult
from corral._verification.scenarios.scenario_folder import ScenarioFolder
from corral.errors import StorageFailed
from corral.values import Json, JsonObject, slug


def report_file(run_id: str) -> Path:
    """Where the report of a run is, if its scenarios were run."""
    name = slug(run_id, limit=80, allowed="_", default="run")
    return paths.home() / "scenarios" / f"{name}.jsonl"


def store_report(
    run_id: str, folder: ScenarioFolder, results: Sequence[ScenarioResult], counts: ScenarioCounts
) -> None:
    """Add a line to the report of a run. Raises ``StorageFailed``. Blocks."""
    scenarios: list[Json] = [
        {
            "name": result.scenario.name,
            "class": result.scenario.class_name,
            "kind": result.scenario.kind,
            "outcome": result.outcome,
            "reason": result.reason,
            "seconds": result.seconds,
            "output": result.output,
        }
        for result in results
    ]
    _add_line(run_id, folder, {"counts": msgspec.to_builtins(counts), "scenarios": scenarios})


def store_problem(run_id: str, folder: ScenarioFolder, error: Exception) -> None:
    """As ``store_report``, if the scenarios could not be run."""
    _add_line(run_id, folder, {"problem": f"{type(error).__name__}: {error}"})


def _add_line(run_id: str, folder: ScenarioFolder, facts: JsonObject) -> None:
    path = report_file(run_id or f"check-{random_hex(6)}")
    head: JsonObject = {"time": clock.now(), "folder": folder.path, "digest": folder.digest}
    try:
        paths.make_dir(path.parent)
        fs.append(path, msgspec.json.encode({**head, **facts}) + b"\n")
    except OSError as error:
        raise StorageFailed(f"the report {path} cannot be written: {error}") from error
