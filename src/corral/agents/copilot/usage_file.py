"""Copilot's token counts, which it writes to a file before it exits and nowhere else."""

from __future__ import annotations

import msgspec

from corral.protocol.ndjson import TurnEnd
from corral.values import Usage


class Tokens(msgspec.Struct, frozen=True, rename="camel"):
    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class Metrics(msgspec.Struct, frozen=True):
    usage: Tokens = Tokens()


class Report(msgspec.Struct, frozen=True, rename="camel"):
    model_metrics: dict[str, Metrics] = {}


def read_report(content: bytes, finish: TurnEnd) -> TurnEnd:
    """The end of the turn with the token counts from the file."""
    try:
        metrics = msgspec.json.decode(content, type=Report).model_metrics
    except msgspec.MsgspecError:
        return finish
    by_model = {name: _usage(metrics.usage) for name, metrics in metrics.items()}
    usage = sum(by_model.values(), Usage())
    return msgspec.structs.replace(finish, usage=usage, usage_by_model=by_model)


def _usage(tokens: Tokens) -> Usage:
    return Usage(
        input=tokens.input_tokens,
        output=tokens.output_tokens,
        reasoning=tokens.reasoning_tokens,
        cache_read=tokens.cache_read_tokens,
        cache_write=tokens.cache_write_tokens,
        coverage="complete",
    )
