"""The real key is found wherever it is cut, and nothing else is held back."""

from __future__ import annotations

from random import Random

import pytest

from corral._metering.proxy.upstream import KeyFound, KeyScan, searched_forms

KEYS = (b"aab0aab1", b"ab0x")


def test_a_key_is_found_wherever_it_is_cut() -> None:
    chance = Random(1)
    found = 0
    for _ in range(3000):
        data = bytes(chance.choices(b"ab01x", k=40))
        if chance.random() < 0.5:
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice(KEYS) + data[at:]
        scan, out, has_key = KeyScan(KEYS), b"", False
        at = 0
        while at < len(data) and not has_key:
            step = chance.randrange(1, 6)
            try:
                out += scan.receive(data[at : at + step])
            except KeyFound:
                has_key = True
            at += step
        assert has_key == any(key in data for key in KEYS)
        found += has_key
        if not has_key:
            out += scan.take_rest()
            assert out == data
        assert data.startswith(out)
        assert not any(key in out for key in KEYS)
    assert 1000 < found < 2500


def test_only_the_beginning_of_a_key_is_held_back() -> None:
    scan = KeyScan((b"sk-1234",))
    assert scan.receive(b"data: {}\n\n") == b"data: {}\n\n"
    assert scan.receive(b"risk-12") == b"ri"
    assert scan.receive(b"3") == b""
    assert scan.receive(b"5s") == b"sk-1235"
    assert scan.take_rest() == b"s"
    with pytest.raises(KeyFound):
        scan.receive(b"sk-1234")


def test_a_key_is_searched_in_its_forms_and_a_placeholder_is_not() -> None:
    assert searched_forms(["sk-no-key-required", "lm-studio", "sk-1234"]) == ()
    key = 'abc/def"ghi=jkl0'
    assert searched_forms([key]) == (
        key.encode(),
        b"abc%2Fdef%22ghi%3Djkl0",
        b'abc/def\\"ghi=jkl0',
    )
