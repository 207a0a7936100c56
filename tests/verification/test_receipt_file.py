"""Files that are read as receipts."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._verification.receipt_file import read_receipt
from corral.errors import CallerError


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "is not a receipt"),
        ("[]", "is not a receipt"),
        ("{}", "is not a receipt"),
        ('{"format": 1, "verdict": "verified"}', "is not a receipt"),
        ('{"format": 99, "verdict": "verified"}', "format 99"),
        ("[" * 100_000, "is not a receipt"),
    ],
)
def test_a_file_that_is_no_receipt_is_an_error(
    tmp_path: Path, text: str, expected_text: str
) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(CallerError, match=expected_text):
        read_receipt(tmp_path / "r.json")
