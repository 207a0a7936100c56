"""What is read out of the lines of agents that speak stream-json: paths, words, changes, sums."""

from __future__ import annotations

import posixpath
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from corral.errors import MediaInvalid
from corral.events import Error, FileChange, Json
from corral.messages import Audio, Document, Image, Part, Text
from corral.protocol.notices import retrying
from corral.protocol.stream_json import frames
from corral.values import Cost, Usage


def changes(call_id: str, result: Any, cwd: str) -> Iterator[FileChange]:
    """The files that a tool says it wrote."""
    try:
        told = msgspec.convert(result, frames.Wrote)
    except msgspec.ValidationError:  # another tool's, or words
        return
    if told.file_path is not None and told.structured_patch is not None:
        lines = [line for hunk in told.structured_patch for line in hunk.lines]
        yield FileChange(
            posixpath.normpath(posixpath.join(cwd, told.file_path)),
            "created" if told.type == "create" else "modified",
            call_id=call_id,
            lines_added=sum(line.startswith("+") for line in lines) or None,
            lines_removed=sum(line.startswith("-") for line in lines) or None,
        )
    for file in told.bash_edit_diff.files if told.bash_edit_diff else ():
        whole = posixpath.normpath(posixpath.join(cwd, file.file_path))
        yield FileChange(whole, "created" if file.created else "modified", call_id=call_id)


def words(content: Any) -> str:
    """A text, or the texts among a list of blocks."""
    if isinstance(content, str):
        return content
    try:
        blocks = msgspec.convert(content, list[frames.Block])
    except msgspec.ValidationError:
        return ""
    return "\n".join(block.text for block in blocks if block.text)


def written(part: Part, media: frozenset[str]) -> Json:
    """What goes along with a prompt, as it is written. Raises ``MediaInvalid``."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if not isinstance(part, Image | Audio | Document) or not isinstance(part.source, bytes):
        raise TypeError(f"not a part of a prompt: {part!r}")
    kind = part.media_type
    if kind not in media:
        raise MediaInvalid(
            f"this agent takes no {kind or 'file of an unknown kind'} with a prompt",
            hint=f"It takes texts, and: {', '.join(sorted(media))}.",
        )
    data = b64encode(part.source).decode()
    source: Json = {"type": "base64", "media_type": kind, "data": data}
    return {"type": "image" if isinstance(part, Image) else "document", "source": source}


def tries_again(told: frames.SystemFrame) -> Error:
    try:
        beside = msgspec.convert(told.data or {}, frames.Retry)
    except msgspec.ValidationError:
        beside = frames.Retry()
    attempt, most = told.attempt or beside.attempt, told.max_retries or beside.max_retries
    delay = told.retry_delay_ms or beside.delay_ms
    what = f"{told.error_status or ''} {words(told.error) or beside.message}".strip()
    which = f"attempt {attempt}{f' of {most}' if most else ''}" if attempt else "an attempt"
    why, wait = f" ({what})" if what else "", f" in {delay / 1000:.1f} s" if delay else ""
    return retrying(f"{which} failed{why}: the agent tries again{wait}")


def bare(said: str) -> str:
    inner = said.strip().removeprefix("<tool_use_error>").removesuffix("</tool_use_error>")
    return inner.removeprefix("Error: ").strip()


def summed(before: frames.Spent | None, more: frames.Spent) -> frames.Spent:
    if before is None:
        return more

    def plus(name: str) -> Any:
        a, b = getattr(before, name), getattr(more, name)
        return b if a is None else a if b is None else a + b

    return frames.Spent(**{name: plus(name) for name in frames.Spent.__struct_fields__})


def summed_up(given: Any) -> Usage:
    """Nothing throughout is how *unknown* is written."""
    try:
        told = msgspec.convert(given, frames.Tokens)
    except msgspec.ValidationError:
        return Usage()
    if not told.input_tokens + told.output_tokens:
        return Usage()
    return Usage(
        input=told.input_tokens,
        output=told.output_tokens,
        cache_read=told.cache_read_input_tokens,
        coverage="complete",
    )


def tokens(spent: frames.Spent) -> Usage:
    read, written = spent.cache_read_input_tokens, spent.cache_creation_input_tokens
    return Usage(
        input=spent.input_tokens + read + written,
        output=spent.output_tokens,
        reasoning=spent.thinking_tokens,
        cache_read=read,
        cache_write=written,
        coverage="complete",
    )


def totals(spent: Mapping[str, frames.Spent]) -> tuple[Usage, Cost, str | None]:
    """Tokens, money, and the model that wrote most: a small one may work beside it."""
    if not spent:
        return Usage(), Cost(), None
    whole: frames.Spent | None = None
    for each in spent.values():
        whole = summed(whole, each)
    if whole is None:
        return Usage(), Cost(), None
    usage = tokens(whole)
    cost = Cost() if whole.cost_usd is None else Cost(whole.cost_usd, "reported")
    return usage, cost, max(spent, key=lambda name: spent[name].output_tokens)
