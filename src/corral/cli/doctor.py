"""``corral agents doctor``: not what should work, but what did."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from corral.agents.spec import AgentSpec, InProcess
from corral.cli.ui.tables import policy_table, table
from corral.cli.ui.terminal import echo, echo_json
from corral.errors import ConfigError, CorralError
from corral.policy import Policy
from corral.sessions import store
from corral.sessions.api import run
from corral.sessions.prepare import prepare
from corral.system import paths
from corral.system.environment import gather
from corral.system.process.registry import ProcessRegistry
from corral.testing import Call, ModelServer, Turn


async def examine(agent: AgentSpec) -> dict[str, Any]:
    """What is here, and whether a scripted conversation had the effects it must have."""
    report: dict[str, Any] = {"agent": agent.name, "works": False, "checks": [], "exit_code": 1}
    try:
        if "person" in agent.capabilities:
            raise ConfigError(f"{agent.name} is a person: ask how they are")
        options: dict[str, object] = {"policy": Policy.edits()}
        if isinstance(agent.transport, InProcess) and agent.probe is not None:
            options["model"] = agent.probe.model  # it is nothing without one
        prepared = prepare(agent.name, options)
        report |= {
            "version": prepared.program.version,
            "tested_version": agent.package.tested,
            "program": prepared.program.path,
            "found_by": prepared.program.source,
            "credentials": [
                *(name for name in agent.secret_env if prepared.environment.family.get(name)),
                *(f"~/{name}" for name in prepared.credentials),
            ],
            "environment": sorted(gather(agent, prepared.run).values),
            "policy": msgspec.to_builtins(prepared.compiled.report),
        }
        report["checks"] = await _probe(agent)
        report["works"] = all(check["ok"] for check in report["checks"])
    except CorralError as error:
        report |= {"problem": error.message, "hint": error.hint, "exit_code": error.cli_exit}
    return report


async def _probe(agent: AgentSpec) -> list[dict[str, Any]]:
    probe = agent.probe
    if probe is None:
        raise ConfigError(f"{agent.name} names no probe: there is nothing to prove it with")
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
    told = result.error.message if result.error else result.status
    return [
        {"check": "starts and reaches the model", "ok": answered > 0, "seen": f"{answered} calls"},
        {"check": "a permitted tool call works", "ok": wrote, "seen": _seen(wrote, "probe.txt")},
        {"check": "a denied command does not run", "ok": not ran, "seen": _seen(ran, "shell.txt")},
        {"check": "the refusal is reported", "ok": bool(result.denied), "seen": _names(result)},
        {"check": "ends as a success", "ok": result.ok, "seen": told},
    ]


def _seen(there: bool, name: str) -> str:
    return f"{name} is {'there' if there else 'not there'}"


def _names(result: Any) -> str:
    return ", ".join(refusal.name for refusal in result.denied) or "none"


def format_report(report: dict[str, Any]) -> str:
    """The report for a person."""
    lines: list[str] = []
    for key in ("agent", "version", "tested_version", "program", "found_by"):
        if key in report:
            lines.append(f"{key:16}{report[key]}")
    if "credentials" in report:
        lines.append(f"{'credentials':16}{', '.join(report['credentials']) or 'none found'}")
        lines.append(f"{'passed on':16}{' '.join(report['environment'])}")
        rows = [msgspec.convert(row, _row_type()) for row in report["policy"]]
        lines.append(policy_table(rows))
    if report["checks"]:
        rows_of = [
            ("✓" if check["ok"] else "✗", str(check["check"]), str(check["seen"]))
            for check in report["checks"]
        ]
        lines.append(table(("", "check", "seen"), rows_of))
    if "problem" in report:
        lines.append(f"✗ {report['problem']}\n  {report['hint'] or ''}".rstrip())
    lines.append(f"{report['agent']} {'works' if report['works'] else 'does not work'} here")
    return "\n".join(lines)


def _row_type() -> Any:
    from corral.agents.spec import PolicyRow

    return PolicyRow


def end_leftovers(*, as_json: bool) -> int:
    """End what belongs to runs whose own process is gone."""
    ledger = ProcessRegistry(paths.process_registry())
    ended = ledger.reap()
    for folder in store.abandoned_folders():
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        echo_json(msgspec.json.encode(ended).decode())
    else:
        for entry in ended:
            echo(f"ended {entry.agent} {entry.pid} ({entry.program})")
        echo(f"{len(ended)} left behind, {len(ledger.entries())} running")
    return 0
