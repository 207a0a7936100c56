"""What ``corral agents`` finds out by running agents with a scripted model: ``doctor``, ``check``,
``check --attack``, and the compile cache that ``install`` fills."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import msgspec
from msgspec.structs import replace

from corral._agents import registry
from corral._agents.proof import ProbeCheck
from corral._agents.report import PolicyRow
from corral._agents.spec import AgentSpec, InProcess
from corral._cli.ui.progress import TurnProgress
from corral._cli.ui.tables import policy_table, table
from corral._cli.ui.terminal import echo, echo_json
from corral._core.protected_paths import Links
from corral._core.terminal_text import counted
from corral._inference.client import Client
from corral._sessions import probing, proof, store
from corral._sessions.api import run
from corral._sessions.deadlines import unreachable
from corral._sessions.prepare import prepare
from corral._sessions.prepared_run import PreparedRun
from corral._system import config, install, paths, programs
from corral._system.environment import gather
from corral._system.http.reachability import why_unreachable
from corral._system.process.tree import ProcessRegistry
from corral._system.sandbox.sandbox import describe, find_support
from corral.errors import (
    AuthenticationFailed,
    ConfigError,
    CorralError,
    NetworkFailed,
    NotInstalled,
)
from corral.options import RunOptions
from corral.policy import Policy
from corral.run_kwargs import RunKwargs
from corral.testing import Call, ModelServer, Turn

if TYPE_CHECKING:
    from corral._testing.attack import AttackReport


class DoctorCheck(TypedDict):
    check: str
    ok: bool
    seen: str


class DoctorReport(TypedDict):
    agent: str
    works: bool
    checks: list[DoctorCheck]
    exit_code: int
    # If the agent could be prepared:
    version: NotRequired[str | None]
    tested_version: NotRequired[str]
    version_warning: NotRequired[str | None]
    proof: NotRequired[str | None]
    failed_checks: NotRequired[tuple[ProbeCheck, ...]]
    program: NotRequired[str]
    found_by: NotRequired[str]
    compile_cache: NotRequired[str | None]
    credential: NotRequired[str | None]
    accepts: NotRequired[tuple[str, ...]]
    usable: NotRequired[bool]
    can_test: NotRequired[bool]
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
            options: dict[str, object] = {"policy": Policy.edits(), "cwd": folder, "probe": "never"}
            if proof.can_probe(agent):
                program = RunOptions.build(agent.name, {}, config.load(agent.name)).program
                located = programs.locate(agent, program)
                report["proof"] = proof.describe(agent, located)
                verdict = proof.stored_verdict(agent, located)
                report["failed_checks"] = () if verdict is None else verdict.failed
            if isinstance(agent.transport, InProcess):
                options["model"] = model  # it cannot run without one
            prepared = prepare(agent.name, options)
            ready = await readiness(prepared)
            report["version"] = prepared.program.version
            report["tested_version"] = prepared.agent.package.tested
            report["version_warning"] = prepared.agent.version_warning(prepared.program.version)
            report["program"] = prepared.program.path
            report["found_by"] = prepared.program.source
            cache = install.find_compile_cache(prepared.program)
            report["compile_cache"] = None if cache is None else cache.describe()
            report["credential"] = ready.credential
            report["accepts"] = ready.accepts
            report["environment"] = sorted(gather(prepared.agent, prepared.run).values)
            report["policy"] = tuple(prepared.compiled.report)
            report["sandbox"] = describe(find_support())
            report["usable"] = ready.missing is None
            if ready.missing is not None:
                _add_problem(report, ready.missing)
        report["can_test"] = prepared.agent.probe is not None
        report["checks"] = await _probe(prepared.agent)
        report["works"] = all(check["ok"] for check in report["checks"])
    except CorralError as error:
        _add_problem(report, error)
    return report


def _add_problem(report: DoctorReport, error: CorralError) -> None:
    report["problem"], report["hint"] = error.message, error.hint
    report["exit_code"] = error.cli_exit


async def _probe(agent: AgentSpec) -> list[DoctorCheck]:
    probe = agent.probe
    if probe is None:
        raise ConfigError(
            f"no test of {agent.name} was made: corral cannot script its model",
            hint=f"corral agents check {agent.name} runs it with its own model.",
        )
    with tempfile.TemporaryDirectory(prefix="corral-doctor-") as folder:
        probe = replace(probe, folder=folder)
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
                env=probe.env(server.url, "doctor-needs-no-key"),
                probe="trust",
                keep=False,
                timeout=120,
            )
            answered = len(server.requests)
        wrote = (Path(folder) / "probe.txt").exists()
        ran = (Path(folder) / "shell.txt").exists()
    ended = result.error.message if result.error else result.status
    checks: list[DoctorCheck] = [
        {
            "check": "starts and reaches the model",
            "ok": answered > 0,
            "seen": counted(answered, "call"),
        },
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


_FOUND_BY = {"managed": "corral agents install", "option": "the option program"}
"""Where a program was found, for a person."""


def format_report(report: DoctorReport) -> str:
    """The report for a person."""
    keys = (
        "agent",
        "version",
        "tested_version",
        "proof",
        "program",
        "found_by",
        "compile_cache",
    )
    facts = [(key.replace("_", " "), report.get(key)) for key in keys]
    lines = [f"{name:16}{_FOUND_BY.get(str(fact), fact)}" for name, fact in facts if fact]
    for check in report.get("failed_checks", ()):
        lines.append(f"✗ probe: {check.check}: {check.seen}")
    if warning := report.get("version_warning"):
        lines.append(f"! {warning}")
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
    verdict = "works here" if report["works"] else "does not work here"
    if not report.get("can_test", True):
        verdict = "was found, but not tested"
    elif report["works"] and not report.get("usable"):
        verdict += ", but cannot be used yet: see above"
    lines.append(f"{report['agent']} {verdict}")
    return "\n".join(lines)


def probe(name: str, program: str | None, *, as_json: bool) -> int:
    """Probe a program now, store the verdict and print it. Returns the exit code."""
    agent = config.find_agent(name)
    if not proof.can_probe(agent):
        raise ConfigError(
            f"{agent.name} cannot be probed: corral cannot script its model",
            hint="corral agents check NAME runs it with its own model.",
        )
    if program is None:
        program = RunOptions.build(agent.name, {}, config.load(agent.name)).program
    found = programs.locate(agent, program)
    TurnProgress(enabled=not as_json).announce_probes()
    verdict = asyncio.run(probing.probe(agent, found, renew=True))
    if as_json:
        echo_json(msgspec.json.encode({"ok": verdict.is_good, **msgspec.to_builtins(verdict)}))
    else:
        rows = [("✓" if each.ok else "✗", each.check, each.seen) for each in verdict.checks]
        echo(table(("", "check", "seen"), rows))
        count = len(verdict.failed)
        result = f"{counted(count, 'check')} failed" if count else "passed the probe"
        echo(f"{agent.title} {found.version or ''}: {result} ({verdict.seconds:g} s)")
    return 0 if verdict.is_good else 1


def end_leftovers(*, as_json: bool) -> int:
    """End the processes, and remove the folders, of runs whose own process is gone."""
    from corral._engine.agent_host.client import remove_trash  # late: it loads the engine's types

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


async def fill_compile_cache(agent: AgentSpec, found: programs.FoundProgram) -> None:
    """Fill Node's compile cache of an installed agent: one scripted prompt with each of its
    interfaces, so that the modules are those of a real run. No key is used and nothing is spent.
    Raises ``CorralError``; then there is no cache."""
    with install.filling_compile_cache(agent, found) as program:
        for each in registry.all_agents():
            if each.package != agent.package:
                continue
            probe = each.probe
            if probe is None:
                raise ConfigError(f"{each.name} has no probe: its model cannot be scripted")
            with tempfile.TemporaryDirectory(prefix="corral-fill-") as folder:
                async with ModelServer(lambda _: Turn(text="Nothing to do.")) as server:
                    await run(
                        each.name,
                        "There is nothing to do.",
                        check=True,
                        cwd=folder,
                        program=program,
                        policy=Policy(),
                        sandbox="off",
                        inherit="nothing",
                        mcp_servers=(),
                        model=probe.model,
                        env=probe.env(server.url, "no-key-is-needed"),
                        probe="trust",
                        keep=False,
                        timeout=600,
                    )


class CheckFlags(TypedDict):
    """The options of ``corral agents check``."""

    every: bool
    only: tuple[str, ...]
    program: str | None
    env: tuple[str, ...]
    attack: bool
    approve: tuple[str, ...]
    sandbox: bool
    concurrency: int
    markdown: bool
    as_json: bool


def _run_options(flags: CheckFlags) -> RunKwargs:
    """The options of each run of a kit."""
    values = dict(each.split("=", 1) for each in flags["env"] if "=" in each)
    names = [each for each in flags["env"] if "=" not in each]
    return {"program": flags["program"], "env": values, "pass_env": names}


def check(names: tuple[str, ...], flags: CheckFlags) -> int:
    """Run the conformance kit and print its reports. Returns the exit code."""
    from corral._testing.conformance.check import MARKS, Report, check_agent

    reports: list[Report] = []
    missing: list[str] = []
    # A script cannot check people.
    known = [each.name for each in config.all_agents() if "person" not in each.capabilities]
    for name in dict.fromkeys((*(known if flags["every"] else ()), *names)):
        options = _run_options(flags)
        try:
            report = asyncio.run(check_agent(name, only=flags["only"], options=options))
        except NotInstalled as error:
            if name in names:
                raise
            echo(f"{name}: not run: {error.message}", err=True)
            missing.append(name)
            continue
        reports.append(report)
        if flags["as_json"]:
            line = {"ok": report.ok, **msgspec.to_builtins(report)}
            echo_json(msgspec.json.encode(line).decode())
            continue
        if not flags["markdown"]:
            rows = [
                (MARKS[row.outcome], row.tier, row.scenario, row.seen[:80]) for row in report.rows
            ]
            echo(table(("", "tier", "scenario", "seen"), rows))
        count = {kind: sum(r.outcome == kind for r in report.rows) for kind in MARKS}
        passed, failed, skipped = count["pass"], count["fail"], count["skip"]
        counts = f"{passed} passed, {failed} failed, {skipped} skipped"
        echo(f"{report.agent}: {counts}", err=flags["markdown"])
    if flags["markdown"]:
        from corral._testing.conformance.check import markdown

        echo(markdown(reports, missing))
    return 0 if reports and all(report.ok for report in reports) else 1


def attack(names: tuple[str, ...], flags: CheckFlags) -> int:
    """Run the attack kit against agents and print the results. Returns the exit code: 1 if an
    enforced cell was broken."""
    from corral._testing.attack.report import LEGEND, MARKS
    from corral._testing.attack.report import markdown as markdown_tables

    # Agents whose model can be scripted.
    known = [each.name for each in config.all_agents() if each.probe is not None]
    wanted = tuple(dict.fromkeys((*(known if flags["every"] else ()), *names)))
    reports: list[AttackReport] = []
    for name, report in _attack_all(wanted, flags):
        if isinstance(report, NotInstalled):
            if name in names:
                raise report
            echo(f"{name}: not run: {report.message}", err=True)
            continue
        reports.append(report)
        if flags["as_json"]:
            line = {"ok": report.ok, **msgspec.to_builtins(report)}
            echo_json(msgspec.json.encode(line))
        else:
            if not flags["markdown"]:
                rows = [
                    (
                        MARKS[cell.status],
                        policy.policy,
                        cell.cell,
                        cell.status,
                        cell.enforcer or "",
                        f"{cell.effects}/{cell.tries}",
                    )
                    for policy in report.policies
                    for cell in policy.cells
                ]
                echo(table(("", "policy", "cell", "", "reported as", "effects"), rows))
                for policy in report.policies:
                    if policy.refused:
                        echo(f"{policy.policy}: refused: {policy.refused}")
            _show_failures(report, err=flags["markdown"])
        attempts = [tried for policy in report.policies for tried in policy.tried]
        made = sum(tried.outcome in ("held", "effect", "not offered") for tried in attempts)
        counts = f"{counted(made, 'attempt')}, {len(report.broken)} broke an enforced cell"
        echo(f"{name}: {counts}", err=flags["markdown"] or flags["as_json"])
    if flags["markdown"]:
        echo(markdown_tables(reports))
    elif not flags["as_json"]:
        echo(LEGEND)
    return 0 if reports and all(report.ok for report in reports) else 1


def _attack_all(
    names: Sequence[str], flags: CheckFlags
) -> Iterator[tuple[str, AttackReport | NotInstalled]]:
    """The reports in the order of ``names``. Concurrent attacks run in separate processes,
    because an attack changes the environment of its process."""
    if flags["concurrency"] == 1 or len(names) == 1:
        yield from ((name, _attack_one(name, flags)) for name in names)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        flags["concurrency"], mp_context=context, max_tasks_per_child=1
    ) as pool:
        yield from zip(names, pool.map(_attack_one, names, repeat(flags)), strict=True)


def _attack_one(name: str, flags: CheckFlags) -> AttackReport | NotInstalled:
    from corral._testing.attack import attack_agent

    options = _run_options(flags)
    try:
        return asyncio.run(
            attack_agent(
                name,
                policies=flags["approve"],
                only=flags["only"],
                sandbox=flags["sandbox"],
                options=options,
            )
        )
    except NotInstalled as error:
        return error


def _show_failures(report: AttackReport, *, err: bool = False) -> None:
    for policy in report.policies:
        if policy.problem:
            echo(f"{report.agent}: {policy.policy}: {policy.problem}", err=err)
        for cell in policy.of("unproven"):
            echo(f"{report.agent}: {policy.policy}: {cell.cell}: not seen to work", err=err)
    for name, tried in report.broken:
        text = f"{name}: {tried.cell}: {tried.group}: {tried.name}: {tried.seen}"
        echo(f"✗ {report.agent}: {text}", err=err)


_NOTES = ("authentication: ", "credentials: ")


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a prompt could be sent."""

    credential: str | None = None
    """The variable or the login file that would be used, if it is known."""
    accepts: tuple[str, ...] = ()
    """The variables and login files that the agent takes."""
    service_url: str | None = None
    missing: CorralError | None = None
    """What is missing, with a hint; None if nothing is."""


async def readiness(prepared: PreparedRun) -> Readiness:
    """Check the credentials, and if they are there, the way to the model's service."""
    found = _credentials(prepared)
    if found.missing is not None or found.service_url is None:
        return found
    reason = await why_unreachable(found.service_url)
    problem: NetworkFailed | None = None if reason is None else unreachable(reason)
    return replace(found, missing=problem)


def accepted(prepared: PreparedRun) -> tuple[str, ...]:
    """Variables with a key, then the files of a login, as they are written for a person."""
    agent = prepared.agent
    files = agent.login_files or agent.credential_files
    return (*agent.secret_env, *(f"~/{name}" for name in files))


def _credentials(prepared: PreparedRun) -> Readiness:
    accepts = accepted(prepared)
    try:
        if isinstance(prepared.agent.transport, InProcess):
            # The built-in agent calls the model itself. A person needs no credentials.
            model = prepared.run.model
            if model is None:
                return Readiness(accepts=accepts)
            agent_values = prepared.environment.agent_values
            url = Client(environ=dict(agent_values)).check(model)
            name = next(
                (name for name in prepared.agent.secret_env if agent_values.get(name)), None
            )
            return Readiness(credential=name, accepts=accepts, service_url=url)
        context = prepared.launch_context(Path(prepared.cwd), Links())
        launch = prepared.launch(context)
    except (AuthenticationFailed, ConfigError) as error:
        return Readiness(accepts=accepts, missing=error)
    notes = (note.removeprefix(sign) for note in launch.notes for sign in _NOTES if sign in note)
    return Readiness(credential=next(notes, None), accepts=accepts, service_url=launch.service_url)
