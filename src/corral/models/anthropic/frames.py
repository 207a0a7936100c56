"""The events of Anthropic's stream and its whole answer, as much of them as is read.

Tagged unions: a tenth faster than one struct with every field, and what is new to us
shows at once. Everything else may change without notice and is passed on untyped.
"""

from __future__ import annotations

import msgspec

from corral.events import Json


class Details(msgspec.Struct):
    thinking_tokens: int | None = None


class Counts(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: Details | None = None


class Refusal(msgspec.Struct):
    explanation: str | None = None


class Block(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str | None = None
    data: str = ""
    id: str | None = None
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"")


class Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: list[Block] = []
    stop_reason: str | None = None
    stop_details: Refusal | None = None
    usage: Counts | None = None


class Fault(msgspec.Struct):
    type: str = ""
    message: str = ""
    details: Json = None


class TextDelta(msgspec.Struct, tag="text_delta", gc=False):
    text: str


class ThinkingDelta(msgspec.Struct, tag="thinking_delta", gc=False):
    thinking: str


class InputDelta(msgspec.Struct, tag="input_json_delta", gc=False):
    partial_json: str


class SignatureDelta(msgspec.Struct, tag="signature_delta", gc=False):
    signature: str


class Delta(msgspec.Struct, tag="content_block_delta", gc=False):
    delta: TextDelta | ThinkingDelta | InputDelta | SignatureDelta
    index: int = 0


class Begin(msgspec.Struct, tag="content_block_start"):
    content_block: Block
    index: int = 0


class End(msgspec.Struct, tag="content_block_stop"):
    index: int = 0


class Start(msgspec.Struct, tag="message_start"):
    message: Message


class Change(msgspec.Struct, tag="message_delta"):
    delta: Message
    usage: Counts | None = None


class Stop(msgspec.Struct, tag="message_stop"):
    pass


class Ping(msgspec.Struct, tag="ping"):
    pass


class Failed(msgspec.Struct, tag="error"):
    error: Fault


class Whole(Message, tag="message"):
    """An answer that came in one piece."""


KNOWN = {
    "content_block_delta",
    "content_block_start",
    "content_block_stop",
    "message_start",
    "message_delta",
    "message_stop",
    "ping",
    "error",
}
DELTAS = {"text_delta", "thinking_delta", "input_json_delta", "signature_delta"}
BLOCKS = {"text", "thinking", "redacted_thinking", "tool_use"}
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

decode = msgspec.json.Decoder(Delta | Begin | End | Start | Change | Stop | Ping | Failed).decode
decode_whole = msgspec.json.Decoder(Whole | Failed).decode
