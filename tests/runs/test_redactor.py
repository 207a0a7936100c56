"""What an export redacts, and in which time."""

from __future__ import annotations

import json
import time

import pytest

from corral._runs.redactor import ExportRedactor

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLW9mLWl0"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\\nDEK-Info: AES-128\\nMIIEow==\\n-----END RSA PRIVATE KEY-----"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"it is {TOKEN}.", "it is [key redacted]."),
        (f"x-{TOKEN} y", "x-[key redacted] y"),
        (f"eyJ-{TOKEN}", "[key redacted]"),
        (f"word.{TOKEN}", "word.[key redacted]"),
        (f"{TOKEN},{TOKEN}", "[key redacted],[key redacted]"),
        (TOKEN.rpartition(".")[0], TOKEN.rpartition(".")[0]),
        (f"my{TOKEN}", f"my{TOKEN}"),
        ("eyJa.eyJb.c", "eyJa.eyJb.c"),
        (f"a {PEM} b", "a [key redacted] b"),
        (f"-----BEGIN PRIVATE KEY-----x{PEM} b", "-----BEGIN PRIVATE KEY-----x[key redacted] b"),
        (f"a.b.{TOKEN}.c", "a.b.[key redacted].c"),
        (f"{TOKEN}.{TOKEN}", "[key redacted].[key redacted]"),
        ("sk-0123456789abcdefg", "[key redacted]"),
        ("risk-0123456789abcdefg", "risk-0123456789abcdefg"),
        ("Bearer abcdefghijklmnopq", "Bearer [key redacted]"),
    ],
)
def test_keys_are_found_by_their_form(text: str, expected: str) -> None:
    assert ExportRedactor().clean_text(text) == expected


@pytest.mark.parametrize("before", ["\n", "\t", "\r\n", "\x1b[31m", "\x1b[m", "\x1b", "é", '"'])
@pytest.mark.parametrize("key", [TOKEN, "sk-0123456789abcdefg", "AKIA0123456789ABCDEF"])
def test_keys_are_found_in_json_that_is_not_decoded(before: str, key: str) -> None:
    line = json.dumps({"output": f"keys:{before}{key}{before}{key}"})
    cleaned = json.loads(ExportRedactor().clean_text(line))
    assert cleaned == {"output": f"keys:{before}[key redacted]{before}[key redacted]"}


@pytest.mark.parametrize(
    "unit",
    [
        "eyJ-",
        "eyJaaaaaaaaaaaa.",
        "eyJaaaaaaaaaaaa.eyJ-aaaaaaaaaa-",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----a-",
        "-----END PRIVATE KEY-----",
        "-----BEGIN " + "PRIVATE KEY " * 3,
        "sk-",
        "gh",
        "Bearer ",
        "a.",
        "-",
    ],
)
@pytest.mark.parametrize("start", ["", "eyJaaaaaaaaaaaa.", "-----BEGIN PRIVATE KEY-----"])
def test_the_time_grows_with_the_length_only(start: str, unit: str) -> None:
    """Eight times the text takes about eight times as long. If each part looked at all that comes
    after it, it would be 64 times."""
    redactor = ExportRedactor()

    def cpu_seconds(length: int) -> float:
        data = (start + unit * (length // len(unit))).encode()
        times: list[float] = []
        for _ in range(3):
            began = time.process_time()
            redactor.clean(data)
            times.append(time.process_time() - began)
        return min(times)

    assert cpu_seconds(80_000) < 24 * max(cpu_seconds(10_000), 0.0005)
