"""The slash commands of a chat. Each is one function; its docstring is its help."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from corral.agents import registry
from corral.cli.chat.conversation import Conversation
from corral.cli.options import PRESET_NAMES
from corral.cli.ui import terminal
from corral.cli.ui.spans import Span
from corral.cli.ui.tables import policy_table
from corral.core.terminal_text import clean
from corral.errors import ConfigError
from corral.sessions import transcript

_COMMAND = re.compile(r"/([a-z_-]*)(?:\s+(.*))?", re.IGNORECASE | re.DOTALL)
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


class EndChat(Exception):
    """``/exit``"""


Run: TypeAlias = Callable[[Conversation, str], None]
"""Raises ``CorralError`` and ``EndChat``."""


class Command(NamedTuple):
    name: str
    argument: str
    help: str
    run: Run


def is_command(text: str) -> bool:
    """Whether a line is a command: a slash and a word. A path such as /etc/hosts is not, and
    neither is a line that starts with two slashes."""
    return _COMMAND.fullmatch(text.strip()) is not None


def prompt_of(text: str) -> str:
    """The prompt in a line that is not a command: ``//x`` is the prompt ``/x``."""
    return text[1:] if text.startswith("//") else text


def run_command(chat: Conversation, text: str) -> None:
    """Run the command in a line. Raises ``ConfigError`` for an unknown one, and ``EndChat``."""
    found = _COMMAND.fullmatch(text.strip())
    name, argument = (found[1].lower(), (found[2] or "").strip()) if found else ("", "")
    command = next((each for each in COMMANDS if name in _names(each)), None)
    if command is None:
        raise ConfigError(f"no command is called /{name}", hint=_suggestion(name))
    if argument and not command.argument:
        raise ConfigError(f"/{command.name} takes no argument, got {argument!r}")
    command.run(chat, argument)


def _names(command: Command) -> tuple[str, ...]:
    return (command.name, "quit") if command.name == "exit" else (command.name,)


def _suggestion(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [each.name for each in COMMANDS], 1, 0.5)
    listed = "/help lists the commands. To send a prompt that starts with /, write //."
    return f"Did you mean /{near[0]}? {listed}" if near else listed


def completions(line: str) -> Sequence[str]:
    """The words that may replace the last word of a line."""
    command, space, typed = line.lstrip().partition(" ")
    if not space:
        return [f"/{each.name}" for each in COMMANDS if f"/{each.name}".startswith(command)]
    words: Sequence[str] = ()
    if command == "/policy":
        words = PRESET_NAMES
    elif command == "/agent":
        words = [agent.name for agent in registry.all_agents()]
    elif command == "/diff":
        words = ("all",)
    return [word for word in words if word.startswith(typed.rpartition(" ")[2])]


def _print(text: str) -> None:
    terminal.echo(text, err=True)


def _help(_chat: Conversation, _argument: str) -> None:
    for command in COMMANDS:
        _print(f"  {f'/{command.name} {command.argument}'.rstrip():16} {command.help}")
    _print("  Ctrl-C stops an answer, Ctrl-D ends the chat. End a line with \\ to continue it.")
    _print("  //text sends a prompt that starts with a slash, such as a command of the agent.")


def _model(chat: Conversation, name: str) -> None:
    if not name:
        _print(f"{chat.agent} · {chat.model or 'default model'}")
        return
    if registry.names_a_model(name):
        chat.change(name, model=name)
    elif registry.names_a_model(chat.model or ""):  # the built-in agent
        registry.default(name)  # raises the error for an unknown vendor
        raise ConfigError(
            f"{name!r} is not the name of a model for this agent",
            hint="Write vendor:model; corral models list shows them.",
        )
    else:
        chat.change(model=name)
    _show_change(chat)


def _agent(chat: Conversation, name: str) -> None:
    if not name:
        _print(f"{chat.agent} · {chat.model or 'default model'}")
        return
    if registry.names_a_model(name):
        _model(chat, name)
        return
    # The model and the program belong to the agent before.
    chat.change(name, model=None, program=None)
    _show_change(chat)


def _show_change(chat: Conversation) -> None:
    note = "; the conversation so far is sent with the next prompt" if chat.sends_history else ""
    _print(f"now: {chat.agent} · {chat.model or 'default model'}{note}")


def _policy(chat: Conversation, name: str) -> None:
    if name:
        from corral.policy import PRESETS
        from corral.system import config

        preset = next((each for each in PRESET_NAMES if each == name), None)
        if preset is None and not Path(name).is_file():
            raise ConfigError(
                f"no policy is called {name!r}",
                hint=f"Known: {', '.join(PRESET_NAMES)}, or a file.",
            )
        policy = PRESETS[preset] if preset is not None else config.read_policy(Path(name))
        chat.change(policy=policy)
    _print(policy_table(chat.session.prepared.compiled.report))


def _usage(chat: Conversation, _argument: str) -> None:
    _print(chat.spent.describe())


def _diff(chat: Conversation, which: str) -> None:
    if which not in ("", "all"):
        raise ConfigError(f"/diff {which}: write /diff or /diff all")
    found = chat.files.diff(all_turns=which == "all") if chat.files is not None else ""
    if not found:
        _print(chat.no_files)
        return
    for line in clean(found).removesuffix("\n").split("\n"):
        terminal.echo_styled([Span(line, _DIFF_STYLES.get(line[:1], ""))])


def _undo(chat: Conversation, _argument: str) -> None:
    undone = chat.files.undo() if chat.files is not None else []
    if not undone:
        _print(chat.no_files)
        return
    for path in undone:
        _print(f"restored {path}")


def _save(chat: Conversation, name: str) -> None:
    turns = chat.history()
    if not turns:
        raise ConfigError("there is nothing to save: no answer was stored yet")
    session = chat.session.id
    path = Path(chat.session.prepared.cwd, os.path.expanduser(name or f"chat-{session}.md"))
    from corral.export import document

    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            document.write_session(turns[0].prompt[:80] or "Chat", chat.events(), file.write)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists", hint="Give another name: /save FILE.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    _print(f"saved {path}")


def _exit(_chat: Conversation, _argument: str) -> None:
    raise EndChat


COMMANDS = (
    Command("help", "", "show this", _help),
    Command("model", "[NAME]", "show the model, or continue with another one", _model),
    Command("agent", "[NAME]", "show the agent, or continue with another one", _agent),
    Command(
        "policy", "[POLICY]", "show or change the policy: reads, edits, all, or a file", _policy
    ),
    Command("usage", "", "show the tokens and the cost so far", _usage),
    Command("diff", "[all]", "show what the last prompt changed in files, or all prompts", _diff),
    Command("undo", "", "undo these changes; again for those before", _undo),
    Command("save", "[FILE]", "write the conversation to a Markdown file", _save),
    Command("exit", "", "end the chat", _exit),
)


def recap(turns: Sequence[transcript.TurnRecord]) -> Iterator[str]:
    """What a resumed conversation was about: its size, and the end of it."""
    last = turns[-1]
    yield f"continuing after {len(turns)} prompt{'s' if len(turns) != 1 else ''}; the last one:"
    prompt = last.prompt.strip().splitlines() or [""]
    yield f"> {prompt[0]}" + (" …" if len(prompt) > 1 else "")
    answer = (last.text.strip() or f"({last.status})").splitlines()
    yield from ([f"  … {len(answer) - RECAP_LINES} lines", *answer[-RECAP_LINES:]]
                if len(answer) > RECAP_LINES else answer)  # fmt: skip


RECAP_LINES = 12
"""Lines of the last answer that are shown when a chat is resumed."""
