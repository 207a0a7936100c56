"""The conformance kit: runs an agent against a scripted model and checks what it does.

::

    report = await check_agent("gemini-acp")
    assert report.ok, report

A scenario is a conversation whose effects are checked: on disk, in the events, in the requests to
the model. What an agent does not claim to support is skipped, which is not a failure. An agent
whose model cannot be scripted (any ACP command) must only start and answer, with its own model.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from corral._agents.spec import AgentSpec
from corral._system import config, programs
from corral._testing.conformance.scenarios import (
    SCENARIOS,
    ConformanceCheck,
    ScenarioFailed,
    ScenarioSkipped,
    Stage,
)
from corral._testing.kits import agent_spec, markdown_table
from corral._testing.model_server.server import ModelServer
from corral.errors import ConfigError, CorralError, PolicyNotEnforceable
from corral.run_kwargs import RunKwargs

Outcome = Literal["pass", "fail", "skip"]
MARKS: Mapping[Outcome, str] = {"pass": "✓", "fail": "✗", "skip": "–"}

TIMEOUT = 180.0
"""Seconds for one scenario: agents take up to ten to start on a busy machine."""


class Row(msgspec.Struct, frozen=True):
    tier: str
    scenario: str
    outcome: Outcome
    seen: str
    seconds: float


class Report(msgspec.Struct, frozen=True):
    """The scenarios that ran, and their outcomes.

    ::

        report = await testing.check_agent("corral", only=["text"])
        print(report.ok, report.failed)
    """

    agent: str
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Nothing failed, and something passed."""
        outcomes = [row.outcome for row in self.rows]
        return "fail" not in outcomes and "pass" in outcomes

    @property
    def failed(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.outcome == "fail")

    def __str__(self) -> str:
        lines = [f"{MARKS[r.outcome]} {r.tier}: {r.scenario}: {r.seen}" for r in self.rows]
        return "\n".join([self.agent, *lines])


async def check_agent(
    agent: str,
    *,
    only: Iterable[str] = (),
    options: RunKwargs | None = None,
    concurrency: int = 2,
) -> Report:
    """Run every scenario, or those of the tiers ``only``. ``options`` are passed to each run.
    ``vendor:model`` is the built-in agent with that vendor's API.

    Raises ``ConfigError`` for a tier that does not exist, and ``NotInstalled`` or another error of
    the installation. All other errors are in the report.

    ::

        report = await check_agent("gemini-cli", only=["text"])
        assert report.ok, report.failed
    """
    found = agent_spec(agent)
    if "person" in found.capabilities:
        raise ConfigError(f"{found.name} is a person and cannot be checked by a script")
    wanted, tiers = tuple(only), dict.fromkeys(scenario.tier for scenario in SCENARIOS)
    for tier in wanted:
        if tier not in tiers:
            raise ConfigError(
                f"there is no tier {tier!r}", hint=f"Available are: {', '.join(tiers)}."
            )
    program = (options or {}).get("program")
    programs.locate(found, None if program is None else os.fspath(program))
    gate = asyncio.Semaphore(max(1, concurrency))
    async with ModelServer() as server:

        async def row(scenario: ConformanceCheck) -> Row:
            async with gate:
                return await _run_scenario(agent, found, scenario, server, options or {})

        rows = await asyncio.gather(
            *(row(each) for each in SCENARIOS if not wanted or each.tier in wanted)
        )
    return Report(agent, tuple(rows))


async def _run_scenario(
    name: str, agent: AgentSpec, scenario: ConformanceCheck, server: ModelServer, options: RunKwargs
) -> Row:
    begin = time.monotonic()

    def row(outcome: Outcome, seen: str) -> Row:
        seen = " ".join(seen.split())[:300]
        took = time.monotonic() - begin
        return Row(scenario.tier, scenario.name, outcome, seen, round(took, 2))

    with tempfile.TemporaryDirectory(prefix="corral-check-") as folder:
        stage = Stage(name, agent, server, Path(folder), options=options, scenario=scenario.name)
        try:
            for gate in scenario.gates:
                gate(stage)
            async with asyncio.timeout(TIMEOUT):
                return row("pass", await scenario.play(stage))
        except ScenarioSkipped as skipped:
            return row("skip", str(skipped))
        except ScenarioFailed as failed:
            return row("fail", str(failed))
        except PolicyNotEnforceable as refused:  # raised before anything is started
            return row("skip", refused.message)
        except TimeoutError:
            return row("fail", f"did not end within {TIMEOUT:g} s")
        except CorralError as error:
            return row("fail", f"{error.code}: {error.message}")


NOT_RUN = "?"
KINDS = {
    "acp": "Persistent agents (ACP)",
    "stream": "One process per prompt",
    "builtin": "The built-in agent",
}
"""One table per transport, because one table would be too wide."""


def markdown(reports: Iterable[Report], not_run: Iterable[str] = ()) -> str:
    """A table for each kind of agent, and below them the reasons why scenarios were skipped."""
    columns = {report.agent: {row.scenario: row for row in report.rows} for report in reports}
    columns.update({name: {} for name in not_run})
    reasons: list[str] = []
    tables: list[str] = []
    for transport, title in KINDS.items():
        names = [name for name in columns if config.find_agent(name).transport.kind == transport]
        if names:
            rows = [
                (each.name, *(_cell(columns[name].get(each.name), reasons) for name in names))
                for each in SCENARIOS
            ]
            tables.append(markdown_table((title, *names), rows))
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n\n".join([*tables, "\n".join(notes)]).strip()


def _cell(row: Row | None, reasons: list[str]) -> str:
    if row is None:
        return NOT_RUN
    if row.outcome != "skip":
        return MARKS[row.outcome]
    if row.seen not in reasons:
        reasons.append(row.seen)
    return f"{MARKS['skip']} {reasons.index(row.seen) + 1}"
