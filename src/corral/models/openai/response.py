"""What the Responses API answers: its events, its items, its usage.

An answer is a list of items. A stream tells each in pieces and then whole
(``output_item.done``), and at its end all of them once more; what was told in
pieces is not told again, what was not is told then.
"""

from __future__ import annotations

import msgspec

from corral.errors import StreamBroken
from corral.events import Json
from corral.model_types import Reason
from corral.models.openai.errors import error_inside
from corral.models.spec import Provider, Translate, decoded
from corral.protocol.response_builder import ResponseBuilder
from corral.values import Usage

INCOMPLETE: dict[str, Reason] = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}
ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
BEGINS = frozenset({"response.created", "response.in_progress", "response.queued"})
SILENT = frozenset(
    {
        "keepalive",
        "response.content_part.added",
        "response.content_part.done",
        "response.function_call_arguments.done",
        "response.output_text.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.done",
        "response.reasoning_text.done",
        "response.refusal.done",
    }
)
"""They repeat what other events tell."""
THOUGHTS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
_READ = THOUGHTS | BEGINS | ENDS.keys()
_NONE = msgspec.Raw()


class _Text(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str = ""
    arguments: str | None = None
    content: list[_Text] | None = None
    summary: list[_Text] | None = None
    encrypted_content: str | None = None
    phase: str | None = None


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    error: Json = None
    incomplete_details: _Incomplete | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: str = ""
    output_index: int = -1
    item_id: str | None = None
    summary_index: int = 0
    content_index: int = 0
    item: msgspec.Raw = _NONE
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def translator(provider: Provider) -> Translate:
    return _Answer(provider).translate


def read(body: bytes, parts: ResponseBuilder, provider: Provider) -> Json:
    try:
        response = _decode_response(body)
    except _BROKEN as error:
        raise _broken(provider, body, error) from error
    _Answer(provider).end(response, parts, response.status)
    return decoded(body)


class _Answer:
    """One answer's state: what of it was told already."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._told: set[object] = set()
        """Places in the output whose content was told; -1 where a server numbers none."""
        self._begun: set[object] = set()
        self._thought: tuple[object, ...] = ()
        """Where the thoughts stand: between two places goes a blank line."""
        self._refused = False

    def translate(self, datas: list[bytes], parts: ResponseBuilder) -> None:
        for data in datas:
            try:
                event = _decode(data)
            except _BROKEN as error:
                self._odd(data, parts, error)
                continue
            if event.type == "response.output_text.delta":
                self._told.add(event.output_index)
                parts.add_text(event.delta)
            else:
                self._tell(event, data, parts)

    def _tell(self, event: _Event, data: bytes, parts: ResponseBuilder) -> None:
        kind, place = event.type, event.output_index
        if kind == "response.function_call_arguments.delta":
            key = place if place >= 0 else event.item_id
            if key in self._begun:  # else they come whole, with the name of the tool
                self._told.add(key)
                parts.add_arguments(key, event.delta)
        elif kind in THOUGHTS:
            self._think(event, parts)
        elif kind == "response.refusal.delta":
            self._told.add(place)
            self._refused = True
            parts.add_text(event.delta)
        elif kind == "response.output_item.added":
            self._item(event.item, place, parts, is_done=False)
        elif kind == "response.output_item.done":
            self._item(event.item, place, parts, is_done=True)
        elif kind in ENDS:
            response = event.response or _Response()
            self.end(response, parts, response.status or ENDS[kind])
        elif kind in BEGINS:
            if event.response is not None:
                parts.start(event.response.id, event.response.model)
        elif kind not in SILENT:
            self._unknown(kind, data, parts)

    def end(self, response: _Response, parts: ResponseBuilder, status: str | None) -> None:
        """The whole answer, after its pieces or without any."""
        if response.error is not None or status == "failed":
            raise error_inside(self._provider, response.error, parts.model)
        if response.id or response.model:
            parts.start(response.id, response.model)
        for place, raw in enumerate(response.output or ()):
            if place not in self._told and -1 not in self._told:
                self._item(raw, place, parts, is_done=True)
        if status == "completed":
            if self._refused:
                parts.set_finish("content_filter", "refusal")
            else:
                parts.set_finish("stop", status)
        elif status == "incomplete":
            details = response.incomplete_details
            why = details.reason if details else None
            parts.set_finish(INCOMPLETE.get(why or "", "other"), why or status)
        elif status == "cancelled":
            parts.set_finish("other", status)
        if response.usage is not None:
            parts.usage = _usage(response.usage)

    def _think(self, event: _Event, parts: ResponseBuilder) -> None:
        place = (event.output_index, event.type, event.summary_index, event.content_index)
        if self._thought and self._thought != place and self._thought[0] == event.output_index:
            parts.add_thinking("\n\n", event.item_id)
        self._thought = place
        self._told.add(event.output_index)
        parts.add_thinking(event.delta, event.item_id)

    def _item(self, raw: msgspec.Raw, place: int, parts: ResponseBuilder, *, is_done: bool) -> None:
        try:
            item = _decode_item(raw)
        except _BROKEN:
            item = _Item("unknown")  # of a kind whose fields are of other types
        if item.type == "function_call":
            self._call(item, place, parts, is_done=is_done)
        elif not is_done:
            pass  # empty still, or half: it comes whole
        elif item.type == "message":
            self._message(item, place not in self._told, parts)
        elif item.type == "reasoning":
            self._reasoning(item, place not in self._told, parts)
        else:
            data = decoded(bytes(raw))
            named = data.get("type") if isinstance(data, dict) else None
            parts.add_provider_event(str(named or item.type), data)
        if is_done:
            self._told.add(place)

    def _call(self, item: _Item, place: int, parts: ResponseBuilder, *, is_done: bool) -> None:
        key = place if place >= 0 else item.id
        if key not in self._begun:
            self._begun.add(key)
            parts.start_call(key, item.name, item.call_id, item_id=item.id)
        if is_done:
            if key not in self._told:
                parts.add_arguments(key, item.arguments or "")
            parts.end_call(key)
            self._told.add(key)

    def _message(self, item: _Item, is_new: bool, parts: ResponseBuilder) -> None:
        texts = [piece.text or piece.refusal or "" for piece in item.content or ()]
        self._refused |= any(piece.type == "refusal" for piece in item.content or ())
        if is_new:
            for text in filter(None, texts):
                parts.add_text(text)
        if item.phase and any(texts):
            parts.set_signature(item.phase)  # the vendor wants it back
        else:
            parts.end_part()

    def _reasoning(self, item: _Item, is_new: bool, parts: ResponseBuilder) -> None:
        pieces = (*(item.summary or ()), *(item.content or ()))
        text = "\n\n".join(piece.text for piece in pieces if piece.text)
        if is_new and text:
            parts.add_thinking(text, item.id)
        if item.encrypted_content:
            parts.add_thinking("", item.id)
            parts.set_signature(item.encrypted_content, "thinking")
        else:
            parts.end_part()

    def _unknown(self, kind: str, data: bytes, parts: ResponseBuilder) -> None:
        """Events of tools and media that have no unified form; errors, in either of two shapes."""
        whole = decoded(data)
        if isinstance(whole, dict) and (kind == "error" or (not kind and whole.get("error"))):
            raise error_inside(self._provider, whole.get("error") or whole, parts.model)
        parts.add_provider_event(kind or "unknown", whole)

    def _odd(self, data: bytes, parts: ResponseBuilder, error: Exception) -> None:
        if data.strip() == b"[DONE]":
            return  # some servers end every stream with it
        match decoded(data):
            case {"type": str(kind)} as whole if not _is_read(kind):
                parts.add_provider_event(kind, whole)
            case {"error": dict() | str() as told}:
                raise error_inside(self._provider, told, parts.model)
            case _:
                raise _broken(self._provider, data, error) from error


def _is_read(kind: str) -> bool:
    return kind in _READ or kind.startswith(
        ("response.output_text.delta", "response.refusal.delta", "response.output_item.",
         "response.function_call_arguments.delta")
    )  # fmt: skip


def _broken(provider: Provider, data: bytes, error: Exception) -> StreamBroken:
    sample = data[:200].decode("utf-8", "replace")
    return StreamBroken(
        f"{provider.title} sent what is no answer of its API: {error}", frame=sample
    )


def _usage(usage: _Usage) -> Usage:
    """Input holds what the cache served, output the thoughts."""
    read, written = usage.input_tokens, usage.output_tokens
    went_in, came_out = usage.input_tokens_details, usage.output_tokens_details
    return Usage(
        input=read,
        output=written,
        reasoning=came_out.reasoning_tokens if came_out else None,
        cache_read=went_in.cached_tokens if went_in else None,
        cache_write=went_in.cache_write_tokens if went_in else None,
        coverage="partial" if read is None or written is None else "complete",
    )
