"""Held-out scenarios as a source of evidence for ``verify``.

What leaves this module by evidence is what ``counts`` knows. Names, texts and output are in the
report for the user only: a file in corral's home, which no sandbox shows, readable by its owner
only, with one line of JSON for each time that the scenarios of a run were run. No receipt, event or
log names it or repeats what is in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from corral._models.registry import EXAMPLE
from corral._system import clock, fs, paths
from corral._system.clock import random_hex
from corral._system.threads import in_thread
from corral._verification.check import JUDGE, CheckContext
from corral._verification.scenarios.counts import ScenarioCounts, ScenarioResult, count, spending
from corral._verification.scenarios.judge import Judge, check_model
from corral._verification.scenarios.run_scenarios import run_scenarios
from corral._verification.scenarios.scenario_folder import (
    ScenarioFolder,
    read_folder,
)
from corral.errors import ConfigError, StorageFailed
from corral.receipt import CheckKind, Evidence
from corral.values import Json, JsonObject, slug

NAME = "held-out scenarios"
THRESHOLD = 0.9
NO_SANDBOX = (
    "held-out scenarios need a complete sandbox: without one, code that the agent wrote could copy"
    " them to where the agent reads"
)


class ScenarioCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Made by ``scenarios``."""

    source: ScenarioFolder
    threshold: float = THRESHOLD
    judge: str = ""

    def __repr__(self) -> str:
        return f"scenarios(threshold={self.threshold:g})"

    @property
    def kind(self) -> CheckKind:
        return "scenarios"

    @property
    def name(self) -> str:
        return NAME

    @property
    def reads_files(self) -> bool:
        return True

    def describe(self) -> JsonObject:
        """Nothing: a receipt does not say where the scenarios are."""
        return {}

    @property
    def longest(self) -> float:
        """Seconds that all of them may take together: each has its own limit."""
        source = self.source
        return source.build_timeout + sum(
            2 * scenario.timeout + 60 for scenario in source.scenarios
        )

    def check_judge(self) -> None:
        """Raises ``ConfigError`` and ``MissingKey``. Calls nothing."""
        if self.judge:
            check_model(self.judge)

    async def run(self, context: CheckContext) -> Evidence:
        """Nothing that is raised or returned says anything about a single scenario."""
        sandbox = context.sandbox
        if sandbox is None or not sandbox.support.is_complete:
            return _missing(NO_SANDBOX)
        run_id = context.run_id
        if context.result is not None:
            run_id = context.result.run_id.rpartition(".")[0]  # the session: all its rounds
        judge = Judge(model=self.judge, budget=context.budget) if self.judge else None
        try:
            results = await run_scenarios(self.source, context, judge)
            counts = count(results, self.threshold)
            await in_thread(store_report, run_id, self.source, results, counts)
        except Exception as error:  # whatever it is, its message may have names and contents
            await in_thread(store_problem, run_id, self.source, error)
            return _missing("the scenarios could not be run; the report for the user says why")
        details: JsonObject = {"digest": self.source.digest, **counts.as_details()}
        if (spent := spending(results)) is not None:
            details[JUDGE] = msgspec.to_builtins(spent)
        return Evidence(
            kind="scenarios",
            name=NAME,
            outcome=counts.outcome,
            reason="" if counts.outcome == "passed" else counts.complaint,
            seconds=round(sum(result.seconds for result in results), 3),
            details=details,
        )


def _missing(reason: str) -> Evidence:
    return Evidence(kind="scenarios", name=NAME, outcome="missing", reason=reason)


def scenarios(
    folder: str | os.PathLike[str], *, threshold: float = THRESHOLD, judge: str | None = None
) -> ScenarioCheck:
    """Held-out scenarios for ``verify``: checks in a folder that the agent cannot read.

    Passed if at least the fraction ``threshold`` of them is satisfied, each counted with its
    weight. ``judge`` is the model, as ``vendor:name``, that answers the questions among them. The
    agent learns counts and classes only. The folder is read and checked here; a mistake in it
    raises ``ConfigError``.

    ::

        result = corral.run_sync(
            "gemini-cli",
            "Write the parser",
            policy="edits",
            verify=[corral.scenarios("../held-out", threshold=0.9)],
        )
    """
    if isinstance(threshold, bool) or not 0 < threshold <= 1:
        raise ConfigError(f"threshold must be above 0 and at most 1, got: {threshold!r}")
    source = read_folder(folder)
    if source.needs_judge and not judge:
        asks = next(scenario.name for scenario in source.scenarios if scenario.kind == "judge")
        raise ConfigError(
            f"{asks} asks a judging model, and no model is given",
            hint=f"Give judge={EXAMPLE!r} (--judge), or another model.",
        )
    return ScenarioCheck(source=source, threshold=float(threshold), judge=judge or "")


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
