"""Runs scenarios on a clean tree of what an agent left.

Theory of operation
-------------------
The caller has made the tree, and removes it afterwards. The judging model reads the work first,
as it was left. Then the build is run, once; then one scenario after another, in the order of their
names, in the same tree. What a scenario needs is copied into its own folder, outside of the
tree, which is removed after it.

Every command runs code that an agent wrote, beside a text that no agent may see. So it runs in a
sandbox in which only the tree and the folder of the scenario can be written, and which has no
network, whatever the run is allowed: the code can leave nothing where an agent finds it.

A scenario is *missing*, and no pass, if it says nothing about the work: its program is not
installed, its ``setup`` failed, no test ran, the judging model gave no judgement, no time was left.
A build that fails, a command that hangs, a server that never listens are *failed*.
"""

from __future__ import annotations

import asyncio
import base64
import configparser
import os
import shlex
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import msgspec

from corral._core.nesting import decode_json, decode_toml
from corral._system import fs
from corral._system.clock import Stopwatch, random_hex
from corral._system.environment import SecretRedactor
from corral._system.paths import is_inside
from corral._system.process.command import CommandResult, registry_for, run_command
from corral._system.process.process import ProcessSpec
from corral._system.sandbox.box import interpreter
from corral._system.sandbox.sandbox import Sandbox
from corral._system.threads import in_thread
from corral._verification.check import CheckContext
from corral._verification.command_check import outcome_of, shown_output
from corral._verification.scenarios.counts import ScenarioOutcome, ScenarioResult
from corral._verification.scenarios.judge import Judge, work_for_judge
from corral._verification.scenarios.programs.call_server import ServerCall
from corral._verification.scenarios.programs.run_tests import NO_PYTEST
from corral._verification.scenarios.scenario_folder import (
    FILES,
    FIXTURES,
    Scenario,
    ScenarioCall,
    ScenarioFolder,
    folder_digest,
)
from corral.errors import CorralError, StorageFailed
from corral.values import Json, is_object, is_sequence

JUDGED_AT_ONCE = 4
TAIL = 16_000
"""Characters of an output that the report for the user has."""
MARGIN = 15.0
"""Seconds in which the program that calls a server must report that its time is over."""


async def run_scenarios(
    folder: ScenarioFolder, context: CheckContext, judge: Judge | None
) -> list[ScenarioResult]:
    """The results in the order of the scenarios. ``context.folder`` is in a tree that only this
    check uses, and changes; ``context.scratch`` an empty folder. Raises ``StorageFailed`` if the
    scenarios are not those that were read."""
    await in_thread(_check_unchanged, folder)
    runner = ScenarioRunner(folder, context)
    judged = [each for each in folder.scenarios if each.kind == "judge"]
    results = {result.scenario.name: result for result in await _judge_all(judged, context, judge)}
    others = [each for each in folder.scenarios if each.kind != "judge"]
    broken = await runner.build() if others else None
    for scenario in others:
        if broken is not None:
            result = msgspec.structs.replace(broken, scenario=scenario)
        else:
            result = await runner.run(scenario)
        results[scenario.name] = result
    return [results[scenario.name] for scenario in folder.scenarios]


def _check_unchanged(folder: ScenarioFolder) -> None:
    try:
        is_same = folder_digest(folder.path) == folder.digest
    except OSError:
        is_same = False
    if not is_same:
        raise StorageFailed(
            "the held-out scenarios have changed since the run was started, or cannot be read"
        )


async def _judge_all(
    scenarios: Sequence[Scenario], context: CheckContext, judge: Judge | None
) -> list[ScenarioResult]:
    slots = asyncio.Semaphore(JUDGED_AT_ONCE)

    async def judge_one(scenario: Scenario) -> ScenarioResult:
        if judge is None:
            reason = "there is no judging model"
            return ScenarioResult(scenario=scenario, outcome="missing", reason=reason)
        async with slots:
            work = await in_thread(work_for_judge, scenario, context)
            if work is None:
                reason = "the run left nothing that the judging model could read"
                return ScenarioResult(scenario=scenario, outcome="failed", reason=reason)
            stopwatch = Stopwatch()
            result = await judge.ask(scenario, work)
            return msgspec.structs.replace(result, seconds=round(stopwatch.seconds, 3))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(judge_one(scenario)) for scenario in scenarios]
    return [task.result() for task in tasks]


class ScenarioRunner:
    """Runs the scenarios of one folder in one tree."""

    def __init__(self, folder: ScenarioFolder, context: CheckContext) -> None:
        if context.scratch is None:
            raise TypeError("scenarios need a folder for their files")
        self._folder = folder
        self._context = context
        self._material = context.scratch / "material"
        self._sandbox = _without_network(context, self._material)
        self._clock = Stopwatch()
        self._redactor = SecretRedactor(context.secrets)

    async def build(self) -> ScenarioResult | None:
        """Run the command that comes before all scenarios. None: they can be run."""
        command = self._folder.build
        if not command.strip():
            return None
        done = await self._run_shell(command, self._folder.build_timeout)
        if done.ok:
            return None
        outcome: ScenarioOutcome = "missing" if outcome_of(done) == "missing" else "failed"
        return self._result(
            self._folder.scenarios[0], outcome, f"the build {self._end(done)}", done
        )

    async def run(self, scenario: Scenario) -> ScenarioResult:
        """Run one scenario. It never raises ``CorralError``."""
        if self._time_left <= 0:
            return self._result(scenario, "missing", "no time was left")
        try:
            await in_thread(self._copy_material, scenario)
            if scenario.setup.strip():
                done = await self._run_shell(scenario.setup, scenario.timeout)
                if not done.ok:
                    return self._result(scenario, "missing", f"setup {self._end(done)}", done)
            match scenario.kind:
                case "command":
                    return await self._run_command(scenario)
                case "pytest":
                    return await self._run_tests(scenario)
                case "http":
                    return await self._call_server(scenario)
                case "judge":
                    raise TypeError("a model judges it")
        except (OSError, CorralError) as error:
            return self._result(scenario, "missing", f"it cannot be run: {error}")
        finally:
            await in_thread(fs.remove_tree, self._material)

    @property
    def _time_left(self) -> float:
        return self._context.timeout - self._clock.seconds

    def _copy_material(self, scenario: Scenario) -> None:
        """Copy what the scenario needs from the folder, which is not in the sandbox."""
        source, target = Path(self._folder.path), self._material
        fs.remove_tree(target)
        fs.make_folder(target)
        if fs.is_dir(source / FILES):
            shutil.copytree(source / FILES, target / FILES)
        if scenario.kind == "pytest":
            for name in (scenario.test_file, FIXTURES):
                if fs.is_file(source / name):
                    shutil.copyfile(source / name, target / name)
            # pytest takes the settings of this folder, not those of the work.
            fs.write_atomically(target / "pytest.ini", b"[pytest]\n")

    async def _run_command(self, scenario: Scenario) -> ScenarioResult:
        done = await self._run_shell(scenario.command, scenario.timeout)
        outcomes: dict[str, ScenarioOutcome] = {"passed": "satisfied", "failed": "failed"}
        return self._result(
            scenario, outcomes.get(outcome_of(done), "missing"), self._end(done), done
        )

    async def _run_tests(self, scenario: Scenario) -> ScenarioResult:
        word = random_hex(16)
        program = _program("run_tests.py")
        test = str(self._material / scenario.test_file)
        context = self._context
        settings = await in_thread(find_settings, context.host_folder, context.outside_root)
        root = context.folder / settings.root
        folders = map(str, (context.folder, root, *(root / path for path in settings.pythonpath)))
        argv = [self._folder.python, "-c", program, test, *folders]
        done = await self._start(argv, scenario.timeout, f"{word}\n".encode())
        last = done.stdout.decode("utf-8", "replace").rstrip().rpartition("\n")[2].split()
        counted = last[:1] == [word] and len(last) == 3
        passed, failed = (int(last[1]), int(last[2])) if counted else (0, 0)
        outcome: ScenarioOutcome = "failed"
        reason = self._end(done)
        if not done.timed_out and done.code == NO_PYTEST:
            outcome, reason = "missing", f"{self._folder.python} has no pytest"
        elif outcome_of(done) == "missing":
            outcome = "missing"
        elif counted and not passed and not failed:
            outcome, reason = "missing", "no test was run"
        elif done.ok and passed and not failed:
            outcome = "satisfied"
        elif not counted:
            reason = f"{reason} before the end of the tests"
        return self._result(scenario, outcome, reason, done)

    async def _call_server(self, scenario: Scenario) -> ScenarioResult:
        call = scenario.call
        if call is None:
            raise TypeError("the scenario has no call")
        limit = min(scenario.timeout, self._time_left)
        argv = [interpreter(), "-SIc", _program("call_server.py")]
        asked = msgspec.json.encode(_asked(scenario.start, call, limit))
        done = await self._start(argv, limit + MARGIN, asked)
        try:
            response = decode_json(done.stdout)
        except msgspec.DecodeError:
            response = None
        if not is_object(response) or done.timed_out:
            return self._result(scenario, "failed", f"the call {self._end(done)}", done)
        problem = check_response(call, response)
        return self._result(scenario, "failed" if problem else "satisfied", problem, done)

    async def _run_shell(self, command: str, timeout: float) -> CommandResult:
        return await self._start(["/bin/sh", "-c", command], timeout)

    async def _start(
        self, argv: Sequence[str], timeout: float, stdin: bytes | None = None
    ) -> CommandResult:
        context = self._context
        own = {
            "TMPDIR": str(self._material.parent),
            "SCENARIO_FILES": str(self._material / FILES),
        }
        spec = ProcessSpec(
            argv,
            cwd=context.folder,
            env=context.environment(own),
            stdin=stdin,
            stderr_tail=TAIL,
            registry=registry_for("check"),
            sandbox=self._sandbox,
        )
        return await run_command(spec, max(0.1, min(timeout, self._time_left)), keep=4 * TAIL)

    def _end(self, done: CommandResult) -> str:
        return "did not end in its time" if done.timed_out else done.end(0)

    def _result(
        self,
        scenario: Scenario,
        outcome: ScenarioOutcome,
        reason: str = "",
        done: CommandResult | None = None,
    ) -> ScenarioResult:
        return ScenarioResult(
            scenario=scenario,
            outcome=outcome,
            reason="" if outcome == "satisfied" else reason,
            output="" if done is None else shown_output(done.redacted(self._redactor)),
            seconds=0.0 if done is None else done.seconds,
        )


def _without_network(context: CheckContext, material: Path) -> Sandbox | None:
    """The sandbox in which only the tree and the folder of the scenario can be written."""
    if context.sandbox is None:
        return None
    box, scratch = context.sandbox.box, str(material.parent)
    tree = fs.real_path(context.folder)
    inner = msgspec.structs.replace(
        box,
        writable=(*(path for path in box.writable if is_inside(tree, path)), scratch),
        network=False,
        endpoints=(),
        hosts=(),
    )
    return msgspec.structs.replace(context.sandbox, box=inner)


def _asked(start: str, call: ScenarioCall, seconds: float) -> ServerCall:
    headers = {"Connection": "close", **call.headers}
    body = None if call.body is None else call.body.encode()
    if call.json is not msgspec.UNSET:
        body = msgspec.json.encode(call.json)
        headers = {"Content-Type": "application/json", **headers}
    parts = urlsplit(call.url)
    target = parts.path or "/"
    return ServerCall(
        start=start,
        port=parts.port or 0,
        target=f"{target}?{parts.query}" if parts.query else target,
        method=call.method,
        headers=headers,
        body=None if body is None else base64.b64encode(body).decode(),
        seconds=seconds,
    )


def check_response(call: ScenarioCall, response: Mapping[str, Json]) -> str:
    """What is wrong with a response of ``call_server``; empty if nothing is."""
    if "error" in response:
        return str(response["error"])
    status = cast("int", response.get("status"))
    accepted = call.status if is_sequence(call.status) else [call.status]
    if not (status in accepted if accepted else 200 <= status < 300):
        return f"the response has the status {status}"
    body = base64.b64decode(str(response.get("body", "")))
    text = body.decode("utf-8", "replace")
    wanted = [call.contains] if isinstance(call.contains, str) else call.contains
    if missing := [each for each in wanted if each not in text]:
        return f"the response does not contain {missing[0]!r}: {text[:500]}"
    if call.equals is not msgspec.UNSET:
        try:
            value = decode_json(text)
        except msgspec.DecodeError:
            return f"the response is not JSON: {text[:500]}"
        if value != call.equals:
            return f"the response is {text[:500]}"
    return ""


def _program(name: str) -> str:
    return fs.read_text(Path(__file__).parent / "programs" / name)


MAX_FILE = 1024 * 1024
_INI = {
    "pytest.ini": "pytest",
    ".pytest.ini": "pytest",
    "tox.ini": "pytest",
    "setup.cfg": "tool:pytest",
}
"""The sections with the settings."""
_ALWAYS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
"""Settings also without a section."""
_NAMES = (*_ALWAYS, "pyproject.toml", "tox.ini", "setup.cfg")
"""In the order in which pytest looks for them."""


class PytestSettings(msgspec.Struct, frozen=True):
    root: str = "."
    """From the working directory."""
    pythonpath: tuple[str, ...] = ()
    """From the root."""


def find_settings(folder: Path, top: Path) -> PytestSettings:
    """Those that pytest finds in the folder, or above it up to ``top``. Blocks."""
    for above in (folder, *folder.parents):
        for name in _NAMES:
            content = fs.read_small(above / name, MAX_FILE)
            found = None if content is None else _pythonpath(name, content)
            if found is not None:
                return PytestSettings(os.path.relpath(above, folder), found)
        if above == top:
            break
    return PytestSettings()


def _pythonpath(name: str, content: bytes) -> tuple[str, ...] | None:
    """None if the file has no settings of pytest, or cannot be read."""
    try:
        text = content.decode()
        if name.endswith(".toml"):
            return _of_toml(name, decode_toml(text))
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(text)
        if not parser.has_section(_INI[name]):
            return () if name in _ALWAYS else None
        return tuple(shlex.split(parser.get(_INI[name], "pythonpath", fallback="")))
    except (ValueError, configparser.Error, tomllib.TOMLDecodeError):
        return () if name in _ALWAYS else None


def _of_toml(name: str, table: dict[str, Json]) -> tuple[str, ...] | None:
    tool = table.get("tool") if name == "pyproject.toml" else {"pytest": table.get("pytest")}
    section = tool.get("pytest") if is_object(tool) else None
    if not is_object(section):
        return () if name in _ALWAYS else None
    options = section.get("ini_options", section)
    value = options.get("pythonpath", ()) if is_object(options) else ()
    if isinstance(value, str):
        return tuple(shlex.split(value))
    return tuple(str(path) for path in value) if is_sequence(value) else ()
