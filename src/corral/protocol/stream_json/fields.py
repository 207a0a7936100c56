"""Reads the fields of stream-json frames: text, file changes, usage; encodes attachments."""

from __future__ import annotations

import posixpath
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from corral.errors import MediaInvalid
from corral.events import Error, FileChange
from corral.messages import Audio, Document, Image, Part, Text
from corral.protocol.common_events import retrying
from corral.protocol.stream_json import frames
from corral.values import Cost, Json, Usage, as_object, as_text, convert_to

N = TypeVar("N", int, float)


def file_changes(call_id: str, result: Json, cwd: str) -> Iterator[FileChange]:
    """The files that a tool reports as written."""
    try:
        written = convert_to(result, frames.FileToolResult)
    except msgspec.ValidationError:  # the result of another tool, or text
        return
    if written.file_path is not None and written.structured_patch is not None:
        lines = [line for hunk in written.structured_patch for line in hunk.lines]
        yield FileChange(
            posixpath.normpath(posixpath.join(cwd, written.file_path)),
            "created" if written.type == "create" else "modified",
            call_id=call_id,
            lines_added=sum(line.startswith("+") for line in lines) or None,
            lines_removed=sum(line.startswith("-") for line in lines) or None,
        )
    for file in written.bash_edit_diff.files if written.bash_edit_diff else ():
        path = posixpath.normpath(posixpath.join(cwd, file.file_path))
        yield FileChange(path, "created" if file.created else "modified", call_id=call_id)


def content_text(content: Json) -> str:
    """The text of a string, or of the text blocks in a list."""
    if isinstance(content, str):
        return content
    try:
        blocks = convert_to(content, list[frames.Block])
    except msgspec.ValidationError:
        return ""
    return "\n".join(block.text for block in blocks if block.text)


def encode_part(part: Part, media: frozenset[str]) -> Json:
    """An attachment of a prompt as the program reads it. Raises ``MediaInvalid``."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if not isinstance(part, Image | Audio | Document) or not isinstance(part.source, bytes):
        raise TypeError(f"not a part of a prompt: {part!r}")
    kind = part.media_type
    if kind not in media:
        raise MediaInvalid(
            f"this agent accepts no {kind or 'file of unknown type'} with a prompt",
            hint=f"It accepts text and: {', '.join(sorted(media))}.",
        )
    data = b64encode(part.source).decode()
    source: Json = {"type": "base64", "media_type": kind, "data": data}
    return {"type": "image" if isinstance(part, Image) else "document", "source": source}


def retry_warning(frame: frames.SystemFrame) -> Error:
    """The warning for a failed model call that the agent repeats."""
    try:
        data = convert_to(frame.data or {}, frames.RetryData)
    except msgspec.ValidationError:
        data = frames.RetryData()
    attempt, limit = frame.attempt or data.attempt, frame.max_retries or data.max_retries
    delay = frame.retry_delay_ms or data.delay_ms
    cause = f"{frame.error_status or ''} {content_text(frame.error) or data.message}".strip()
    which = f"attempt {attempt}{f' of {limit}' if limit else ''}" if attempt else "an attempt"
    why, wait = f" ({cause})" if cause else "", f" in {delay / 1000:.1f} s" if delay else ""
    return retrying(f"{which} failed{why}: the agent tries again{wait}")


def error_kind(frame: frames.ResultFrame, api_error: str | None) -> str:
    """The agent's name for the failure of a turn; ``api_error`` is the last error of the API."""
    kind = api_error if frame.subtype == "success" else frame.subtype
    return kind or str(frame.api_error_status or "error")


def error_message(frame: frames.ResultFrame) -> str:
    """The agent's description of a failed turn; empty if it gives none."""
    message = as_text(as_object(frame.error).get("message"))
    return frame.result or "; ".join(frame.errors) or message


def strip_error_tags(text: str) -> str:
    """The error text of a tool without its tags and prefix."""
    inner = text.strip().removeprefix("<tool_use_error>").removesuffix("</tool_use_error>")
    return inner.removeprefix("Error: ").strip()


def add_model_usage(before: frames.ModelUsage | None, more: frames.ModelUsage) -> frames.ModelUsage:
    if before is None:
        return more

    return frames.ModelUsage(
        input_tokens=before.input_tokens + more.input_tokens,
        output_tokens=before.output_tokens + more.output_tokens,
        cache_read_input_tokens=before.cache_read_input_tokens + more.cache_read_input_tokens,
        cache_creation_input_tokens=(
            before.cache_creation_input_tokens + more.cache_creation_input_tokens
        ),
        thinking_tokens=_add_known(before.thinking_tokens, more.thinking_tokens),
        cost_usd=_add_known(before.cost_usd, more.cost_usd),
    )


def _add_known(one: N | None, other: N | None) -> N | None:
    """The sum of the numbers that are known; ``None`` if neither is."""
    return other if one is None else one if other is None else one + other


def session_usage(given: Json) -> Usage:
    """The usage of a session. All zeros means unknown."""
    try:
        sums = convert_to(given, frames.SessionTokens)
    except msgspec.ValidationError:
        return Usage()
    if not sums.input_tokens + sums.output_tokens:
        return Usage()
    return Usage(
        input=sums.input_tokens,
        output=sums.output_tokens,
        cache_read=sums.cache_read_input_tokens,
        coverage="complete",
    )


def to_usage(spent: frames.ModelUsage) -> Usage:
    read, written = spent.cache_read_input_tokens, spent.cache_creation_input_tokens
    return Usage(
        input=spent.input_tokens + read + written,
        output=spent.output_tokens,
        reasoning=spent.thinking_tokens,
        cache_read=read,
        cache_write=written,
        coverage="complete",
    )


def total_usage(spent: Mapping[str, frames.ModelUsage]) -> tuple[Usage, Cost, str | None]:
    """Usage, cost, and the model with most output: a small model may be used too."""
    if not spent:
        return Usage(), Cost(), None
    total: frames.ModelUsage | None = None
    for each in spent.values():
        total = add_model_usage(total, each)
    if total is None:
        return Usage(), Cost(), None
    usage = to_usage(total)
    cost = Cost() if total.cost_usd is None else Cost(total.cost_usd, "reported")
    return usage, cost, max(spent, key=lambda name: spent[name].output_tokens)
