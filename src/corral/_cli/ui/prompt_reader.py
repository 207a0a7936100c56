"""Reads prompts: from a terminal with editing, history and completion, or from a pipe.

At a terminal, pasted lines are one prompt: the terminal marks what is pasted (bracketed paste).
With an editing library that does not support this, lines that arrive at once are one prompt.

The history is in corral's home, readable by its owner only: one prompt per line, with ``\\n`` for a
line break. A prompt that starts with a space is not stored.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Sequence

from corral._cli.ui.terminal import echo
from corral._system import paths

HISTORY = "chat_history"
MOST_ENTRIES = 1_000
LONGEST_ENTRY = 20_000
"""Characters. A longer prompt is not stored."""
PASTE_SECONDS = 0.03
"""How long the next line of a pasted text may take to arrive."""


class PromptReader:
    """``complete`` returns the words that may replace the last word of a line. ``stores``: prompts
    are added to the history."""

    def __init__(self, complete: Callable[[str], Sequence[str]], *, stores: bool) -> None:
        self._complete = complete
        self._stores = stores
        self._found: list[str] = []
        # input() edits lines only if it reads from and writes to a terminal.
        self._edits = sys.stdin.isatty() and sys.stdout.isatty()
        self._joins_pasted = False
        if self._edits:
            self._edits = self._start_editing()

    def read(self) -> str | None:
        """The next prompt; a backslash at the end of a line continues it. None at the end of the
        input. Ctrl-C clears what was typed."""
        lines: list[str] = []
        while True:
            try:
                line = self._read_line("… " if lines else "> ")
            except KeyboardInterrupt:
                echo(err=True)
                lines.clear()
                continue
            except EOFError:
                text = "\n".join(lines)
                return text if lines else None
            if line.endswith("\\"):
                lines.append(line[:-1])
                continue
            text = "\n".join([*lines, line])
            self._add_to_history(text)
            return text

    def _read_line(self, prompt: str) -> str:
        """Raises ``EOFError``."""
        if self._edits:
            lines = [input(prompt)]
            while self._joins_pasted and select.select([sys.stdin], [], [], PASTE_SECONDS)[0]:
                lines.append(input(""))
            return "\n".join(lines)
        if sys.stdin.isatty():
            echo(prompt, err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def _start_editing(self) -> bool:
        try:
            import readline
        except ImportError:
            return False
        readline.set_auto_history(False)
        for entry in _read_history():
            readline.add_history(entry)
        readline.set_completer_delims(" ")
        readline.set_completer(self._completion)
        self._joins_pasted = "libedit" in (readline.__doc__ or "")
        if self._joins_pasted:
            readline.parse_and_bind("bind ^I rl_complete")
        else:
            readline.parse_and_bind("tab: complete")
            readline.parse_and_bind("set enable-bracketed-paste on")
        return True

    def _completion(self, _word: str, number: int) -> str | None:
        import readline

        if number == 0:
            before = readline.get_line_buffer()[: readline.get_endidx()]
            self._found = list(self._complete(before))
        return self._found[number] if number < len(self._found) else None

    def _add_to_history(self, text: str) -> None:
        if not self._edits or not text.strip() or text.startswith(" "):
            return
        import readline

        readline.add_history(text)
        if self._stores and len(text) <= LONGEST_ENTRY:
            with contextlib.suppress(OSError):  # a prompt is worth more than its history
                paths.make_dir(paths.home())
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                descriptor = os.open(paths.home() / HISTORY, flags, 0o600)
                try:
                    line = text.replace("\\", "\\\\").replace("\r", "").replace("\n", "\\n")
                    os.write(descriptor, f"{line}\n".encode("utf-8", "replace"))
                finally:
                    os.close(descriptor)


def _read_history() -> list[str]:
    """The stored prompts, the newest last. A history that has grown long is shortened."""
    try:
        lines = (paths.home() / HISTORY).read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    if len(lines) > 2 * MOST_ENTRIES:
        lines = lines[-MOST_ENTRIES:]
        with contextlib.suppress(OSError):
            content = "".join(f"{line}\n" for line in lines)
            paths.write_private(paths.home() / HISTORY, content.encode())
    return [
        "\\".join(part.replace("\\n", "\n") for part in line.split("\\\\"))
        for line in lines[-MOST_ENTRIES:]
    ]
