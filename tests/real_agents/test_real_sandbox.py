"""Every agent in corral's sandbox, with a model that tries to get out of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.loopback_http import FileServer
from support.real_agents import RealAgent, for_agents
from support.sandbox import needs_sandbox

import corral
from corral._testing.attack.attempts import ways_out
from corral._testing.attack.report import AttackReport
from corral.policy import SANDBOX_CELLS
from corral.testing import Turn, attack_agent

pytestmark = [needs_sandbox, pytest.mark.timeout(600)]

LOGINS = (".ssh/id", ".aws/credentials", ".local/share/keyrings/login", ".mozilla/logins.json",
          ".config/google-chrome/Cookies", ".netrc", ".pypirc")  # fmt: skip


@pytest.fixture(autouse=True)
def logins() -> None:
    """The test's own home has logins of every kind."""
    for name in LOGINS:
        file = Path.home() / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"secret of {name}\n")


async def attack(name: str, program: str | None = None) -> AttackReport:
    return await attack_agent(
        name,
        policies=["offline", "offline-reads"],
        only=["files", ways_out.GROUP, ways_out.WRITES],
        sandbox=True,
        options={"program": program},
    )


def check(report: AttackReport) -> None:
    """Every cell of the report was attacked and held; what is allowed works."""
    assert report.ok, str(report)
    free, read_only = report.policies
    held = {cell.cell for cell in free.of("held") if cell.tries}
    held |= {cell.cell for cell in read_only.of("held") if cell.tries}
    assert held >= {*SANDBOX_CELLS}, str(report)
    assert "write inside" in {cell.cell for cell in free.of("allowed")}
    assert "write inside" in {cell.cell for cell in read_only.of("held")}
    made = sum(tried.outcome in ("held", "not offered") for tried in free.tried)
    assert made > 50, str(report)


@pytest.mark.deep
@for_agents()
async def test_nothing_gets_out_of_the_sandbox(agent: RealAgent) -> None:
    check(await attack(agent.name, agent.program))


@pytest.mark.deep
async def test_nothing_gets_out_of_the_sandbox_of_the_built_in_agent() -> None:
    check(await attack("corral"))


@for_agents("gemini-cli", "gemini-acp")
async def test_commands_reach_the_hosts_that_the_policy_names_and_no_others(
    agent: RealAgent, tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("hello from outside\n")
    async with (
        FileServer(tmp_path, "127.0.0.2") as allowed,
        FileServer(tmp_path, "127.0.0.3") as no,
    ):
        curl = "curl -sS --max-time 30 -o {name} http://{host}:{port}/x"
        script = "\n".join(
            (
                curl.format(name="allowed.txt", host="127.0.0.2", port=allowed.port),
                curl.format(name="refused.txt", host="127.0.0.3", port=no.port),
                curl.format(name="other.txt", host="forbidden.example", port=80),
                "true",
            )
        )
        (agent.workspace / "fetch.sh").write_text(script)
        result = await agent.run(
            [Turn(calls=[agent.shell("sh fetch.sh")]), Turn(text="done", repeat="forever")],
            policy=corral.Policy(
                write="allow", shell="allow", network_hosts=(f"127.0.0.2:{allowed.port}",)
            ),
        )
    assert result.status == "success", result
    assert result.sandbox == "bubblewrap"
    assert (agent.workspace / "allowed.txt").read_text() == "hello from outside\n"
    assert "the policy does not allow 127.0.0.3" in (agent.workspace / "refused.txt").read_text()
    assert "forbidden.example:80" in (agent.workspace / "other.txt").read_text()
    assert (len(allowed.paths), no.paths) == (1, [])
