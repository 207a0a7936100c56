"""The command line that runs a batch. It is stored with the batch, so that it can be continued by
its name: the tasks that were not submitted yet are nowhere else but in the files that it names."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from corral.values import Json, as_object, convert_to

LABEL = "command"
_DATABASE = "--db"


class BatchCommand(msgspec.Struct, frozen=True, kw_only=True):
    words: list[str]
    """The arguments of ``corral``, without the database: its URL may contain a password."""
    cwd: str

    @classmethod
    def of(cls, words: Sequence[str], cwd: str) -> BatchCommand:
        kept: list[str] = []
        rest = iter(words)
        for word in rest:
            if word == _DATABASE:
                next(rest, None)
            elif not word.startswith(f"{_DATABASE}="):
                kept.append(word)
        return cls(words=kept, cwd=cwd)

    @classmethod
    def from_label(cls, label: Json) -> BatchCommand | None:
        """None if no command line started the batch."""
        return convert_to(label, cls) if label else None

    def label(self) -> Json:
        return as_object(msgspec.to_builtins(self))
