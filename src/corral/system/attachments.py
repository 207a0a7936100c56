"""Build the message of a prompt, with the files that are attached to it."""

from __future__ import annotations

from pathlib import Path

from corral.errors import ConfigError
from corral.messages import Audio, Document, Image, Message, Part, Text
from corral.options import RunOptions
from corral.system.media import load_media, media_type_of


async def prompt_message(prompt: str, run: RunOptions, cwd: Path) -> Message:
    """Build the message. Files are read now, because the agent may change them. Raises
    ``ConfigError``."""
    parts: list[Part] = [Text(prompt)]
    parts += [Image(str(cwd / path)) for path in run.images]
    parts += [Audio(str(cwd / path)) for path in run.audio]
    parts += [_attached(cwd / path) for path in run.attachments]
    return (await load_media([Message("user", tuple(parts))]))[0]


def _attached(path: Path) -> Part:
    """Text files as text, which every model accepts; other files by their type."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"a file for the prompt cannot be read: {path}: {error}") from error
    if media_type_of(data, "") == "application/pdf":  # some PDF files are all ASCII
        return Document(str(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        kind = media_type_of(data, path.name) or ""
        for start, part in (("image/", Image), ("audio/", Audio)):
            if kind.startswith(start):
                return part(str(path))
        raise ConfigError(
            f"a file for the prompt is neither text nor an image, audio or PDF: {path}",
            hint="Leave it in the workspace: the agent's tools may know what to do with it.",
        ) from error
    return Text(f'<file path="{path.name}">\n{text}\n</file>')
