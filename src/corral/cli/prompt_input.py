"""Read the prompt from the argument, a file, or stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from corral.errors import PromptError


def read_prompt(prompt: str | None, file: str | None) -> str | None:
    """The prompt, or None if none was given (a configuration may name a file)."""
    if prompt is not None and file is not None:
        raise PromptError("a prompt and --file are both given", hint="Give one of them.")
    if prompt == "-" or file == "-":
        return _stdin()
    if prompt is not None:
        return prompt
    if file is not None:
        try:
            return Path(file).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise PromptError(f"{file} is not UTF-8: {error}") from error
        except OSError as error:
            raise PromptError(f"{file}: {error.strerror}") from error
    if sys.stdin is not None and not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return _stdin()
    return None


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"stdin is not UTF-8: {error}") from error
