"""The action for GitHub and the template for GitLab: their scripts run in bash, as the CI systems
run them, with a scripted model and a server in place of the API.

The steps that install have their own test, which is slow: there, pip installs a package that has
only the command. The code is always that of the checkout.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from support.pipeline_command import CORRAL
from support.real_agents import KEY
from support.repositories import git, repository

from corral._cli.main import command
from corral.testing import ModelServer, Turn, call, say

__all__ = ["repository"]

pytestmark = pytest.mark.whole_program

ROOT = Path(__file__).parents[1]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
SPEC, JOBS = yaml.safe_load_all((ROOT / "templates" / "review.yml").read_text())
TOKEN = "ghs_0123456789abcdefghijABCDEFGHIJ"
HOSTILE = '$(touch PWNED) `touch PWNED`"; touch PWNED #\n::set-output name=x::y'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with the command ``corral`` only."""
    path = tmp_path_factory.mktemp("wheel") / "corral-0.1.0-py3-none-any.whl"
    info = "corral-0.1.0.dist-info"
    files = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: corral\nVersion: 0.1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ncorral = corral._cli.entry:main\n",
    }
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record += f"{name},sha256={digest.rstrip(b'=').decode()},{len(text)}\n"
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


@pytest.fixture
def bodies() -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    """A server for the API: its URL, and the path, token and body of each request."""
    received: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            token = self.headers["Authorization"] or self.headers["PRIVATE-TOKEN"]
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, token, body))
            self.send_response(201)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


@pytest.fixture
def change(repository: Path) -> tuple[Path, str, str]:
    """A repository, and the commits before and after a change."""
    before = git(repository, "rev-parse", "HEAD")
    (repository / "file").write_text("two\n")
    git(repository, "commit", "-q", "-a", "-m", HOSTILE)
    return repository, before, git(repository, "rev-parse", "HEAD")


@pytest.fixture
def runner(tmp_path: Path, model_server: ModelServer) -> dict[str, str]:
    """The environment of a runner on which corral is installed. Its model finds one defect."""
    finding = {"file": "file", "line": 1, "severity": "high", "title": HOSTILE, "explanation": "e"}
    text = json.dumps({"summary": "s", "findings": [finding]})
    lane = model_server.lane(f"ci-{tmp_path.name}", [Turn(text=text, repeat="forever")])
    folder = tmp_path / "runner"
    (folder / "corral" / "bin").mkdir(parents=True)
    (folder / "corral" / "bin" / "corral").symlink_to(CORRAL)
    python = Path(sys.executable).parent
    return {
        "PATH": f"{python}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path / "user-home"),
        "CORRAL_HOME": str(tmp_path / "corral-home"),
        "TMPDIR": str(folder),
        "RUNNER_TEMP": str(folder),
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": lane.url,
    }


def bash(script: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=110,
    )


def variables(step: dict[str, Any], given: dict[str, str]) -> dict[str, str]:
    """The variables of a step: inputs have the values in ``given``, or their defaults."""
    inputs = {name: str(each["default"]) for name, each in ACTION["inputs"].items()} | given
    found: dict[str, str] = {}
    for name, value in step.get("env", {}).items():
        expression = re.fullmatch(r"\$\{\{ (.*) \}\}", value)
        assert expression, value
        known = re.fullmatch(r"inputs\.([\w-]+)", expression[1])
        found[name] = inputs[known[1]] if known else given.get(name, "")
    return found


def test_the_workflow_of_the_review_bot_uses_inputs_that_the_action_has() -> None:
    page = (ROOT / "docs" / "cookbook" / "review-bot.md").read_text()
    [text] = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    [job] = yaml.safe_load(text)["jobs"].values()
    checkout, review = job["steps"]
    assert review["uses"].startswith("OWNER/corral@v")
    assert review["with"].keys() <= ACTION["inputs"].keys()
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}


@pytest.fixture
def receipt(change: tuple[Path, str, str], runner: dict[str, str]) -> Path:
    """Of a run that made the change."""
    folder, before, after = change
    git(folder, "checkout", "-q", before)
    file = folder.parent / "receipt.json"
    with ModelServer([call("shell", command="echo two > file"), say("done")]) as server:
        words = (
            "--agent",
            "gemini:gemini-2.5-flash",
            "--approve",
            "all",
            "--sandbox",
            "off",
            "--quiet",
        )
        checks = ("--verify", "grep -q two file", "--work", "file", "--receipt", str(file))
        done = subprocess.run(
            [CORRAL, "run", *words, *checks, "Do it"],
            cwd=folder,
            env={**runner, **server.env, "CORRAL_HOME": str(folder.parent / "another-home")},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    assert done.returncode == 0, done.stderr
    git(folder, "checkout", "-q", "--force", after)
    return file


@pytest.mark.deep
def test_the_action_reviews_and_comments(
    receipt: Path,
    change: tuple[Path, str, str],
    runner: dict[str, str],
    bodies: tuple[str, list[tuple[str, str, bytes]]],
) -> None:
    folder, before, after = change
    url, received = bodies
    event = folder.parent / "event.json"
    event.write_text('{"pull_request": {"number": 7}}')
    given = {
        "RANGE": f"{before}...{after}",
        "TITLE": HOSTILE,
        "BODY": HOSTILE,
        "exclude": "*.lock\n\ngenerated/",
        "sarif": "review.sarif",
        "max-cost": "1",
        "token": TOKEN,
        "receipt": str(receipt),
        "verify": "grep -q two file\n",
        "work": "file\n",
        "BEFORE": before,
    }
    github = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_API_URL": url,
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_EVENT_PATH": str(event),
    }
    _, verify, review, comment = ACTION["runs"]["steps"]
    summaries = [folder.parent / name for name in ("verified.md", "reviewed.md", "other.md")]
    ended = [
        bash(
            step["run"],
            folder,
            {
                **runner,
                **github,
                **variables(step, given),
                "GITHUB_STEP_SUMMARY": str(summary),  # each step has its own
            },
        )
        for step, summary in zip((verify, review, comment), summaries, strict=True)
    ]
    assert [done.returncode for done in ended] == [0, 13, 0], [done.stderr for done in ended]
    assert "GITHUB_TOKEN" not in variables(review, given)
    first = ended[1].stdout.split("\n")[0]
    assert first.startswith("::error file=file,line=1,endLine=1,title=high%3A $(touch PWNED)")
    assert not [line for line in ended[1].stdout.split("\n") if line.startswith("::set-output")]
    verification, reviewed = (summary.read_text() for summary in summaries[:2])
    assert verification.startswith("### Verification: same; the receipt says verified")
    assert "| `grep -q two file` | `passed` | 0 |" in verification
    assert reviewed.startswith("### Review")
    assert json.loads((folder / "review.sarif").read_text())["version"] == "2.1.0"
    [(path, token, body)] = received
    assert (path, token) == ("/repos/owner/name/issues/7/comments", f"Bearer {TOKEN}")
    assert json.loads(body)["body"].startswith("### Review")
    assert not (folder / "PWNED").exists()
    without = {**runner, **github, **variables(verify, {**given, "verify": " \n"})}
    done = bash(verify["run"], folder, without)
    assert (done.returncode, done.stdout) == (2, "")
    assert "set verify" in done.stderr


@pytest.mark.deep
def test_the_template_reviews_and_comments(
    change: tuple[Path, str, str],
    runner: dict[str, str],
    bodies: tuple[str, list[tuple[str, str, bytes]]],
) -> None:
    folder, before, after = change
    url, received = bodies
    inputs = {name: str(each.get("default", "")) for name, each in SPEC["spec"]["inputs"].items()}
    gitlab = {
        "CI_API_V4_URL": url,
        "CI_PROJECT_ID": "42",
        "CI_MERGE_REQUEST_IID": "7",
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": before,
        "CI_COMMIT_SHA": after,
        "CI_MERGE_REQUEST_TITLE": HOSTILE,
        "CI_MERGE_REQUEST_DESCRIPTION": HOSTILE,
        "CI_JOB_TOKEN": TOKEN,
        "GITLAB_TOKEN": TOKEN,
    }
    codes: list[int] = []
    for name in ("corral-review", "corral-comment"):
        given = {
            key: re.sub(r"\$\[\[ inputs\.(\w+) \]\]", lambda m: inputs[m[1]], value)
            for key, value in JOBS[name]["variables"].items()
        }
        for script in JOBS[name]["script"][1:]:
            done = bash(script, folder, {**runner, **gitlab, **given})
            codes.append(done.returncode)
            assert done.returncode in (0, 13), done.stderr
    assert codes == [0, 13, 0]
    assert "<failure" in (folder / "corral-review.xml").read_text()
    [(path, token, body)] = received
    assert (path, token) == ("/projects/42/merge_requests/7/notes", TOKEN)
    assert not [line for line in json.loads(body)["body"].split("\n") if line.startswith("/")]
    assert not (folder / "PWNED").exists()


def test_the_steps_that_install_are_the_same() -> None:
    install = [JOBS[name]["script"][0] for name in ("corral-review", "corral-comment")]
    scripts = [ACTION["runs"]["steps"][0]["run"].replace("$RUNNER_TEMP", "${TMPDIR:-/tmp}")]
    scripts += [script.removeprefix("set -e\n") for script in install]
    assert len({tuple(script.split("\n")[:2]) for script in scripts}) == 1


@pytest.mark.deep
def test_the_step_that_installs_gives_the_command(
    runner: dict[str, str], wheel: Path, tmp_path: Path
) -> None:
    (tmp_path / "runner" / "corral" / "bin" / "corral").unlink()
    here = {
        "PACKAGE": str(wheel),
        "AGENTS_TO_INSTALL": "",
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), sysconfig.get_path("purelib"))),
    }
    script = ACTION["runs"]["steps"][0]["run"]
    done = bash(f'{script}\n"$RUNNER_TEMP/corral/bin/corral" --version', tmp_path, runner | here)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("corral 0.1.0")


def test_no_script_contains_an_expression() -> None:
    """Text of a pull request would become a part of the script."""
    scripts = [step["run"] for step in ACTION["runs"]["steps"]]
    scripts += [script for job in JOBS.values() for script in job["script"]]
    assert not [script for script in scripts if "${{" in script or "$[[" in script]


def test_the_scripts_use_options_that_exist() -> None:
    text = (ROOT / "action.yml").read_text() + (ROOT / "templates" / "review.yml").read_text()
    known: set[str] = {"--quiet", "--disable-pip-version-check", "--noprofile"}
    for path in (("review",), ("outputs", "apply"), ("run",), ("verify",)):
        found: Any = command
        for name in path:
            found = found.get_command(None, name)
        known |= {flag for option in found.params for flag in option.opts}
    assert set(re.findall(r"(?<=[\s(])--[a-z][a-z-]*", text)) <= known


def test_what_is_installed_is_pinned() -> None:
    for default in (ACTION["inputs"]["package"], SPEC["spec"]["inputs"]["package"]):
        assert re.fullmatch(r"corral\[sandbox\]==\d+\.\d+\.\d+", default["default"])


def test_every_input_is_used_and_described() -> None:
    steps = yaml.safe_dump(ACTION["runs"])
    for name, each in ACTION["inputs"].items():
        assert each["description"]
        assert f"inputs.{name}" in steps
    for name in SPEC["spec"]["inputs"]:
        assert f"$[[ inputs.{name} ]]" in json.dumps(JOBS)
