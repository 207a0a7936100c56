"""A prompt as a command of our own, where a program would act on what a prompt holds.

Some take a leading ``/`` for a command and inline the files behind every ``@``. The text of
a command in the private home they send as it stands, and the prompt only names that command.
"""

from __future__ import annotations

import json
import os
import re

from corral.agents.spec import LaunchContext

COMMAND = "corral-prompt"
"""With the session's name behind it: of two commands of one name, ours and one that the
repository brings, neither might be run."""
_LIVE = re.compile(r"(?<!\\)@(?=\S)")
_TEMPLATE = ("{{args}}", "!{", "@{")


def has_special_syntax(prompt: str) -> bool:
    """Whether the program would take a part of it for something else than text."""
    return prompt.startswith("/") or _LIVE.search(prompt) is not None


def has_template_syntax(prompt: str) -> bool:
    """Whether it holds what is acted on inside a command's text, too."""
    return any(mark in prompt for mark in _TEMPLATE)


def escape_prompt(prompt: str) -> tuple[str, bytes]:
    """What is left where a command is none: a note, and what goes to stdin."""
    text = _LIVE.sub(lambda found: "\\" + found[0], prompt)
    note = "the prompt's @ signs are sent as \\@: the CLI would inline the files they name"
    return note, (f"\n{text}" if text.startswith("/") else text).encode()


def prompt_as_command(text: str, place: LaunchContext, folder: str) -> tuple[bytes, dict[str, str]]:
    """What goes to stdin, and the command's file, below the settings ``folder``."""
    name = f"{COMMAND}-{os.path.basename(os.path.dirname(place.home))}"
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"/{name}".encode(), {f"{folder}/commands/{name}.toml": f"prompt = {quoted}\n"}
