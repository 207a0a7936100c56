"""``corral agents doctor``: run an agent with a scripted model, and report what worked and what is
missing to use it with its own model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NotRequired, TypedDict

import msgspec

from corral.agents import registry
from corral.agents.report import PolicyRow
from corral.agents.spec import AgentSpec, InProcess
from corral.cli.ui.tables import policy_table, table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import ConfigError, CorralError
from corral.policy import Policy
from corral.sessions import store
from corral.sessions.api import run
from corral.sessions.prepare import prepare
from corral.sessions.readiness import readiness
from corral.system import compile_cache, config, paths
from corral.system.environment import gather
from corral.system.process.tree import ProcessRegistry
from corral.system.sandbox.sandbox import describe, find_support
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
    compile_cache: NotRequired[str | None]
    credential: NotRequired[str | None]
    accepts: NotRequired[tuple[str, ...]]
    usable: NotRequired[bool]
    environment: NotRequired[list[str]]
    sandbox: NotRequired[str]
    policy: NotRequired[tuple[PolicyRow, ...]]
    # If something raised an error:
    problem: NotRequired[str]
    hint: NotRequired[str | None]


async def examine(name: str) -> DoctorReport:
    """The facts about an installed agent, what is missing to use it, and whether a scripted
    conversation had the expected effects. ``name`` may be ``vendor:model``."""
    agent = config.find_agent(name)
    report: DoctorReport = {"agent": agent.name, "works": False, "checks": [], "exit_code": 1}
    try:
        if "person" in agent.capabilities:
            raise ConfigError(f"{agent.name} is a person: there is nothing to check")
        model = agent.probe.model if agent.probe is not None else None
        if registry.names_a_model(name):
            model = name
        with tempfile.TemporaryDirectory(prefix="corral-doctor-") as folder:
            options: dict[str, object] = {"policy": Policy.edits(), "cwd": folder}
            if isinstance(agent.transport, InProcess):
                options["model"] = model  # it cannot run without one
            prepared = prepare(agent.name, options)
            ready = await readiness(prepared)
            report["version"] = prepared.program.version
            report["tested_version"] = prepared.agent.package.tested
            report["program"] = prepared.program.path
            report["found_by"] = prepared.program.source
            cache = compile_cache.find(prepared.program)
            report["compile_cache"] = None if cache is None else cache.describe()
            report["credential"] = ready.credential
            report["accepts"] = ready.accepts
            report["environment"] = sorted(gather(prepared.agent, prepared.run).values)
            report["policy"] = tuple(prepared.compiled.report)
            report["sandbox"] = describe(find_support())
            report["usable"] = ready.missing is None
            if ready.missing is not None:
                _add_problem(report, ready.missing)
        report["checks"] = await _probe(prepared.agent)
        report["works"] = all(check["ok"] for check in report["checks"])
    except CorralError as error:
        _add_problem(report, error)
    return report


def _add_problem(report: DoctorReport, error: CorralError) -> None:
    report["problem"], report["hint"] = error.message, error.hint
    report["exit_code"] = error.cli_exit


def exit_code(report: DoctorReport) -> int:
    """0 if the agent works and can be used."""
    return 0 if report["works"] and report.get("usable") else report["exit_code"]


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
    checks: list[Check] = [
        {"check": "starts and reaches the model", "ok": answered > 0, "seen": f"{answered} calls"},
        {"check": "a permitted tool call works", "ok": wrote, "seen": _seen(wrote, "probe.txt")},
        {"check": "a denied command does not run", "ok": not ran, "seen": _seen(ran, "shell.txt")},
    ]
    if probe.reports_denials:
        checks.append(
            {
                "check": "the refusal is reported",
                "ok": bool(result.denied),
                "seen": ", ".join(call.name for call in result.denied) or "none",
            }
        )
    return [*checks, {"check": "ends as a success", "ok": result.ok, "seen": ended}]


def _seen(there: bool, name: str) -> str:
    return f"{name} is {'there' if there else 'not there'}"


def format_report(report: DoctorReport) -> str:
    """The report for a person."""
    lines = [
        f"{key.replace('_', ' '):16}{report.get(key)}"
        for key in ("agent", "version", "tested_version", "program", "found_by", "compile_cache")
        if report.get(key)
    ]
    if "accepts" in report and "environment" in report and "policy" in report:
        lines.append(f"{'credentials':16}{report.get('credential') or 'none found'}")
        lines.append(f"{'accepted':16}{', '.join(report['accepts']) or 'none needed'}")
        lines.append(f"{'passed on':16}{' '.join(report['environment'])}")
        lines.append(f"{'sandbox':16}{report.get('sandbox')}")
        lines.append(policy_table(report["policy"]))
    if report["checks"]:
        rows = [
            ("✓" if each["ok"] else "✗", each["check"], each["seen"]) for each in report["checks"]
        ]
        lines.append(table(("", "check", "seen"), rows))
    if "problem" in report:
        lines.append(f"✗ {report['problem']}\n  {report.get('hint') or ''}".rstrip())
    lines.append(f"{report['agent']} {_summary(report)}")
    return "\n".join(lines)


def _summary(report: DoctorReport) -> str:
    if not report["works"]:
        return "does not work here"
    return "works here" if report.get("usable") else "works here, but cannot be used yet: see above"


def end_leftovers(*, as_json: bool) -> int:
    """End the processes, and remove the folders, of runs whose own process is gone."""
    from corral.engine.agent_host.client import remove_trash  # late: it loads the engine's types

    registry = ProcessRegistry(paths.process_registry())
    ended = registry.reap()
    for folder in store.abandoned_folders():
        shutil.rmtree(folder, ignore_errors=True)
    remove_trash()
    if as_json:
        echo_json(msgspec.json.encode(ended).decode())
    else:
        for entry in ended:
            echo(f"ended {entry.agent} {entry.pid} ({entry.program})")
        echo(f"{len(ended)} left behind, {len(registry.entries())} running")
    return 0
