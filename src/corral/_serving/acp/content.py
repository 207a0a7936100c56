"""The blocks of a prompt as text and files.

Texts and links stay where they are. The content of a file that the client has open follows the
text, as corral sends attached text files. Images, audio and other files become files, which are
sent in the way that the agent takes them.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Callable, Sequence

import msgspec

from corral._protocol.acp.frames import (
    AudioBlock,
    Block,
    ImageBlock,
    LinkBlock,
    Resource,
    ResourceBlock,
    TextBlock,
)
from corral.errors import ConfigError, PromptError

Save = Callable[[str, bytes], str]
"""Stores the bytes in a file whose name ends like this; returns its path."""


class PromptContent(msgspec.Struct):
    text: str = ""
    images: list[str] = []
    audio: list[str] = []
    attachments: list[str] = []

    def files(self) -> dict[str, list[str]]:
        """The options of the prompt for its files."""
        named = {"images": self.images, "audio": self.audio, "attachments": self.attachments}
        return {name: paths for name, paths in named.items() if paths}


def read_content(blocks: Sequence[Block], save: Save) -> PromptContent:
    """Raises ``PromptError`` for an empty prompt, ``ConfigError`` for a block that is wrong."""
    content = PromptContent()
    texts: list[str] = []
    contexts: list[str] = []
    for block in blocks:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ImageBlock():
                content.images.append(_save(block.mime_type, block.data, save))
            case AudioBlock():
                content.audio.append(_save(block.mime_type, block.data, save))
            case LinkBlock():
                texts.append(f"[{block.name}]({block.uri})")
            case ResourceBlock(resource=Resource(text=str(text), uri=uri)):
                texts.append(f"[{uri.rpartition('/')[2]}]({uri})")
                contexts.append(f'<file uri="{uri}">\n{text}\n</file>')
            case ResourceBlock(resource=resource):
                kind = resource.mime_type or "application/octet-stream"
                content.attachments.append(_save(kind, resource.blob or "", save))
    content.text = "\n\n".join(["".join(texts), *contexts])
    if not content.text.strip() and content.files():
        content.text = "See the attached files."
    if not content.text.strip():
        raise PromptError("the prompt is empty")
    return content


def _save(media_type: str, data: str, save: Save) -> str:
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"a block of the prompt is not base64: {media_type[:100]}") from error
    return save(mimetypes.guess_extension(media_type) or "", decoded)
