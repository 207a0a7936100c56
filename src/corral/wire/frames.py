"""Types of frames for a ``Stream``, where many kinds of lines have one shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


def named(shape: type[msgspec.Struct], names: Iterable[str]) -> dict[type[msgspec.Struct], str]:
    """For each name that a line has as its ``type``, a type of its own, with that name."""
    return {
        msgspec.defstruct(
            name.title().replace(".", ""), [], bases=(shape,), tag=name, tag_field="type"
        ): name
        for name in names
    }


def one_of(*kinds: Iterable[type[msgspec.Struct]]) -> Any:
    """Any of these, for a decoder."""
    whole: Any = None
    for kind in (kind for some in kinds for kind in some):
        whole = kind if whole is None else whole | kind
    return whole
