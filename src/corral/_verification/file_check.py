"""Files that must exist."""

from __future__ import annotations

import os

import msgspec

from corral._system import fs
from corral._verification.check import CheckContext
from corral.errors import ConfigError
from corral.receipt import CheckKind, Evidence
from corral.values import JsonObject


class FilesCheck(msgspec.Struct, frozen=True):
    """Made by ``files_exist``."""

    paths: tuple[str, ...]

    def __repr__(self) -> str:
        return f"files_exist({', '.join(map(repr, self.paths))})"

    @property
    def kind(self) -> CheckKind:
        return "files"

    @property
    def name(self) -> str:
        return ", ".join(self.paths)

    @property
    def reads_files(self) -> bool:
        return True

    def describe(self) -> JsonObject:
        return {"paths": [*self.paths]}

    async def run(self, context: CheckContext) -> Evidence:
        """Looks at what the agent left, not at the clean tree: a file may be ignored by git."""
        left = context.left
        missing = [path for path in self.paths if not fs.is_file(left / path)]
        reason = f"these files do not exist: {', '.join(missing)}" if missing else ""
        return Evidence(
            kind="files",
            name=self.name,
            outcome="failed" if missing else "passed",
            reason=reason,
            passed_before=self._passed_before(context),
        )

    def _passed_before(self, context: CheckContext) -> bool | None:
        """True: the run made or changed none of them."""
        if context.changed is None or context.before is None:
            return None
        names = [os.path.normpath(path) for path in self.paths]
        if any(name in context.changed for name in names):
            return False
        return True if all(name in context.before for name in names) else None


def files_exist(*paths: str | os.PathLike[str]) -> FilesCheck:
    """A check for ``verify`` and ``until`` that passes if each of these is a file; in the session's
    folder, where not absolute.

    ::

        corral.run_sync(
            "gemini-cli", "Write the notes", policy="edits", until=corral.files_exist("NOTES.md")
        )
    """
    names = tuple(os.fspath(path) for path in paths)
    if not names or not all(names):
        raise ConfigError("files_exist needs the name of a file")
    return FilesCheck(names)
