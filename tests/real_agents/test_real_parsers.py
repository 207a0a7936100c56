"""The code of a real agent reads what a hostile vendor sent through the model proxy."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from support.installed_agents import installed
from support.proxy_kit.agent_parsers import NOT_JSON, PARSERS, ReadCall, made
from support.proxy_kit.exchange import exchanges
from support.proxy_kit.hostile_vendor import WIRES, hostile_response

pytestmark = [pytest.mark.pi, pytest.mark.slow, pytest.mark.timeout(600)]

READER = Path(__file__).parents[1] / "support" / "proxy_kit" / "pi_reader.mjs"
COUNT = 300


def read_by_pi(wire: str, bodies: Sequence[bytes], folder: Path) -> list[set[ReadCall]]:
    packages = Path(installed("pi-cli")).parents[1]
    given = [{"wire": wire, "body": base64.b64encode(body).decode()} for body in bodies]
    (folder / "bodies.json").write_text(json.dumps(given))
    done = subprocess.run(
        ["node", READER, packages, folder / "bodies.json"],
        capture_output=True,
        check=True,
        timeout=300,
    )
    found = json.loads(done.stdout)
    return [{made(name, arguments) for name, arguments in calls} for calls in found]


@pytest.mark.parametrize("wire", WIRES)
async def test_pi_makes_only_calls_that_were_judged(wire: str, tmp_path: Path) -> None:
    found = [each async for each in exchanges(wire, COUNT, seed=3) if not each.received.is_error]
    calls = read_by_pi(wire, [each.received.body for each in found], tmp_path)
    for exchange, read in zip(found, calls, strict=True):
        assert read <= exchange.allowed, (exchange.number, exchange.responses[0].changes)
    assert any(calls)


@pytest.mark.parametrize("wire", WIRES)
def test_the_oracle_of_pi_finds_what_pi_finds(wire: str, tmp_path: Path) -> None:
    """In the bytes of the vendor. Of arguments that are not JSON, pi reads the beginning."""
    random = Random(f"oracle {wire}")
    bodies = [hostile_response(wire, random).body for _ in range(COUNT)]
    calls = read_by_pi(wire, bodies, tmp_path)
    for body, read in zip(bodies, calls, strict=True):
        found = set(PARSERS[wire]["pi"](body))
        unclear = {call.name for call in found if NOT_JSON in call.arguments}
        assert {call for call in read if call.name not in unclear} <= found, body
    assert any(calls)
