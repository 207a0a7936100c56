"""Corral's agent and environment in harbor's own command line, with a scripted model.

harbor is installed under ``.cache/integrations`` from ``requirements/integrations.txt``; it needs
Python 3.12."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory
from support.installed_agents import installed
from support.locked_environment import ROOT, install
from support.processes import processes_using

from corral.testing import Call, ModelServer, Script, Turn

pytestmark = [pytest.mark.deep, pytest.mark.whole_program, pytest.mark.timeout(1200)]

MODULE = "corral.integrations.harbor"
BUILT_IN = "agent=gemini:gemini-2.5-flash"
CHECK = """#!/bin/bash
test ! -e /app/tests || exit 1
if [ "$(cat /app/hello.txt)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
HANG = Turn(
    match="Hang",
    calls=[Call("shell", {"command": "touch started; sleep 3600 & sleep 3600"})],
    usage={"input": 700, "output": 7},
)
SCRIPT = Script(
    [
        Turn(
            match="Write hello to",
            calls=[Call("shell", {"command": "ls -a /tests / > seen; echo hello > hello.txt"})],
            usage={"input": 1000, "output": 20, "cached": 10},
        ),
        HANG,
        Turn(match="Limit", status=429, retry_after=4000, repeat="forever"),
        Turn(text="Done.", usage={"input": 1500, "output": 30}),
    ],
    restart="per_conversation",
)


class Harbor:
    """harbor's command line, with its own home for corral."""

    def __init__(self, folder: Path) -> None:
        self.program = install("integrations", python=">=3.12") / "harbor"
        self.tasks, self.jobs = folder / "tasks", folder / "jobs"
        self.sandboxes = folder / "corral-home" / "sandboxes"
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "CORRAL_HOME": str(folder / "corral-home"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "HARBOR_TELEMETRY": "0",
        }
        self.folder = folder

    def task(
        self,
        name: str,
        prompt: str = "Write hello to /app/hello.txt",
        *,
        check: str = CHECK,
        solution: str = "",
        files: Mapping[str, str] | None = None,
        **config: str,
    ) -> None:
        """Write a task. ``config``: lines of the sections of ``task.toml``."""
        defaults = {
            "agent": "timeout_sec = 120",
            "verifier": "timeout_sec = 120",
            "environment": 'network_mode = "no-network"\nworkdir = "/app"',
        }
        sections = (f"[{key}]\n{value}\n" for key, value in (defaults | config).items())
        texts = {
            "task.toml": 'schema_version = "1.4"\n' + "".join(sections),
            "instruction.md": prompt,
            "tests/test.sh": check,
            "solution/solve.sh": solution,
            "environment/seed.txt": "seed",
            **{f"environment/{key}": text for key, text in (files or {}).items()},
        }
        for path, text in texts.items():
            if text:
                file = self.tasks / name / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)

    def command(self, *more: str, env: Mapping[str, str] | None = None) -> list[str]:
        words = [str(self.program), "run", "-p", str(self.tasks), "-o", str(self.jobs), "-y"]
        words += ["--job-name", "job", "-n", "3", "--env", f"{MODULE}:SandboxEnvironment", *more]
        given = (("--ae", f"{name}={value}") for name, value in (env or {}).items())
        return [*words, *(word for pair in given for word in pair)]

    def run(self, *more: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The results of the trials, by task."""
        done = self.run_to_end(*more, env=env)
        assert done.returncode == 0, done.stdout
        return self.results()

    def run_to_end(
        self, *more: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*more, env=env),
            env=self.env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )

    def results(self) -> dict[str, Any]:
        found = (json.loads(path.read_text()) for path in self.jobs.glob("job/*/result.json"))
        return {each["task_name"]: each for each in found}

    def trial(self, task: str) -> Path:
        return next(self.jobs.glob(f"job/{task}__*"))

    def left(self) -> list[object]:
        """Folders of trials that are left, and processes that use them."""
        folders = [path for path in self.sandboxes.iterdir() if path.is_dir()]
        return [*folders, *processes_using(self.sandboxes).values()]


@pytest.fixture
def harbor(tmp_path: Path) -> Harbor:
    return Harbor(tmp_path)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(SCRIPT) as started:
        yield started


def test_trials_have_reward_tokens_and_trajectory_or_an_exception(
    harbor: Harbor, server: ModelServer
) -> None:
    harbor.task("works")
    harbor.task("fails", "Do nothing")
    harbor.task("image", files={"Dockerfile": "FROM alpine"})
    harbor.task("hangs", "Hang", agent="timeout_sec = 5")
    harbor.task("limited", "Limit")
    harbor.task("user", agent='timeout_sec = 120\nuser = "agent"')
    trials = harbor.run("-a", f"{MODULE}:CorralAgent", "--ak", BUILT_IN, env=server.env)

    works = trials["works"]
    assert works["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert works["exception_info"] is None
    used = works["agent_result"]
    counts = [used[f"n_{name}_tokens"] for name in ("input", "cache", "output")]
    assert counts == [2500, 10, 50]
    assert used["cost_usd"] > 0
    assert used["metadata"]["model"] == "gemini:gemini-2.5-flash"
    assert (used["metadata"]["status"], used["metadata"]["usage_source"]) == ("success", "metered")
    assert used["model_usage"]["gemini:gemini-2.5-flash"]["n_input_tokens"] == 2500
    assert works["agent_info"]["version"] not in ("", "unknown")
    written = (harbor.trial("works") / "agent" / "trajectory.json").read_bytes()
    steps = Trajectory.model_validate_json(written).steps
    assert [step.source for step in steps] == ["user", "agent", "agent"]
    assert str(steps[0].message).startswith(f"Write hello to {harbor.sandboxes}/")

    assert trials["fails"]["verifier_result"] == {"rewards": {"reward": 0.0}}
    for task, kind in (
        ("image", "SandboxBuildFailedError"),
        ("limited", "ApiRateLimitError"),
        ("user", "RuntimeError"),
    ):
        assert trials[task]["exception_info"]["exception_type"] == kind
        assert trials[task]["verifier_result"] is None, "an infrastructure failure is no verdict"
    assert trials["image"]["exception_info"]["exception_message"] == (
        "corral's sandbox cannot run this task: it builds an image (environment/Dockerfile)"
    )
    hangs = trials["hangs"]
    assert hangs["exception_info"]["exception_type"] == "AgentTimeoutError"
    assert hangs["verifier_result"] == {"rewards": {"reward": 0.0}}
    assert hangs["agent_result"]["n_input_tokens"] == 700
    assert hangs["agent_result"]["metadata"]["status"] == "interrupted"
    assert harbor.left() == []


@pytest.mark.gemini_cli
def test_a_real_agent_gets_the_model_that_harbor_names(harbor: Harbor, tmp_path: Path) -> None:
    harbor.task("works", "Write hello to /app/hello.txt, and a note to /logs/artifacts/note.txt")
    command = "echo hello > hello.txt; echo noted > ../logs/artifacts/note.txt"
    call = Call("run_shell_command", {"command": command, "description": "write"})
    script = Script([Turn(calls=[call]), Turn(text="Done.")], restart="per_conversation")
    with ModelServer(script) as server:
        program = ["--ak", "agent=gemini", "--ak", f"program={installed('gemini-cli')}"]
        model = ["-m", "google/gemini-2.5-flash"]
        agent = ["-a", f"{MODULE}:CorralAgent", *program, *model]
        works = harbor.run(*agent, env=server.env)["works"]
    assert works["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert works["agent_result"]["metadata"]["model"] == "gemini-2.5-flash"
    assert works["agent_info"]["model_info"]["name"] == "gemini-2.5-flash"
    artifacts = harbor.trial("works") / "artifacts" / "logs" / "artifacts"
    assert (artifacts / "note.txt").read_text() == "noted\n"


NETWORK = """#!/usr/bin/env python3
import pathlib, socket, urllib.request
def reaches(url):
    try:
        return urllib.request.urlopen(url, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return str(error)
found = "public" if isinstance(reaches("URL"), int) else "no"
found = "allowlist" if reaches("http://example.org/") == 403 else found
pathlib.Path("/app/network").open("a").write(found + " ")
"""


def test_the_network_and_the_files_are_those_of_the_task(
    harbor: Harbor, server: ModelServer
) -> None:
    look = NETWORK.replace("URL", f"{server.url}/")
    check = look + (
        "seen = pathlib.Path('/app/network').read_text().strip()\n"
        "pathlib.Path('/logs/verifier/reward.txt').write_text(str(int(seen == 'EXPECTED')))\n"
    )
    place = 'workdir = "/srv/work"\n'
    for name, agent, verifier in (
        ("none", 'network_mode = "no-network"', ""),
        ("all", 'network_mode = "public"', ""),
        ("some", 'network_mode = "allowlist"\nallowed_hosts = ["*.example.com"]', ""),
        ("changed", 'network_mode = "no-network"', 'network_mode = "public"'),
    ):
        first = {"none": "no", "all": "public", "some": "allowlist", "changed": "no"}[name]
        last = "public" if name == "changed" else first
        harbor.task(
            name,
            check=check.replace("EXPECTED", f"{first} {last}").replace("/app", "/srv/work"),
            solution=look.replace("/app", "/srv/work"),
            environment=place + agent,
            verifier=verifier,
        )
    leak = harbor.folder / "secret.txt"
    leak.write_text("secret")
    harbor.task(
        "links",
        check="#!/bin/sh\necho 1 > /logs/verifier/reward.txt; test ! -e /app/kept",
        solution=f"#!/bin/sh\ncd /logs/artifacts; ln -s {leak} link; mkfifo pipe; echo x > file",
    )
    trials = harbor.run("-a", "oracle")
    for task, trial in trials.items():
        assert trial["verifier_result"] == {"rewards": {"reward": 1.0}}, task
    artifacts = harbor.trial("links") / "artifacts" / "logs" / "artifacts"
    assert [path.name for path in artifacts.iterdir()] == ["file"]
    assert harbor.left() == []


@pytest.mark.parametrize("how", ["killed", "cancelled"])
def test_nothing_is_left_of_a_job_that_is(how: str, harbor: Harbor, server: ModelServer) -> None:
    harbor.task("hangs", "Hang")
    command = harbor.command("-a", f"{MODULE}:CorralAgent", "--ak", BUILT_IN, env=server.env)
    process = subprocess.Popen(
        command,
        env=harbor.env,
        cwd=harbor.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: bool([*harbor.sandboxes.glob("*/workspace/started")]))
    assert len(processes_using(harbor.sandboxes)) > 1
    process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGINT)
    process.wait(60)
    wait_for(lambda: not processes_using(harbor.sandboxes))
    if how == "killed":
        # The folder is removed by the next environment.
        harbor.task("hangs", solution="#!/bin/sh\necho hello > hello.txt")
        done = harbor.run_to_end("-a", "oracle", "--job-name", "next")
        assert done.returncode == 0, done.stdout
    else:
        info = harbor.results()["hangs"]["exception_info"]
        assert info["exception_type"] == "CancelledError"
    assert harbor.left() == []


def wait_for(condition: Any, seconds: float = 120) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.1)


def test_a_job_that_cannot_work_is_refused_before_its_trials(harbor: Harbor) -> None:
    harbor.task("works")
    for options, message in (
        (["agent=gemini-cli"], "gemini"),
        (["agent=nobody"], "no agent is called 'nobody'"),
        ([BUILT_IN, "max_cots=1"], "max_cost"),
        ([BUILT_IN, "cwd=/"], "cwd: decided by the task"),
    ):
        words = [word for option in options for word in ("--ak", option)]
        done = harbor.run_to_end("-a", f"{MODULE}:CorralAgent", *words)
        assert done.returncode == 1, done.stdout
        assert message in done.stdout
        assert "Traceback" not in done.stdout
    assert harbor.results() == {}


def test_the_agent_refuses_an_environment_that_is_elsewhere(harbor: Harbor) -> None:
    program = f"""
import asyncio, pathlib
from harbor.environments.docker.docker import DockerEnvironment
from {MODULE} import CorralAgent
agent = CorralAgent(logs_dir=pathlib.Path("."))
asyncio.run(agent.setup(DockerEnvironment.__new__(DockerEnvironment)))
"""
    python = [str(harbor.program.with_name("python")), "-c", program]
    done = subprocess.run(python, env=harbor.env, capture_output=True, text=True)
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith(
            "ValueError: CorralAgent runs on this machine, and the files of docker are elsewhere:"
        )
    )
