"""Pages of items and of raw events, and complete items. Blocking; every read is bounded.

``items`` says which item belongs to which page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from corral import events
from corral._core.terminal_text import json_line, plain
from corral._runs.log_windows import PAGE, Line, LogFile
from corral._view.items import (
    GROUP_PAGES,
    ItemBuilder,
    UnreadableLine,
    as_json,
    decode,
)
from corral._view.records import Item, ItemBody, ItemPage, RawEvent, RawPage
from corral._view.safe_text import MAX_TEXT, render
from corral.errors import ConfigError
from corral.events import Event

RESULT_PAGES = 32
"""Following pages on which the result of a tool call is looked for."""
MAX_RAW = 20_000
"""Characters of a raw event in a list."""
MAX_BODY = 1_000_000
"""Characters of each part of a complete item."""
BODY_BYTES = 8 * 1024 * 1024
"""Bytes that are searched for the parts of one item."""
SEARCHED_PAGES = 256
"""Pages that one search request reads."""
MAX_HITS = 200
_CLOSERS = (b'{"type":"tool_result"', b'{"type":"permission_decision"', b'{"type":"tool_output"')
_OPENERS = (b'{"type":"tool_use"', b'{"type":"permission_request"')
_DELTAS = events.Text | events.Thinking
_BREAKS = events.ToolUse | events.PermissionRequest | events.Init | events.Done
Found: TypeAlias = tuple[int, Event | UnreadableLine]
"""An event and its offset."""


def item_page(log: LogFile, number: int) -> ItemPage:
    """The items of a page; -1 is the last. A page beyond the end is empty."""
    if number < 0:
        number = max(0, log.pages - 1)
    start, end = number * PAGE, (number + 1) * PAGE
    lines = log.page(number)
    found = [(line.offset, decode(line)) for line in lines]
    # Its messages may begin on the pages of the group before it.
    builder = builder_from(log, number - number % GROUP_PAGES, number)
    skipped = _earlier_results(log, number, found)
    for offset, event in found:
        if offset not in skipped:
            builder.add(offset, event)
    _collect_after(log, number, builder)
    items = [item for item in builder.take_changed(start) if item.key < end]
    last = start
    if lines:
        last = min(log.size, end) if lines[-1].is_cut else lines[-1].end
    return ItemPage(
        page=number,
        pages=log.pages,
        first_byte=start,
        last_byte=last,
        page_bytes=PAGE,
        items=items,
    )


def builder_from(log: LogFile, first: int, number: int) -> ItemBuilder:
    """A builder that has read the pages from ``first`` to the one before ``number``."""
    builder = ItemBuilder()
    for line in log.lines(first * PAGE, number * PAGE):
        builder.add(line.offset, decode(line))
    return builder


def _earlier_results(log: LogFile, number: int, found: list[Found]) -> set[int]:
    """The offsets of results and decisions whose call or request is on a page before."""
    opened = {_pair_name(event, opens=True) for _, event in found}
    closing = {
        offset: key
        for offset, event in found
        if (key := _pair_name(event, opens=False)) is not None and key not in opened
    }
    if not closing or not number:
        return set()
    found_keys: set[str | None] = set()
    wanted: set[str | None] = {*closing.values()}
    for page in range(number - 1, max(-1, number - RESULT_PAGES - 1), -1):
        for line in log.page(page):
            if line.data.startswith(_OPENERS):
                found_keys |= wanted & {_pair_name(decode(line), opens=True)}
        if found_keys == wanted:
            break
    return {offset for offset, key in closing.items() if key in found_keys}


def _pair_name(event: Event | UnreadableLine, *, opens: bool) -> str | None:
    """What a call and its result, or a request and its decision, are recognized by; None for an
    event that does not open, or close, such a pair."""
    match event:
        case events.ToolUse() | events.ToolResult():
            name, is_opener = f"call {event.call_id}", isinstance(event, events.ToolUse)
        case events.PermissionRequest() | events.PermissionDecision():
            name = f"request {event.request_id}"
            is_opener = isinstance(event, events.PermissionRequest)
        case _:
            return None
    return name if is_opener == opens else None


def _collect_after(log: LogFile, number: int, builder: ItemBuilder) -> None:
    """Add to the items of a page what the following pages have of them."""
    for page in range(number + 1, number - number % GROUP_PAGES + GROUP_PAGES):
        if not builder.has_message:
            break
        for line in log.page(page):
            if not builder.add_to_message(line.offset, decode(line)):
                break
    for page in range(number + 1, number + 1 + RESULT_PAGES):
        if not (open_ids := builder.open_ids(number * PAGE)):
            return
        for line in log.page(page):
            if line.data.startswith(_CLOSERS):
                event = decode(line)
                if {getattr(event, name, None) for name in ("call_id", "request_id")} & open_ids:
                    builder.add(line.offset, event)


def raw_page(log: LogFile, number: int, query: str | None) -> RawPage:
    """The events of a page as they are stored. With a query, those that contain it, from this page
    on; ``next`` is where the search goes on."""
    if number < 0:
        number = max(0, log.pages - 1)
    if not query:
        found = [_raw(line) for line in log.page(number)]
        return RawPage(events=found, page=number, pages=log.pages)
    wanted = query.lower().encode()
    hits: list[RawEvent] = []
    end = min(log.pages, number + SEARCHED_PAGES)
    while number < end and len(hits) < MAX_HITS:
        hits += [_raw(line) for line in log.page(number) if wanted in line.data.lower()]
        number += 1
    following = number if number < log.pages else None
    return RawPage(events=hits, page=number - 1, pages=log.pages, next=following)


def _raw(line: Line) -> RawEvent:
    text = line.data[: MAX_RAW * 4].decode("utf-8", "replace")
    is_cut = line.is_cut or len(text) > MAX_RAW or len(line.data) > MAX_RAW * 4
    return RawEvent(offset=line.offset, line=json_line(text[:MAX_RAW]), truncated=is_cut)


def item_body(log: LogFile, key: int) -> ItemBody:
    """The complete item that begins at this byte. Raises ``ConfigError`` if none does."""
    line = log.line_at(key)
    if line is None:
        raise ConfigError(f"no event begins at byte {key}")
    first = decode(line)
    builder = ItemBuilder()
    builder.add(key, first)
    builder.take_changed()
    item = builder.items.get(key) or Item(key=key, kind="vendor")
    body = ItemBody(item=item)
    match first:
        case events.ToolUse():
            _fill_tool(body, first, _after(log, line))
        case events.Text() | events.Thinking():
            text = "".join(_deltas(first, _after(log, line)))
            _set(body, "text", text)
            if isinstance(first, events.Text):
                body.html = render(text, 10 * MAX_TEXT)
        case events.Vendor(name="prompt", data=str(data)):
            _set(body, "text", data)
            body.html = render(data, 10 * MAX_TEXT)
        case events.ToolResult():
            _set(body, "output", first.output or "")
            _set(body, "error", first.error or "")
        case events.PermissionRequest():
            _set(body, "input", as_json(first.input))
        case UnreadableLine():
            _set(body, "text", first.text)
        case _:
            _set(body, "text", line.data.decode("utf-8", "replace"))
    return body


def _after(log: LogFile, line: Line) -> Iterator[Event | UnreadableLine]:
    """The events after a line, within bounds."""
    start = line.offset + 1
    end = min(log.size, start + BODY_BYTES)
    while start < end:
        for each in log.lines(start, min(end, start + 4 * PAGE)):
            yield decode(each)
        start += 4 * PAGE


def _fill_tool(
    body: ItemBody, call: events.ToolUse, following: Iterator[Event | UnreadableLine]
) -> None:
    _set(body, "input", as_json(call.input))
    pieces: list[str] = []
    for event in following:
        if isinstance(event, events.ToolOutput) and event.call_id == call.call_id:
            pieces.append(event.delta)
        elif isinstance(event, events.ToolResult) and event.call_id == call.call_id:
            _set(body, "output", event.output if event.output else "".join(pieces))
            _set(body, "error", event.error or "")
            if body.item.tool is not None:
                body.item.tool.status = event.status
                body.item.tool.duration_ms = event.duration_ms
            return
    _set(body, "output", "".join(pieces))


def _deltas(
    first: events.Text | events.Thinking, following: Iterator[Event | UnreadableLine]
) -> Iterator[str]:
    """The deltas of one message."""
    yield first.delta
    size = len(first.delta)
    for event in following:
        if isinstance(event, UnreadableLine) or event.parent != first.parent:
            continue
        if isinstance(event, _DELTAS):
            ids = {event.message_id, first.message_id} - {None}
            if not isinstance(event, type(first)) or len(ids) > 1 or size > MAX_BODY:
                return
            size += len(event.delta)
            yield event.delta
        elif isinstance(event, _BREAKS):
            return


def _set(body: ItemBody, name: str, text: str) -> None:
    if text:
        body.truncated = body.truncated or len(text) > MAX_BODY
        setattr(body, name, plain(text, MAX_BODY))
