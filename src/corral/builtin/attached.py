"""A prompt with the files that go along."""

from __future__ import annotations

from mimetypes import guess_type
from pathlib import Path

from corral.errors import ConfigError
from corral.io.media import loaded
from corral.messages import Audio, Document, Image, Message, Part, Text
from corral.options import Run


async def prompt_message(prompt: str, run: Run, cwd: Path) -> Message:
    """Its files are read now: the agent may change them. Raises ``ConfigError``."""
    parts: list[Part] = [Text(prompt)]
    parts += [Image(str(cwd / path)) for path in run.images]
    parts += [Audio(str(cwd / path)) for path in run.audio]
    parts += [_attached(cwd / path) for path in run.attachments]
    return (await loaded([Message("user", tuple(parts))]))[0]


def _attached(path: Path) -> Part:
    """Text as text, which every model takes; anything else by its kind."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        kind = guess_type(path.name)[0] or ""
        for start, part in (("image/", Image), ("audio/", Audio), ("application/pdf", Document)):
            if kind.startswith(start):
                return part(str(path))
        raise ConfigError(
            f"a file for the prompt is neither text nor an image, audio or PDF: {path}",
            hint="Leave it in the workspace: the agent's tools may know what to do with it.",
        ) from error
    except OSError as error:
        raise ConfigError(f"a file for the prompt cannot be read: {path}: {error}") from error
    return Text(f'<file path="{path.name}">\n{text}\n</file>')
