"""Receipts in files: read, and checked before anything in them is believed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from corral._core import stored_formats
from corral._core.nesting import decode_json
from corral._core.terminal_text import one_line
from corral._system import fs
from corral.errors import ConfigError
from corral.receipt import Receipt, receipt_hash
from corral.values import convert_to, is_object

LARGEST = 64 * 1024 * 1024
"""Bytes of a receipt that is read."""


class StoredReceipt(msgspec.Struct, frozen=True):
    path: Path
    receipt: Receipt
    is_edited: bool
    """Its hash is not that of its content."""
    is_own: bool = False
    """It is what corral has stored of a run on this machine: its fields are no claims."""


def read_receipt(path: Path) -> StoredReceipt:
    """Raises ``ConfigError`` for a file that is no receipt, and ``FormatUnsupported`` for one of a
    newer corral."""
    if not fs.is_file(path):
        raise ConfigError(f"there is no receipt {path}")
    data = fs.read_small(path, LARGEST)
    if data is None:
        raise ConfigError(f"the receipt {path} cannot be read, or is over {LARGEST:,} bytes")
    try:
        fields = decode_json(data)
        if not is_object(fields) or "verdict" not in fields:
            raise ConfigError(f"{path} is not a receipt")
        stored_formats.check_json("the receipt", data, "format", stored_formats.RECEIPT)
        is_edited = fields.get("hash") != receipt_hash(fields)
        return StoredReceipt(path, convert_to(fields, Receipt), is_edited=is_edited)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # The error may quote a stranger's text.
        raise ConfigError(f"{path} is not a receipt: {one_line(str(error))}") from error
