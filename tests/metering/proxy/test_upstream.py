"""The real key is found wherever it is cut, and nothing else is held back."""

from __future__ import annotations

import html
import json
import re
import string
from html.entities import codepoint2name
from random import Random
from urllib.parse import quote

import pytest

from corral._metering.proxy.upstream import KeyFound, KeyScan, SearchedKey, searched_keys

KEYS = (b"aab0aab1", b"ab0x")
SEARCHED = tuple(SearchedKey(key.decode()) for key in KEYS)


def test_a_key_is_found_wherever_it_is_cut() -> None:
    chance = Random(1)
    found = 0
    for _ in range(3000):
        data = bytes(chance.choices(b"ab01x", k=40))
        if chance.random() < 0.5:
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice(KEYS) + data[at:]
        scan, out, has_key = KeyScan(SEARCHED), b"", False
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
    scan = KeyScan((SearchedKey("sk-1234"),))
    assert scan.receive(b"data: {}\n\n") == b"data: {}\n\n"
    assert scan.receive(b"risk-12") == b"ri"
    assert scan.receive(b"3") == b""
    assert scan.receive(b"5s") == b"sk-1235"
    assert scan.take_rest() == b"s"
    with pytest.raises(KeyFound):
        scan.receive(b"sk-1234")


def test_a_placeholder_is_not_searched() -> None:
    assert searched_keys(["sk-no-key-required", "lm-studio", "sk-1234"]) == ()


ALPHABETS = {
    "hex": "0123456789abcdef",
    "base64": string.ascii_letters + string.digits + "+/=",
    "url": string.ascii_letters + string.digits + "-_.~",
    "printable": string.ascii_letters + string.digits + string.punctuation,
    "latin": string.ascii_letters + string.digits + '/+="\\äöüß',
}
UNRESERVED = ("", "/", "/+", "/+=:", "~/-_.")


def of_go(text: str) -> str:
    """As the JSON of Go: without what HTML has a meaning for."""
    return json.dumps(text)[1:-1].translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&"})


NAMES = {f"&{name};": chr(number) for number, name in codepoint2name.items()}
ENTITIES = {**{c: name for name, c in NAMES.items()}, "/": "&sol;", "+": "&plus;", "=": "&equals;"}


def written(key: str, chance: Random) -> str:
    """The key as a service may repeat it."""
    way = chance.randrange(14)
    match way:
        case 0:
            return key
        case 1 | 2 | 3:
            code = quote(key, safe=chance.choice(UNRESERVED))
            code = re.sub("%..", lambda code: code[0].lower(), code) if way == 2 else code
            return quote(code, safe="") if way == 3 else code
        case 4:
            return json.dumps(key)[1:-1].replace("/", "\\/")
        case 5:
            return json.dumps(json.dumps(key, ensure_ascii=False), ensure_ascii=False)
        case 6:
            return html.escape(key)
        case 7:
            escape = chance.choice(("\\u{:04x}", "\\u{:04X}", "\\x{:02x}", "&#0{};", "&#x{:04X};"))
            return "".join(escape.format(ord(c)) if chance.random() < 0.4 else c for c in key)
        case 8:
            return of_go(chance.choice((html.escape, quote))(key))
        case 9:
            return html.escape(chance.choice((of_go, html.escape, quote))(key))
        case 10:
            return quote(chance.choice((of_go, html.escape))(key), safe="")
        case 11:
            return "".join(ENTITIES.get(c, c) for c in key)
        case 12:
            return of_go(quote(key, safe="")).replace("%", "\\u0025")
        case _:
            codes = [c if chance.random() < 0.6 else quote(c, safe="") for c in key]
            return "".join(codes)


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.deep_but_first
def test_keys_of_every_alphabet_are_found_in_every_form(alphabet: str) -> None:
    for seed in range(400):
        chance = Random(f"{alphabet} {seed}")
        key = "".join(chance.choices(ALPHABETS[alphabet], k=chance.randrange(16, 48))) + "7"
        scan = KeyScan(searched_keys([key]))
        text = written(key, chance)
        before = "".join(chance.choices('ab{}":\\n%\\', k=chance.randrange(30)))
        encoding = chance.choice(("utf-8", "latin-1"))
        data = f"{before}{key[: chance.randrange(5)]} {text}&x=1".encode(encoding)
        out, has_key = b"", False
        while data and not has_key:
            step = chance.choice((1, 2, 7, 40, 1000))
            try:
                out += scan.receive(data[:step])
            except KeyFound:
                has_key = True
            data = data[step:]
        assert has_key, (seed, key, text)
        assert text[:16].encode(encoding) not in out, (seed, key, text)


def test_what_is_not_the_key_is_passed_on_unchanged_and_not_held_long() -> None:
    scan = KeyScan(searched_keys(["sk-0123456789abcdef"]))
    for data in (b'{"a":"\\n100%\\u0073k-"}\n\n', b"\\" * 5_000 + b"\n", b"%73%6b%2d\n", b"sk-0\n"):
        assert scan.receive(data) == data
        assert scan.held == b""
