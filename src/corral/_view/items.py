"""Events to items: the pieces of a conversation that a page shows.

Theory of operation. ``ItemBuilder`` takes the events of a log in order and makes items: the deltas
of a message become one item, a tool call and its result another. The key of an item is the byte
offset of its first event.

A page of a log (``log_pages``) is stateless: it is made from its own lines, and from a bounded
number of lines before and after it. An item belongs to the page of its first event. For this to
give the same items wherever the builder began to read, a message is divided by fixed rules:

- Pages come in groups of ``GROUP_PAGES``. A message goes on in another item (``continued``) where
  a group begins, and after ``MAX_TEXT`` characters.
- The result of a tool call and the decision on a permission become part of the call's item if they
  are at most ``RESULT_PAGES`` pages after it. Others become items of their own.

So a builder that begins where a group begins divides the messages on its pages as one that read the
whole log. A stream (``stream``) has one builder for as long as it is open: an item
that changes is sent again with the same key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import asdict

from corral import events
from corral._core.receipt_text import receipt_markdown
from corral._core.terminal_text import plain
from corral._protocol.acp.frames import PASSED_THROUGH
from corral._runs.log_windows import PAGE, Line
from corral._view.records import (
    Item,
    ItemKind,
    PermissionInfo,
    PlanStep,
    Tokens,
    ToolInfo,
)
from corral._view.safe_text import MAX_TEXT, render
from corral.events import VERSION, Event
from corral.values import Cost, Json, Usage, as_object, as_text

GROUP_PAGES = 8
"""Pages of a group: an item of a message ends with its group."""
MAX_PREVIEW = 400
"""Characters of a tool's output in its item."""
MAX_INPUT = 4_000
"""Characters of the input of a permission request."""
MAX_LOG = 4_000
"""Characters of a log line, an error or the data of a vendor's event."""
MAX_BODY = 1_000_000
"""Characters of each part of a complete item."""
MAX_STEPS = 200
"""Steps of a plan."""
_TARGETS = ("command", "cmd", "file_path", "path", "absolute_path", "pattern", "url", "query")
_EXIT = re.compile(r"exit(?:ed with)? (?:code|status):? (-?\d+)", re.IGNORECASE)
_TYPE = re.compile(rb'\{"type":"(\w{1,40})"')
_CALL = re.compile(rb'"call_id":"([^"\\]{1,200})"')


class UnreadableLine(msgspec.Struct, frozen=True):
    """A line that is not an event of this version."""

    text: str
    reason: str


def decode(line: Line) -> Event | UnreadableLine:
    """The event of a line. Never raises."""
    if line.is_cut:
        return _long_line(line)
    try:
        return events.from_json(line.data)
    except msgspec.MsgspecError:
        text = line.data[:MAX_LOG].decode("utf-8", "replace")
        kind = _TYPE.match(line.data)
        if kind:
            reason = f"an event of another version of corral: {kind[1].decode()}"
        else:
            reason = "a line that is not an event"
        return UnreadableLine(text, reason)


def _long_line(line: Line) -> Event | UnreadableLine:
    """What is known of an event that is too long to read."""
    kind, call = _TYPE.match(line.data), _CALL.search(line.data)
    reason = "this event is too long to show"
    if kind and call and kind[1] == b"tool_result":
        return events.ToolResult(call[1].decode(), "success", output=f"({reason})")
    if kind and call and kind[1] == b"tool_use":
        return events.ToolUse(call[1].decode(), "tool", title=f"({reason})")
    return UnreadableLine(line.data.decode("utf-8", "replace"), reason)


class _OpenMessage:
    """A message of which deltas may still come."""

    def __init__(self, item: Item, message_id: str | None) -> None:
        self.item = item
        self.message_id = message_id
        self.pieces: list[str] = []
        self.size = 0

    def fits(self, kind: ItemKind, message_id: str | None) -> bool:
        """Whether a delta belongs to this message."""
        return self.item.kind == kind and (
            message_id is None or self.message_id is None or message_id == self.message_id
        )

    def is_full(self, offset: int) -> bool:
        """Whether a delta at this byte goes into another item."""
        group = GROUP_PAGES * PAGE
        return self.size >= MAX_TEXT or offset // group != self.item.key // group

    def add(self, delta: str) -> None:
        self.pieces.append(delta)
        self.size += len(delta)

    def write(self) -> None:
        """Put the text so far into the item."""
        text = "".join(self.pieces)
        self.item.more = self.size > MAX_TEXT  # one delta may be longer
        if self.item.kind == "thinking":
            self.item.text = plain(text, MAX_TEXT)
        else:
            self.item.html = render(text)


class ItemBuilder:
    """Makes items of events."""

    def __init__(self) -> None:
        self.items: dict[int, Item] = {}
        self._changed: dict[int, Item] = {}
        self._messages: dict[str | None, _OpenMessage] = {}
        """Parent -> its message that is being written."""
        self._unwritten: dict[int, _OpenMessage] = {}
        self._tools: dict[str, tuple[Item, ToolInfo]] = {}
        self._permissions: dict[str, tuple[Item, PermissionInfo]] = {}

    def add(self, offset: int, event: Event | UnreadableLine) -> None:
        """Take the next event, which begins at this byte of its log."""
        match event:
            case events.Text() | events.Thinking():
                self._add_delta(offset, event)
            case events.ToolUse():
                self._messages.pop(event.parent, None)
                # What the call is about.
                arguments = as_object(event.input)
                named = (as_text(arguments.get(name)) for name in _TARGETS)
                target = event.paths[0] if event.paths else next(filter(None, named), "")
                tool = ToolInfo(
                    call_id=event.call_id,
                    name=plain(event.name, 200),
                    kind=event.kind,
                    title=_line(event.title or event.name),
                    target=_line(target),
                    has_more=event.input is not None,
                )
                item = Item(key=offset, seq=event.seq, ts=event.ts, kind="tool", tool=tool)
                self._tools[event.call_id] = self._put(item, event.parent), tool
            case events.ToolOutput() | events.ToolResult():
                self._add_result(offset, event)
            case events.PermissionRequest():
                self._messages.pop(event.parent, None)
                asked = PermissionInfo(
                    request_id=event.request_id,
                    title=_line(event.title or event.kind),
                    input=plain(as_json(event.input), MAX_INPUT),
                    call_id=event.call_id,
                    pending=True,
                )
                item = Item(key=offset, seq=event.seq, ts=event.ts, kind="permission")
                item.permission = asked
                self._permissions[event.request_id] = self._put(item, event.parent), asked
            case events.PermissionDecision():
                self._add_decision(offset, event)
            case UnreadableLine():
                text = f"{event.reason}: {event.text}"
                self._put(Item(key=offset, kind="vendor", text=plain(text, MAX_LOG)))
            case _:
                self._add_simple(offset, event)

    def _message_of(self, event: events.Text | events.Thinking) -> _OpenMessage | None:
        message = self._messages.get(event.parent)
        kind: ItemKind = "text" if isinstance(event, events.Text) else "thinking"
        return message if message and message.fits(kind, event.message_id) else None

    @property
    def has_message(self) -> bool:
        """Whether a message may still go on."""
        return bool(self._messages)

    def add_to_message(self, offset: int, event: Event | UnreadableLine) -> bool:
        """Take only what belongs to an item that is already there. False once all have ended."""
        match event:
            case events.Text() | events.Thinking():
                message = self._message_of(event)
                if message is not None and not message.is_full(offset):
                    self._add_delta(offset, event)
                else:
                    self._messages.pop(event.parent, None)
            case events.ToolUse() | events.PermissionRequest():
                self._messages.pop(event.parent, None)
            case events.Init() | events.Done() | events.Vendor(name="prompt"):
                self._messages.clear()
            case _:
                pass
        return self.has_message

    def take_changed(self, start: int = 0) -> list[Item]:
        """The items from this byte on that are new or have changed since the last call, in
        order."""
        for message in self._unwritten.values():
            if message.item.key >= start:
                message.write()
        self._unwritten.clear()
        changed, self._changed = self._changed, {}
        return [changed[key] for key in sorted(changed) if key >= start]

    def open_ids(self, start: int) -> set[str]:
        """The ids of tool calls without a result, and of permission requests without a decision,
        that begin at this byte or after it."""
        calls = ((id, item.key, tool.status is None) for id, (item, tool) in self._tools.items())
        asked = ((id, item.key, info.pending) for id, (item, info) in self._permissions.items())
        return {id for id, key, is_open in (*calls, *asked) if is_open and key >= start}

    def _put(self, item: Item, parent: str | None = None) -> Item:
        item.parent = parent
        self.items[item.key] = item
        self._changed[item.key] = item
        if parent is not None and parent in self._tools:
            above, _ = self._tools[parent]
            above.children += 1
            self._changed[above.key] = above
        return item

    def _add_delta(self, offset: int, event: events.Text | events.Thinking) -> None:
        kind: ItemKind = "text" if isinstance(event, events.Text) else "thinking"
        message = self._message_of(event)
        if message is None or message.is_full(offset):
            item = Item(key=offset, seq=event.seq, ts=event.ts, kind=kind)
            item.continued = message is not None
            message = _OpenMessage(self._put(item, event.parent), event.message_id)
            self._messages[event.parent] = message
        message.add(event.delta)
        self._unwritten[message.item.key] = message
        self._changed[message.item.key] = message.item

    def _add_result(self, offset: int, event: events.ToolOutput | events.ToolResult) -> None:
        if event.call_id in self._tools:
            item, tool = self._tools[event.call_id]
        elif isinstance(event, events.ToolOutput):
            return  # of a call on an earlier page
        else:
            tool = ToolInfo(call_id=event.call_id, name=plain(event.name or "tool", 200))
            tool.title = tool.name
            item = Item(key=offset, seq=event.seq, ts=event.ts, kind="tool", tool=tool)
            self._put(item, event.parent)
        self._changed[item.key] = item
        if isinstance(event, events.ToolOutput):
            tool.preview = plain(tool.preview + event.delta, MAX_PREVIEW)
        else:
            tool.status, tool.duration_ms = event.status, event.duration_ms
            text = event.error or event.output or ""
            if text:
                tool.preview = plain(text, MAX_PREVIEW)
            tool.has_more = tool.has_more or len(text) > MAX_PREVIEW
            found = _EXIT.search(event.error or "")
            tool.exit = int(found[1]) if found else None

    def _add_decision(self, offset: int, event: events.PermissionDecision) -> None:
        if event.request_id in self._permissions:
            item, info = self._permissions[event.request_id]
        else:
            info = PermissionInfo(request_id=event.request_id, call_id=event.call_id)
            item = Item(key=offset, seq=event.seq, ts=event.ts, kind="permission", permission=info)
            self._put(item, event.parent)
        info.decision, info.by, info.pending = event.decision, event.by, False
        info.rule = None if event.rule is None else plain(event.rule, 500)
        self._changed[item.key] = item

    def _add_simple(self, offset: int, event: Event) -> None:
        """An event that is an item by itself."""
        item = _simple(offset, event)
        if item is None:
            return
        if item.kind in ("init", "prompt", "done"):
            self._messages.clear()
        last = next(reversed(self.items.values()), None)
        if item.kind == "usage" and last is not None and last.kind == "usage":
            last.usage, last.cost_usd, last.ts = item.usage, item.cost_usd, item.ts
            self._changed[last.key] = last
            return
        self._put(item, event.parent)


def _fill_end(item: Item, event: events.Done) -> None:
    """The end of a turn, with the evidence of ``verify``."""
    item.kind, item.status = "done", event.status
    item.usage, item.cost_usd = tokens(event.usage), event.cost.usd
    parts = [f"{event.duration_ms / 1000:.1f} s"]
    if event.stop_reason:
        parts.append(plain(event.stop_reason, 200))
    if event.error is not None:
        parts.append(plain(event.error.message, MAX_LOG))
    item.text = " · ".join(parts)
    if event.receipt is not None:
        item.html = render(receipt_markdown(event.receipt))


def _simple(offset: int, event: Event) -> Item | None:
    item = Item(key=offset, seq=event.seq, ts=event.ts, kind="vendor")
    match event:
        case events.Vendor(name="prompt", data=str(data)):
            item.kind, item.html, item.more = "prompt", render(data), len(data) > MAX_TEXT
        case events.Vendor(name=name) if name == "run_facts" or name in PASSED_THROUGH:
            return None  # not a part of the conversation
        case events.Init():
            item.kind, item.text = "init", _init_text(event)
        case events.Plan():
            item.kind, item.plan = "plan", plan_steps(event)
        case events.FileChange():
            counts = ""
            if event.lines_added is not None or event.lines_removed is not None:
                counts = f" +{event.lines_added or 0} -{event.lines_removed or 0}"
            item.kind, item.status = "file", event.kind
            item.text = plain(event.path, 1_000) + counts
        case events.UsageReport():
            item.kind, item.usage = "usage", tokens(event.usage)
            item.cost_usd = event.cost.usd if event.cost else None
        case events.Done():
            _fill_end(item, event)
        case _:
            return _message_item(item, event)
    return item


def _message_item(item: Item, event: Event) -> Item | None:
    """An event that is shown as a plain text."""
    match event:
        case events.Error():
            item.kind, item.status = "error", event.code
            text = f"{event.message}\n{event.hint}" if event.hint else event.message
        case events.Log():
            item.kind, item.status, text = "log", event.level, event.text
        case events.AgentQuestion() | events.QuestionAnswer():
            item.kind, text = "log", _question_text(event)
        case events.Vendor():
            text = f"{event.name} {as_json(event.data)}"
        case events.Unknown():
            text = as_json(event.frame)
        case _:
            return None
    item.text, item.more = plain(text, MAX_LOG), len(text) > MAX_LOG
    return item


def _question_text(event: events.AgentQuestion | events.QuestionAnswer) -> str:
    if isinstance(event, events.AgentQuestion):
        from corral._core.question_replies import text_of

        return f"The agent asks: {text_of(event)}"
    if event.outcome != "answered":
        return f"No answer ({event.outcome.replace('_', ' ')}): {event.reason or ''}"
    values = [as_json(value) for value in event.answers.values()]
    return f"Answered: {', '.join(values) or 'yes'}"


def _init_text(event: events.Init) -> str:
    name = " ".join(filter(None, (event.agent, event.agent_version)))
    parts = [name, event.model or "", event.cwd or ""]
    if event.version > VERSION:
        parts.append(f"written by a newer version of corral (log version {event.version})")
    return plain(" · ".join(part for part in parts if part), MAX_LOG)


def plan_steps(event: events.Plan) -> list[PlanStep]:
    """The steps of a plan, safe to show."""
    return [
        PlanStep(content=_line(each.content), status=each.status, priority=each.priority)
        for each in event.entries[:MAX_STEPS]
    ]


def _line(text: str) -> str:
    return " ".join(plain(text, 400).split())[:300]


def as_json(value: Json) -> str:
    """Decoded JSON as text for people; a text stays as it is."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, indent=1, ensure_ascii=False)


def tokens(usage: Usage) -> Tokens:
    """Token counts as the API has them."""
    return Tokens(**asdict(usage))


def total_cost(costs: Iterable[Cost]) -> tuple[float | None, str]:
    """The sum of costs, and its source."""
    known = [cost for cost in costs if cost.usd is not None]
    if not known:
        return None, "unknown"
    sources = {cost.source for cost in known}
    source = "estimated" if "estimated" in sources else "mixed"
    return sum(cost.usd or 0.0 for cost in known), sources.pop() if len(sources) == 1 else source
