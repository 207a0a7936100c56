"""``corral agents doctor``: run an agent with a scripted model and report what worked."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NotRequired, TypedDict

import msgspec

from corral.agents.spec import AgentSpec, InProcess, PolicyRow
from corral.cli.ui.tables import policy_table, table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import ConfigError, CorralError
from corral.policy import Policy
from corral.result import Result
from corral.sessions import store
from corral.sessions.api import run
from corral.sessions.prepare import prepare
from corral.system import paths
from corral.system.environment import gather
from corral.system.process.tree import ProcessRegistry
from corral.testing import Call, ModelServer, Turn


class Check(TypedDict):
    check: str
    ok: bool
    seen: str


class DoctorReport(TypedDict):
    agent: str
    works: bool
    checks: list[Check]
    exit_code: int
    # If the agent could be prepared:
    version: NotRequired[str | None]
    tested_version: NotRequired[str]
    program: NotRequired[str]
    found_by: NotRequired[str]
    credentials: NotRequired[list[str]]
    environment: NotRequired[list[str]]
    policy: NotRequired[tuple[PolicyRow, ...]]
    # If something raised an error:
    problem: NotRequired[str]
    hint: NotRequired[str | None]


async def examine(agent: AgentSpec) -> DoctorReport:
    """The facts about an installed agent, and whether a scripted conversation had the expected
    effects."""
    report: DoctorReport = {"agent": agent.name, "works": False, "checks": [], "exit_code": 1}
    try:
        if "person" in agent.capabilities:
            raise ConfigError(f"{agent.name} is a person: there is nothing to check")
        options: dict[str, object] = {"policy": Policy.edits()}
        if isinstance(agent.transport, InProcess) and agent.probe is not None:
            options["model"] = agent.probe.model  # it cannot run without one
        prepared = prepare(agent.name, options)
        report["version"] = prepared.program.version
        report["tested_version"] = agent.package.tested
        report["program"] = prepared.program.path
        report["found_by"] = prepared.program.source
        report["credentials"] = [
            *(name for name in agent.secret_env if prepared.environment.family.get(name)),
            *(f"~/{name}" for name in prepared.credentials),
        ]
        report["environment"] = sorted(gather(agent, prepared.run).values)
        report["policy"] = tuple(prepared.compiled.report)
        report["checks"] = await _probe(agent)
        report["works"] = all(check["ok"] for check in report["checks"])
    except CorralError as error:
        report["problem"], report["hint"] = error.message, error.hint
        report["exit_code"] = error.cli_exit
    return report


async def _probe(agent: AgentSpec) -> list[Check]:
    probe = agent.probe
    if probe is None:
        raise ConfigError(f"{agent.name} has no probe: its model cannot be scripted")
    with tempfile.TemporaryDirectory(prefix="corral-doctor-") as folder:
        probe = probe.in_folder(folder)
        script = [
            Turn(text="probing", calls=[Call(*probe.write)]),
            Turn(text="and", calls=[Call(*probe.shell)]),
            Turn(text="probe over"),
        ]
        async with ModelServer(script) as server:
            result = await run(
                agent.name,
                "Probe: write a file, then try the shell.",
                cwd=folder,
                policy=Policy.edits(),
                model=probe.model,
                env={probe.url_env: server.url, probe.key_env: "doctor-needs-no-key"},
                keep=False,
                timeout=120,
            )
            answered = len(server.requests)
        wrote = (Path(folder) / "probe.txt").exists()
        ran = (Path(folder) / "shell.txt").exists()
    ended = result.error.message if result.error else result.status
    return [
        {"check": "starts and reaches the model", "ok": answered > 0, "seen": f"{answered} calls"},
        {"check": "a permitted tool call works", "ok": wrote, "seen": _seen(wrote, "probe.txt")},
        {"check": "a denied command does not run", "ok": not ran, "seen": _seen(ran, "shell.txt")},
        {"check": "the refusal is reported", "ok": bool(result.denied), "seen": _names(result)},
        {"check": "ends as a success", "ok": result.ok, "seen": ended},
    ]


def _seen(there: bool, name: str) -> str:
    return f"{name} is {'there' if there else 'not there'}"


def _names(result: Result) -> str:
    return ", ".join(call.name for call in result.denied) or "none"


def format_report(report: DoctorReport) -> str:
    """The report for a person."""
    lines = [
        f"{key:16}{report.get(key)}"
        for key in ("agent", "version", "tested_version", "program", "found_by")
        if key in report
    ]
    if "credentials" in report and "environment" in report and "policy" in report:
        lines.append(f"{'credentials':16}{', '.join(report['credentials']) or 'none found'}")
        lines.append(f"{'passed on':16}{' '.join(report['environment'])}")
        lines.append(policy_table(report["policy"]))
    if report["checks"]:
        rows = [
            ("✓" if each["ok"] else "✗", each["check"], each["seen"]) for each in report["checks"]
        ]
        lines.append(table(("", "check", "seen"), rows))
    if "problem" in report:
        lines.append(f"✗ {report['problem']}\n  {report.get('hint') or ''}".rstrip())
    lines.append(f"{report['agent']} {'works' if report['works'] else 'does not work'} here")
    return "\n".join(lines)


def end_leftovers(*, as_json: bool) -> int:
    """End the processes, and remove the folders, of runs whose own process is gone."""
    registry = ProcessRegistry(paths.process_registry())
    ended = registry.reap()
    for folder in store.abandoned_folders():
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        echo_json(msgspec.json.encode(ended).decode())
    else:
        for entry in ended:
            echo(f"ended {entry.agent} {entry.pid} ({entry.program})")
        echo(f"{len(ended)} left behind, {len(registry.entries())} running")
    return 0
