"""What differs between servers of chat completions, beyond what all wires share."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from corral.models.profile import JsonObject, Provider, Traits


class ChatTraits(Traits, frozen=True, kw_only=True):
    """A default changes nobody."""

    json_object: bool = True
    """Answers in any JSON when asked for it."""
    takes_metadata: bool = False
    names_tell_thinkers: bool = False
    """Its models are OpenAI's own: those that think refuse ``temperature``."""
    returned_thoughts: str | None = None
    """The field in which it wants thoughts back, with the calls that they led to."""
    short_ids: bool = False
    """Takes only ids of calls with nine letters or digits."""
    efforts: Mapping[str, JsonObject] = {}
    """Efforts that it is told of in other words."""


def traits_of(provider: Provider) -> ChatTraits:
    held = provider.traits
    if isinstance(held, ChatTraits):
        return held
    return ChatTraits(**msgspec.structs.asdict(held))
