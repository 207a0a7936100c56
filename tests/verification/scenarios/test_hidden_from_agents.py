"""Agents search for 20 scenarios: no canary is in a prompt, event, log or receipt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sandbox import needs_sandbox

import corral
from corral import errors
from corral._system import paths
from corral.events import Event, to_json
from corral.testing import ModelServer, Turn, call, say

pytestmark = needs_sandbox

CANARY = "CANARY-7c2e"
COUNT = 20
SEARCHES = (
    f"timeout 10 grep -rsl {CANARY} /tmp /home /root /var /run .. | head; true",
    "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; ps aux; true",
    "find / -name '*held-out*' -o -name 'scenario*' 2>/dev/null | head; true",
    "cat link/* back/* 2>&1; ls -la link/ $(readlink -f link) 2>&1; true",
    "cat $HOME/.local/state/corral/scenarios/* $CORRAL_HOME/scenarios/* 2>&1; ls -R /tmp; true",
    "cp -r link copied 2>&1; cp -r ../held-out copied 2>&1; find copied 2>&1; true",
)


@pytest.fixture
def held_out(tmp_path: Path, workspace: Path) -> Path:
    folder = tmp_path / "held-out"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "data.txt").write_text(CANARY)
    for number in range(COUNT):
        name = f"{CANARY}-{number}.toml"
        (folder / name).write_text(
            'class = "sums"\n'
            f'command = "echo {CANARY}; cat $SCENARIO_FILES/data.txt; sh run.sh {CANARY}"\n'
        )
    (workspace / "link").symlink_to(folder)
    (workspace / "back").symlink_to("../held-out")
    # The work is run by a scenario, and tries to leave what it sees where the agent looks.
    (workspace / "run.sh").write_text(
        'for at in . .. /tmp "$HOME" "$TMPDIR" "$PWD"; do env > "$at/seen.txt"; '
        'echo "$@" >> "$at/seen.txt"; done 2>/dev/null; exit 1\n'
    )
    return folder


async def search(workspace: Path, held_out: Path, command: str) -> tuple[str, corral.Result]:
    """What an agent with a shell, its user's tools and a second round could have seen."""
    second = f"cat seen.txt /tmp/seen.txt ../seen.txt 2>&1; {command}"
    script: list[Turn] = [
        call("shell", command=command),
        say("done"),
        call("shell", command=second),
        say("done"),
    ]
    events: list[Event] = []
    with ModelServer(script) as server:
        result = await corral.run(
            "gemini:gemini-2.5-flash",
            "Do it",
            cwd=workspace,
            policy="all",
            env=server.env,
            on_event=events.append,
            until=corral.verified(corral.scenarios(held_out)),
            rounds=1,
        )
        bodies = json.dumps([request.body for request in server.requests])
        assert len(server.requests) == 4
    stored = [path.read_bytes() for path in paths.sessions().rglob("*") if path.is_file()]
    seen = [bodies, *(to_json(event).decode() for event in events), repr(result)]
    return "\n".join([*seen, *(each.decode("utf-8", "replace") for each in stored)]), result


def without_own_words(text: str) -> str:
    """The search itself names the canary."""
    return text.replace(f"grep -rsl {CANARY}", "")


@pytest.mark.deep
@pytest.mark.parametrize("command", SEARCHES)
async def test_an_agent_that_searches_finds_nothing(
    workspace: Path, held_out: Path, command: str
) -> None:
    seen, result = await search(workspace, held_out, command)
    assert CANARY not in without_own_words(seen)
    assert result.receipt is not None
    assert result.receipt.evidence[0].details["total"] == COUNT
    assert "0 of 20 held-out scenarios" in seen
    reports = [*(paths.home() / "scenarios").glob("*.jsonl")]
    assert len(reports) == 1
    assert reports[0].stat().st_mode & 0o077 == 0
    assert CANARY in reports[0].read_text()


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(100))
async def test_a_hundred_runs_find_nothing(workspace: Path, held_out: Path, number: int) -> None:
    command = SEARCHES[number % len(SEARCHES)]
    seen, _ = await search(workspace, held_out, command)
    assert CANARY not in without_own_words(seen)


@pytest.mark.parametrize("sandbox", ["off", "agent"])
async def test_a_run_that_could_read_them_is_refused(
    workspace: Path, held_out: Path, sandbox: Any
) -> None:
    with pytest.raises(errors.ConfigError):
        await corral.run("gemini-cli", "Do it", cwd=workspace, scenarios=held_out, sandbox=sandbox)


async def test_scenarios_in_the_workspace_are_refused(workspace: Path) -> None:
    inside = workspace / "held-out"
    inside.mkdir()
    (inside / "a.toml").write_text('command = "true"')
    with pytest.raises(errors.ConfigError, match="in the workspace"):
        await corral.run("gemini-cli", "Do it", cwd=workspace, scenarios=inside)


async def test_a_run_that_changed_its_tests_is_judged_as_it_left_them(
    workspace: Path, tmp_path: Path
) -> None:
    (workspace / "test_it.py").write_text("assert False\n")
    held_out = tmp_path / "held-out"
    held_out.mkdir()
    (held_out / "a.toml").write_text('command = "grep -q changed test_it.py"')
    script = [call("shell", command="echo '# changed' > test_it.py; touch a"), say("done")]
    with ModelServer(script) as server:
        result = await corral.run(
            "gemini:gemini-2.5-flash",
            "Do it",
            cwd=workspace,
            policy="all",
            env=server.env,
            verify="test -f a && ! grep -q changed test_it.py",
            scenarios=held_out,
        )
    assert result.verdict == "gaps"
    [gap] = result.gaps
    assert gap.startswith("test_it.py was changed")
