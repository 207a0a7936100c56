"""Lines that are no frame as they stand: mended, or told as an event. Never dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from corral.events import Error, Json, Log, Unknown
from corral.wire.lines import SAMPLE, Oversized

LOG_LIMIT = 4096
"""Characters of a line that is not JSON; a megabyte of banner helps nobody."""
UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises, whatever the bytes."""

# Texts: re compiles them when first needed, which most runs never do.
_TERMINAL = r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])"
_SURROGATE = rb"\\u[dD][89a-fA-F]"

F = TypeVar("F")


def look_again(
    line: bytes, decode: Callable[[str], F], note: Callable[[Log | Error | Unknown], Any]
) -> F | None:
    """The frame behind the line, once mended; else ``None``, and what it was is noted."""
    text = re.sub(_TERMINAL, "", line.decode("utf-8", "replace")).strip("\ufeff \t\r\n")
    if not text:
        return None
    if text[0] not in "{[":
        note(Log(text[:LOG_LIMIT]))
        return None
    mended = _without_surrogates(text) if re.search(_SURROGATE, line) else text
    try:
        raw: Json = msgspec.json.decode(mended)
    except (msgspec.MsgspecError, RecursionError) as error:
        note(_malformed(str(error), text))
        return None
    try:
        return decode(mended)
    except msgspec.MsgspecError:
        note(Unknown(raw))
        return None


def oversized(line: Oversized, clean: Callable[[bytes], bytes] | None = None) -> Error:
    head = line.sample if clean is None else clean(line.sample)
    sample = head[:SAMPLE].decode("utf-8", "replace")
    return Error(
        code="oversized_line",
        message=f"a line of {line.size:,} bytes is over the limit and was dropped: {sample}",
        recoverable=True,
        phase="stream",
        facts={"sample": sample, "size": line.size},
    )


def _without_surrogates(text: str) -> str:
    """JSON whose strings hold half a character (JavaScript cuts them so), with U+FFFD there."""
    try:
        plain = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _malformed(message: str, text: str) -> Error:
    return Error(
        code="malformed_line",
        message=f"a line of the agent's output is not JSON: {message}: {text[:SAMPLE]}",
        recoverable=True,
        phase="stream",
        facts={"sample": text[:SAMPLE]},
    )
