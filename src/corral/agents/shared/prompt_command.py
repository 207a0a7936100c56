"""Passes a prompt as the text of a custom command, for programs that interpret prompts.

Some programs take a leading ``/`` for a command and inline the files after every ``@``. They send
the text of a command in the private home unchanged, and the prompt only names that command.
"""

from __future__ import annotations

import os
import re

from corral.agents.spec import LaunchContext
from corral.core.quoting import toml_string

COMMAND = "corral-prompt"
"""The session's name is appended: if the repository had a command of the same name, possibly
neither would run."""
_LIVE = r"(?<!\\)@(?=\S)"
_TEMPLATE = ("{{args}}", "!{", "@{")


def has_special_syntax(prompt: str) -> bool:
    """Whether the program would not take all of it for text."""
    return prompt.startswith("/") or ("@" in prompt and re.search(_LIVE, prompt) is not None)


def has_template_syntax(prompt: str) -> bool:
    """Whether it contains something that is interpreted inside a command's text, too."""
    return any(mark in prompt for mark in _TEMPLATE)


def escape_prompt(prompt: str) -> tuple[str, bytes]:
    """For a prompt that cannot be a command: a note, and the escaped prompt for stdin."""
    text = re.sub(_LIVE, lambda found: "\\" + found[0], prompt)
    note = "the prompt's @ signs are sent as \\@: the CLI would inline the files they name"
    return note, (f"\n{text}" if text.startswith("/") else text).encode()


def prompt_as_command(text: str, place: LaunchContext, folder: str) -> tuple[bytes, dict[str, str]]:
    """The bytes for stdin, and the command's file below the settings ``folder``."""
    name = f"{COMMAND}-{os.path.basename(os.path.dirname(place.home))}"
    return f"/{name}".encode(), {
        f"{folder}/commands/{name}.toml": f"prompt = {toml_string(text)}\n"
    }
