"""Scenarios are run for real, in the sandbox, on a tree that an agent left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.sandbox import needs_sandbox

from corral import errors
from corral._sessions.sandbox import for_user_command
from corral._verification.check import CheckContext
from corral._verification.scenarios.counts import ScenarioResult
from corral._verification.scenarios.run_scenarios import run_scenarios
from corral._verification.scenarios.scenario_folder import read_folder
from corral.options import RunOptions
from corral.policy import Policy

pytestmark = needs_sandbox

SERVER = """
import http.server, json, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"sum": sent["a"] + sent["b"]}).encode()
        self.send_response(201)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
CALL = """
timeout = {timeout}
start = "{start}"
[http]
url = "/add"
method = "POST"
json = {{ a = 2, b = 3 }}
{expect}
"""


class Place:
    """A folder of scenarios, and the tree on which they are run."""

    def __init__(self, folder: Path) -> None:
        self.held_out, self.tree, self.scratch = (
            folder / name for name in ("held-out", "tree", "scratch")
        )
        for each in (self.held_out, self.tree, self.scratch):
            each.mkdir()

    def put(self, name: str, text: str) -> None:
        (self.held_out / name).write_text(text)

    async def run(
        self, *, network: bool = False, timeout: float = 600
    ) -> dict[str, ScenarioResult]:
        policy = Policy(write="allow", shell="allow", network="allow" if network else "deny")
        options = RunOptions.build("corral", {"sandbox": "require", "policy": policy})
        sandbox = for_user_command(options, str(self.tree), [str(self.scratch)])
        context = CheckContext(
            folder=self.tree,
            left=self.tree,
            sandbox=sandbox,
            scratch=self.scratch,
            timeout=timeout,
        )
        results = await run_scenarios(read_folder(self.held_out), context, None)
        return {result.scenario.name: result for result in results}

    async def outcome(self, text: str) -> tuple[str, str]:
        """Of one scenario."""
        self.put("one.toml", text)
        result = (await self.run())["one.toml"]
        return result.outcome, result.reason


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("text", "outcome", "reason"),
    [
        ('command = "true"', "satisfied", ""),
        ('command = "exit 3"', "failed", "exited with 3"),
        ('command = "sleep 60"\ntimeout = 0.3', "failed", "did not end in its time"),
        ('command = "no-such-program"', "missing", "exited with 127"),
        ('command = "kill -9 $$"', "failed", "exited with 137"),
        ('setup = "exit 1"\ncommand = "true"', "missing", "setup exited with 1"),
        ('setup = "touch made"\ncommand = "test -f made"', "satisfied", ""),
    ],
)
async def test_a_command_is_satisfied_if_it_exits_with_0(
    place: Place, text: str, outcome: str, reason: str
) -> None:
    assert await place.outcome(text) == (outcome, reason)


async def test_the_build_is_run_once_before_all(place: Place) -> None:
    place.put("scenarios.toml", 'build = "echo built >> made"')
    place.put("a.toml", 'command = "test $(wc -l < made) = 1"')
    place.put("b.toml", 'command = "test $(wc -l < made) = 1"')
    assert {each.outcome for each in (await place.run()).values()} == {"satisfied"}


async def test_a_build_that_fails_satisfies_nothing(place: Place) -> None:
    place.put("scenarios.toml", 'build = "exit 2"')
    place.put("a.toml", 'command = "true"')
    result = (await place.run())["a.toml"]
    assert (result.outcome, result.reason) == ("failed", "the build exited with 2")


async def test_no_time_left_is_missing(place: Place) -> None:
    place.put("a.toml", 'command = "sleep 30"')
    place.put("b.toml", 'command = "true"')
    results = await place.run(timeout=0.5)
    assert [results[name].outcome for name in ("a.toml", "b.toml")] == ["failed", "missing"]


async def test_commands_reach_neither_the_network_nor_the_scenarios(place: Place) -> None:
    (place.held_out / "files").mkdir()
    (place.held_out / "files" / "expected.txt").write_text("5")
    place.put("a.toml", f'command = "! ls {place.held_out} && ! ls {place.held_out}/.."')
    place.put("b.toml", 'command = "test $(cat $SCENARIO_FILES/expected.txt) = 5"')
    place.put("c.toml", 'command = "test $(tail -n +3 /proc/net/dev | wc -l) = 1"')  # loopback
    results = await place.run(network=True)
    assert {name: each.reason for name, each in results.items()} == {
        "a.toml": "",
        "b.toml": "",
        "c.toml": "",
    }
    assert list(place.scratch.iterdir()) == []


@pytest.mark.deep
@pytest.mark.timeout(600)  # seven test runs in the sandbox, on a busy machine
async def test_tests_are_run_by_pytest(place: Place) -> None:
    (place.tree / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (place.tree / "exits.py").write_text("import os\nos._exit(0)\n")
    (place.tree / "pytest.py").write_text("raise SystemExit(0)\n")
    (place.tree / "conftest.py").write_text("raise SystemExit(0)\n")
    (place.tree / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    place.put("scenarios.toml", f'python = "{sys.executable}"')
    place.put("test_adds.py", "import sums\ndef test_it():\n    assert sums.add(1, 2) == 3\n")
    place.put("test_wrong.py", "import sums\ndef test_it():\n    assert sums.add(1, 2) == 4\n")
    place.put("test_not_there.py", "import products\ndef test_it():\n    pass\n")
    place.put("test_exit.py", "def test_it():\n    import exits\n")
    place.put("test_none.py", "")
    place.put("test_skip.py", "import pytest\npytest.skip('no', allow_module_level=True)\n")
    place.put("test_word.py", "def test_it(word):\n    assert word == 'ok'\n")
    place.put("conftest.py", "import pytest\n@pytest.fixture\ndef word():\n    return 'ok'\n")
    results = await place.run()
    assert {name: (each.outcome, each.reason) for name, each in results.items()} == {
        "test_adds.py": ("satisfied", ""),
        "test_word.py": ("satisfied", ""),
        "test_wrong.py": ("failed", "exited with 1"),
        "test_not_there.py": ("missing", "no test was run"),
        "test_exit.py": ("failed", "exited with 0 before the end of the tests"),
        "test_none.py": ("missing", "no test was run"),
        "test_skip.py": ("missing", "no test was run"),
    }


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["lib", "src"]'),
        ("tox.ini", "[pytest]\npythonpath = lib src"),
    ],
)
async def test_held_out_tests_import_as_those_of_the_work(
    place: Place, name: str, settings: str
) -> None:
    """Its other settings do not count."""
    (place.tree / "src").mkdir()
    (place.tree / "src" / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    options = '"--co"' if name.endswith(".toml") else "--co"
    (place.tree / name).write_text(f"{settings}\naddopts = {options}\n")
    place.put("scenarios.toml", f'python = "{sys.executable}"')
    place.put("conftest.py", "import pytest, sums\n@pytest.fixture\ndef add(): return sums.add\n")
    root = f"assert str(pytestconfig.rootpath) == {str(place.tree)!r}"
    place.put(
        "test_a.py", f"def test_it(add, pytestconfig):\n    assert add(1, 2) == 3\n    {root}\n"
    )
    result = (await place.run())["test_a.py"]
    assert (result.outcome, result.reason) == ("satisfied", ""), result.output


async def test_a_python_without_pytest_is_missing(place: Place) -> None:
    (place.tree / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (place.tree / "python").chmod(0o755)
    place.put("scenarios.toml", 'python = "./python"')
    place.put("test_a.py", "def test_it(): pass\n")
    result = (await place.run())["test_a.py"]
    assert (result.outcome, result.reason) == ("missing", "./python has no pytest")


@pytest.mark.parametrize(
    ("start", "expect", "outcome", "reason"),
    [
        ("python3 app.py", "status = 201\nequals = { sum = 5 }", "satisfied", ""),
        ("python3 app.py & ", 'contains = ["sum", "5"]', "satisfied", ""),
        ("python3 app.py", 'contains = "6"', "failed", "does not contain '6'"),
        ("python3 app.py", "status = [200, 204]", "failed", "has the status 201"),
        ("python3 app.py", "equals = { sum = 6 }", "failed", 'the response is {"sum": 5}'),
        ("sleep 60", "", "failed", "the server never listened"),
        ("exit 4", "", "failed", "the server exited with 4 before it listened"),
    ],
)
async def test_a_server_is_started_and_called(
    place: Place, start: str, expect: str, outcome: str, reason: str
) -> None:
    (place.tree / "app.py").write_text(SERVER)
    timeout = 1 if start.startswith("sleep") else 30
    text = CALL.format(timeout=timeout, start=start, expect=expect)
    found, why = await place.outcome(text)
    assert (found, reason in why, bool(why)) == (outcome, True, bool(reason))


async def test_a_server_that_never_answers_has_failed(place: Place) -> None:
    (place.tree / "app.py").write_text(
        "import os, socket, time\n"
        "s = socket.create_server(('127.0.0.1', int(os.environ['PORT'])))\ntime.sleep(60)\n"
    )
    text = CALL.format(timeout=1, start="python3 app.py", expect="")
    outcome, reason = await place.outcome(text)
    assert outcome == "failed"
    assert "gave no response" in reason


async def test_scenarios_that_changed_are_not_run(place: Place) -> None:
    place.put("a.toml", 'command = "true"')
    folder = read_folder(place.held_out)
    place.put("a.toml", 'command = "false"')
    context = CheckContext(folder=place.tree, left=place.tree, scratch=place.scratch)
    with pytest.raises(errors.StorageFailed, match="have changed") as caught:
        await run_scenarios(folder, context, None)
    assert "a.toml" not in str(caught.value)
