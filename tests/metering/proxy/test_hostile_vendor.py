"""What an agent could read as a tool call in a response was judged, whatever the vendor sends.

The responses are generated (``support/proxy_kit/hostile_vendor``), and read as the agents' own
programs read them (``support/proxy_kit/agent_parsers``)."""

from __future__ import annotations

from collections import Counter

import pytest
from support.proxy_kit.agent_parsers import PARSERS
from support.proxy_kit.exchange import exchanges
from support.proxy_kit.hostile_vendor import WIRES, HostileResponse

SLICE = 100
"""Responses of each wire format in ``make test``."""
ALL = 2_500


async def check_responses(wire: str, count: int, seed: int) -> Counter[str]:
    seen = Counter[str]()
    async for exchange in exchanges(wire, count, seed):
        answer = exchange.received
        changes = [response.changes for response in exchange.responses]
        assert answer.rest == b"", (exchange.number, changes)
        for program, parse in PARSERS[wire].items():
            calls = [] if answer.is_error else parse(answer.body)
            unjudged = set(calls) - exchange.allowed
            assert not unjudged, (exchange.number, program, unjudged, changes, answer.body)
        seen["allowed"] += bool(exchange.allowed)
        seen["failed"] += exchange.is_failed
        seen["attacks"] += _is_attack(wire, exchange.responses[0])
    return seen


def _is_attack(wire: str, response: HostileResponse) -> bool:
    """Whether programs disagree about the calls of a response: then one of them is deceived if it
    gets the bytes of the vendor."""
    found = {frozenset(parse(response.body)) for parse in PARSERS[wire].values()}
    return len(found - {frozenset()}) > 1


@pytest.mark.seconds
@pytest.mark.parametrize("wire", WIRES)
async def test_no_agent_reads_a_call_that_was_not_judged(wire: str) -> None:
    seen = await check_responses(wire, SLICE, seed=1)
    # The responses are worth something: some are passed on with calls, others are refused, and in
    # many of them programs find different calls.
    assert seen["allowed"] > SLICE // 20
    assert seen["failed"] > SLICE // 5
    assert seen["attacks"] > SLICE // 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("wire", WIRES)
async def test_no_agent_reads_an_unjudged_call_in_ten_thousand_responses(wire: str) -> None:
    seen = await check_responses(wire, ALL, seed=2)
    assert seen["allowed"] > ALL // 20
    assert seen["failed"] > ALL // 5
