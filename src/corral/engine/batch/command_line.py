"""The command line that runs a batch. It is stored with the batch, so that it can be continued by
its name: the tasks that were not submitted yet are nowhere else but in the files that it names."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from corral.engine.dbos.database import UnreadableRecord
from corral.engine.payloads import unpack
from corral.values import Json, as_object

LABEL = "command"
_DATABASE = "--db"
_COMMANDS = ("batch", "compare")


def _subcommand(words: Sequence[str]) -> str:
    """The first word that is no option of ``corral`` itself."""
    rest = iter(words)
    for word in rest:
        if word == "--config":
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return ""


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
        """None if no command line started the batch. Raises ``UnreadableRecord`` if the command is
        not one that starts a batch."""
        if not label:
            return None
        stored = unpack(label, cls)
        if _subcommand(stored.words) not in _COMMANDS:
            raise UnreadableRecord(f"`corral {shlex.join(stored.words)}` does not start a batch")
        return stored

    def label(self) -> Json:
        return as_object(msgspec.to_builtins(self))
