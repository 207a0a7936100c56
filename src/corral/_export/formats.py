"""Writes a run in any of the formats."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from corral._core.terminal_text import json_bytes
from corral._runs.kinds import FORMATS
from corral._runs.stored_run import StoredRun
from corral.errors import ConfigError


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What an export contains."""

    diff: bool = False
    """With ``md``: also how each turn changed files."""
    content: bool = False
    """With ``otel``: prompts, answers, and input of tools."""
    full: bool = False
    """With ``html``: everything, however large the file gets."""
    doctor: Callable[[str], str] | None = None
    """With ``bundle``: makes the report about the agent."""
    db: str | None = None


def check(format_: str, options: ExportOptions) -> None:
    """Raises ``ConfigError`` for an unknown format, or for an option of another one."""
    if format_ not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got: {format_!r}")
    for name, owner in ("diff", "md"), ("content", "otel"), ("full", "html"):
        if getattr(options, name) and format_ != owner:
            raise ConfigError(f"{name} is not for the format {format_}")


def write(
    stored: StoredRun, format_: str, out: Callable[[bytes], object], options: ExportOptions
) -> list[str]:
    """Write the export. Returns what it contains, if that is worth saying."""
    match format_:
        case "md":
            from corral._export import document

            document.write(
                stored,
                lambda text: out(stored.redactor.clean_text(text).encode("utf-8", "replace")),
                diff=options.diff,
            )
        case "atif":
            from corral._export import atif

            atif.write(stored.events(), out, session_id=stored.id)
            out(b"\n")
        case "otel":
            from corral._export import otel

            otel.write(stored, out, content=options.content)
        case "html":
            from corral._view import page_file

            page_file.write(stored, out, full=options.full, db=options.db)
        case "bundle":
            from corral._export import bundle

            return bundle.write(stored, out, options.doctor)
        case _:
            for line in stored.lines():
                out(json_bytes(line) + b"\n")
    return []
