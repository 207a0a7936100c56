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
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from corral.agents import registry
from corral.agents.spec import AgentSpec
from corral.errors import ConfigError, CorralError, PolicyNotEnforceable
from corral.options import RunOptions
from corral.system import config, programs
from corral.testing.conformance.scenarios import SCENARIOS, Scenario
from corral.testing.conformance.stage import Failed, Skipped, Stage
from corral.testing.model_server.server import ModelServer

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
    """The scenarios that ran, and their outcomes."""

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
    options: Mapping[str, Any] | None = None,
    at_once: int = 2,
) -> Report:
    """Every scenario, or those of the tiers ``only``. ``options`` go to each run. ``vendor:model``
    is our own agent, on that vendor's wire.

    Raises ``ConfigError`` for a tier that does not exist, and ``NotInstalled`` and its kin; all
    else is in the report.
    """
    found = _record(agent)
    if "person" in found.capabilities:
        raise ConfigError(f"{found.name} is a person: no script can check them")
    chosen = _select(tuple(only))
    programs.locate(found, (options or {}).get("program"))
    gate = asyncio.Semaphore(max(1, at_once))
    async with ModelServer() as server:

        async def row(scenario: Scenario) -> Row:
            async with gate:
                return await _run_scenario(agent, found, scenario, server, dict(options or {}))

        rows = await asyncio.gather(*(row(scenario) for scenario in chosen))
    return Report(agent, tuple(rows))


def _record(name: str) -> AgentSpec:
    """Its record; that of our own agent is another for each vendor's model."""
    found = config.find_agent(name)
    if found.for_run is not None and registry.names_a_model(name):
        return found.for_run(RunOptions.build(found.name, {"model": name}))
    return found


def _select(only: tuple[str, ...]) -> list[Scenario]:
    tiers = tuple(dict.fromkeys(scenario.tier for scenario in SCENARIOS))
    for tier in only:
        if tier not in tiers:
            raise ConfigError(f"there is no tier {tier!r}", hint=f"There are: {', '.join(tiers)}.")
    return [scenario for scenario in SCENARIOS if not only or scenario.tier in only]


async def _run_scenario(
    name: str, agent: AgentSpec, scenario: Scenario, server: ModelServer, options: dict[str, Any]
) -> Row:
    begin = time.monotonic()

    def row(outcome: Outcome, seen: str) -> Row:
        seen = " ".join(seen.split())[:300]
        took = time.monotonic() - begin
        return Row(scenario.tier, scenario.name, outcome, seen, round(took, 2))

    with tempfile.TemporaryDirectory(prefix="corral-check-") as folder:
        stage = Stage(name, agent, server, Path(folder), options=options, scenario=scenario.name)
        try:
            scenario.gate(stage)
            async with asyncio.timeout(TIMEOUT):
                return row("pass", await scenario.play(stage))
        except Skipped as skipped:
            return row("skip", str(skipped))
        except Failed as failed:
            return row("fail", str(failed))
        except PolicyNotEnforceable as refused:  # it says so before anything is started
            return row("skip", refused.message)
        except TimeoutError:
            return row("fail", f"not over after {TIMEOUT:g} s")
        except CorralError as error:
            return row("fail", f"{error.code}: {error.message}")
