"""``corral chat``: a conversation at the terminal with any agent or model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, Unpack, cast

import click
import msgspec

from corral._agents import registry
from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.options import (
    EVERYWHERE,
    FAKE,
    PRESET_NAMES,
    PolicyFlags,
    agent_option,
    choose_agent,
    policy_options,
    read_options,
    run_options,
    script_option,
)
from corral._cli.ui import terminal
from corral._cli.ui.progress import TurnProgress
from corral._cli.ui.prompt_reader import PromptReader
from corral._cli.ui.questions import TerminalAsker
from corral._cli.ui.spans import StyledText
from corral._cli.ui.tables import policy_table
from corral._cli.ui.terminal import echo
from corral._cli.ui.turn_output import answer_printer, exit_code, print_turn
from corral._core.spending import dollars
from corral._core.terminal_text import clean
from corral._runs import transcript
from corral._sessions import store
from corral._sessions.credentials import check_ready
from corral._sessions.session import Session
from corral._system import config, paths
from corral._system.git.file_history import FileHistory
from corral._system.terminal import is_interactive
from corral._system.threads import in_thread
from corral.errors import CallerError, ConfigError, CorralError, StorageFailed
from corral.events import Done, Event
from corral.run_kwargs import RunKwargs
from corral.values import Usage


class ChatFlags(PolicyFlags, RunKwargs):
    """The options of the command."""

    quiet: bool


@click.command(
    "chat",
    cls=SectionedCommand,
    epilog=examples("corral chat --approve edits", "corral chat --model anthropic:claude-sonnet-5"),
)
@agent_option
@policy_options
@run_options((*EVERYWHERE, "resume", "fork", "keep"))
@FAKE
@option("Output", "-q --quiet", "Print only the answers.")
def command(agent: str | None, **flags: Unpack[ChatFlags]) -> int:
    """Chat with an agent or a model.

    Each line is a prompt, from the terminal or from stdin; pasted lines, and
    lines that end with a backslash, are one prompt. The conversation is stored;
    --resume continues it. Ctrl-C stops an answer, Ctrl-D ends the chat.

    /help lists the commands: change the model, show the cost, undo changes of
    files, and more. //text sends a prompt that starts with a slash. /diff and
    /undo need git; /undo changes nothing if a file was changed since. Prompts
    are stored in chat_history in corral's home, for you only, except those that
    start with a space.
    """
    options = read_options(flags)
    options["record"] = options.setdefault("keep", True)
    agent = choose_agent(agent, options)
    with asyncio.Runner() as runner:
        chat = Chat(runner, agent, options, quiet=flags["quiet"])
        chat.open()
        try:
            check_ready(chat.session.prepared, chat.session.id)
            code = _converse(chat, options, quiet=flags["quiet"])
        finally:
            chat.close()
    if chat.resume_token and chat.spent.prompts and not flags["quiet"]:
        resume = f"--resume {chat.resume_token}{script_option()}"
        echo(f"continue with: corral chat {resume}", err=True)
    return 0 if sys.stdin.isatty() else code


def _converse(chat: Chat, options: RunKwargs, *, quiet: bool) -> int:
    """Read prompts and commands to the end. Returns the exit code of the last one."""
    reader = PromptReader(completions, stores=bool(options.get("keep")))
    if sys.stdin.isatty() and not quiet:
        is_resumed = options.get("resume") is not None
        echo(f"{chat.session.prepared.agent.title}. /help lists the commands.", err=True)
        if is_resumed and (turns := chat.history()):
            for line in recap(turns):
                echo(line, err=True)
    code = 0
    while (text := reader.read()) is not None:
        try:
            if is_command(text):
                run_command(chat, text)
            elif text.strip():
                chat.ask(prompt_of(text))
                code = chat.code
        except EndChat:
            break
        except CallerError as error:  # only this line is invalid
            echo(f"corral: {error}", err=True)
            code = error.cli_exit
        except CorralError as error:
            echo(f"corral: {error}", err=True)
            code = error.cli_exit
            if not is_command(text):
                break
    return code


class ChatUsage(msgspec.Struct):
    """What the chat has used so far."""

    prompts: int = 0
    usage: Usage = Usage()
    usd: float = 0.0
    unpriced: int = 0
    """Prompts whose cost is not known."""

    def add(self, done: Done) -> None:
        self.prompts += 1
        self.usage = self.usage + done.usage
        if done.cost.usd is None:
            self.unpriced += 1
        else:
            self.usd += done.cost.usd

    def describe(self) -> str:
        parts = [f"{self.prompts} prompt{'s' if self.prompts != 1 else ''}"]
        parts.append(f"{self.usage.input or 0:,} tokens in, {self.usage.output or 0:,} out")
        if self.prompts > self.unpriced:
            more = f" and {self.unpriced} of unknown cost" if self.unpriced else ""
            parts.append(f"{dollars(self.usd)}{more}")
        elif self.prompts:
            parts.append("unknown cost")
        return " · ".join(parts)


class Chat:
    """A conversation at the terminal. ``open`` it first. The event loop runs only during a turn.

    Its session may change its agent, model or policy. A change opens a new session that resumes the
    old one. Where that is not possible, because the agent is another one or cannot resume, the
    conversation so far is handed over with the next prompt."""

    def __init__(
        self, runner: asyncio.Runner, agent: str, options: RunKwargs, *, quiet: bool
    ) -> None:
        self._runner = runner
        self._agent: str = agent
        self._options = options
        self._quiet = quiet
        self._progress = TurnProgress(enabled=False)
        self._asker: TerminalAsker | None = None
        if is_interactive():
            # Each turn has its own progress: the current one is paused.
            paused = lambda: self._progress.paused()  # noqa: E731, PLW0108
            self._asker = TerminalAsker(paused, options.get("cwd"))
        self._session = Session(agent, {**options}, self._asker)
        self._shown = ""
        """The agent and model that were printed last."""
        self._ids: list[str] = []
        """The sessions of this chat, the newest last."""
        self.resume_token: str | None = None
        self.spent: ChatUsage = ChatUsage()
        self.code: int = 0
        """The exit code of the last turn."""
        self.files: FileHistory | None = None
        self.no_files: str = "no file was changed yet"
        """Why there is no history of files."""

    @property
    def session(self) -> Session:
        return self._session

    @property
    def agent(self) -> str:
        return self._session.prepared.agent.name

    @property
    def model(self) -> str | None:
        return self._session.prepared.run.model

    def open(self) -> None:
        TurnProgress(enabled=not self._quiet).announce_probes()
        self._runner.run(_enter(self._session))
        self._opened()
        if self._options.get("resume") is not None and not self.sends_history:
            self.resume_token = self._session.id

    def _opened(self) -> None:
        asks = self._asker is not None
        TurnProgress(enabled=not self._quiet).begin(self._session.prepared, asks=asks)
        for name in (self._session.continued_from, self._session.id):
            if name is not None and name not in self._ids:
                self._ids.append(name)
        if self.files is None:
            own = paths.sessions() / self._session.id / "files"
            self.files = FileHistory(own, Path(self._session.prepared.cwd))

    def close(self) -> None:
        self._runner.run(self._session.__aexit__())

    def change(self, agent: str = "", **changes: object) -> None:
        """Continue with another agent, or with other options; None removes an option. Raises
        ``CorralError``: then nothing was changed."""
        options = cast("RunKwargs", {**self._options, **changes})
        for name in [name for name, value in changes.items() if value is None]:
            del options[name]  # type: ignore[misc]
        options.pop("resume", None)
        options.pop("fork", None)
        source = self._to_continue(agent or self._agent)
        if isinstance(source, str):
            options["resume"] = source
        new = Session(agent or self._agent, {**options}, self._asker)
        new.source = None if isinstance(source, str) else source
        self._runner.run(_enter(new))
        old, self._session = self._session, new
        self._runner.run(old.__aexit__())
        self._agent, self._options = agent or self._agent, options
        if "resume" not in options:
            self.resume_token = None
        if not self.spent.prompts:
            self.files = None  # the session that would have kept it is gone
        self._opened()

    def _to_continue(self, agent: str) -> str | store.SessionRecord | None:
        """What a session with this agent continues: the name of one that it can resume, one whose
        conversation is handed over, or nothing."""
        target = config.find_agent(agent)
        if target.name == self.agent and self.resume_token is not None:
            return self.resume_token
        for name in reversed(self._ids):
            with contextlib.suppress(CorralError):  # it has no turn yet, or is not stored
                found = store.find(name)
                if not found.has_transcript:
                    continue
                can_resume = found.meta.agent == target.name and target.resumes
                return name if can_resume and found.meta.session_id is not None else found
        return None

    def ask(self, text: str) -> None:
        """Send a prompt and print the answer. Raises ``CorralError``."""
        self._runner.run(self._ask(text))

    async def _ask(self, text: str) -> None:
        turn = self._session.prompt(text)
        await self._begin_files()
        begins = self._shown != f"{self.agent} {self.model}"
        progress = self._progress = TurnProgress(enabled=not self._quiet, begins=begins)
        done = await print_turn(turn, answer_printer(quiet=False), progress)
        self._shown = f"{self.agent} {self.model}"
        if self.files is not None:
            try:
                await in_thread(self.files.end_turn)
            except (StorageFailed, OSError) as error:
                self.no_files = str(error)
        if done is None:
            return
        self.spent.add(done)
        self.resume_token = done.resume_token or self.resume_token
        self.code = exit_code(done)
        if done.status != "success" or done.files or done.denied:
            progress.summary(done, resume=False)

    async def _begin_files(self) -> None:
        """Store the files as they are, unless the agent can change none."""
        report = self._session.prepared.compiled.report
        denied = {row.capability for row in report if row.is_denied}
        if {"write", "shell"} <= denied:
            self.no_files = "the policy allows no changes of files"
            return
        if self.files is None:
            return
        try:
            await in_thread(self.files.begin_turn)
            self.no_files = "no file was changed"
        except (StorageFailed, OSError) as error:
            self.no_files = str(error)

    def history(self) -> list[transcript.TurnRecord]:
        """The stored turns of this chat."""
        return transcript.turns(self.events())

    def events(self) -> Iterator[Event]:
        """The stored events of this chat."""
        for name in self._ids:
            with contextlib.suppress(CorralError):  # it has no turn yet, or is not stored
                yield from store.find(name).events()

    @property
    def sends_history(self) -> bool:
        """Whether the conversation so far is sent with the next prompt."""
        return self._session.sends_history


async def _enter(session: Session) -> None:
    await session.__aenter__()


_COMMAND = re.compile(r"/([a-z_-]*)(?:\s+(.*))?", re.IGNORECASE | re.DOTALL)
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


class EndChat(Exception):
    """``/exit``"""


Run: TypeAlias = Callable[[Chat, str], None]
"""Raises ``CorralError`` and ``EndChat``."""


class SlashCommand(NamedTuple):
    name: str
    argument: str
    help: str
    run: Run


COMMANDS: list[SlashCommand] = []
"""In the order of ``/help``."""


def slash_command(name: str, argument: str, help: str) -> Callable[[Run], Run]:
    """Make a function the command ``/name``. ``argument``: what it may be followed by."""

    def add(run: Run) -> Run:
        COMMANDS.append(SlashCommand(name, argument, help, run))
        return run

    return add


def is_command(text: str) -> bool:
    """Whether a line is a command: a slash and a word. A path such as /etc/hosts is not, and
    neither is a line that starts with two slashes."""
    return _COMMAND.fullmatch(text.strip()) is not None


def prompt_of(text: str) -> str:
    """The prompt in a line that is not a command: ``//x`` is the prompt ``/x``."""
    return text[1:] if text.startswith("//") else text


def run_command(chat: Chat, text: str) -> None:
    """Run the command in a line. Raises ``ConfigError`` for an unknown one, and ``EndChat``."""
    found = _COMMAND.fullmatch(text.strip())
    name, argument = (found[1].lower(), (found[2] or "").strip()) if found else ("", "")
    wanted = "exit" if name == "quit" else name
    command = next((each for each in COMMANDS if each.name == wanted), None)
    if command is None:
        from difflib import get_close_matches

        hint = "/help lists the commands. To send a prompt that starts with /, write //."
        if near := get_close_matches(name, [each.name for each in COMMANDS], 1, 0.5):
            hint = f"Did you mean /{near[0]}? {hint}"
        raise ConfigError(f"no command is called /{name}", hint=hint)
    if argument and not command.argument:
        raise ConfigError(f"/{command.name} takes no argument, got {argument!r}")
    command.run(chat, argument)


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


@slash_command("help", "", "show this")
def show_help(_chat: Chat, _argument: str) -> None:
    for command in COMMANDS:
        _print(f"  {f'/{command.name} {command.argument}'.rstrip():16} {command.help}")
    _print("  Ctrl-C stops an answer, Ctrl-D ends the chat. End a line with \\ to continue it.")
    _print("  //text sends a prompt that starts with a slash, such as a command of the agent.")


@slash_command("model", "[NAME]", "show the model, or continue with another one")
def change_model(chat: Chat, name: str) -> None:
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


@slash_command("agent", "[NAME]", "show the agent, or continue with another one")
def change_agent(chat: Chat, name: str) -> None:
    if not name:
        _print(f"{chat.agent} · {chat.model or 'default model'}")
        return
    if registry.names_a_model(name):
        change_model(chat, name)
        return
    # The model and the program belong to the agent before.
    chat.change(name, model=None, program=None)
    _show_change(chat)


def _show_change(chat: Chat) -> None:
    note = "; the conversation so far is sent with the next prompt" if chat.sends_history else ""
    _print(f"now: {chat.agent} · {chat.model or 'default model'}{note}")


@slash_command("policy", "[POLICY]", "show or change the policy: reads, edits, all, or a file")
def change_policy(chat: Chat, name: str) -> None:
    if name:
        from corral._system import config
        from corral.policy import PRESETS

        preset = next((each for each in PRESET_NAMES if each == name), None)
        if preset is None and not Path(name).is_file():
            raise ConfigError(
                f"no policy is called {name!r}",
                hint=f"Known: {', '.join(PRESET_NAMES)}, or a file.",
            )
        policy = PRESETS[preset] if preset is not None else config.read_policy(Path(name))
        chat.change(policy=policy)
    _print(policy_table(chat.session.prepared.compiled.report))


@slash_command("usage", "", "show the tokens and the cost so far")
def show_usage(chat: Chat, _argument: str) -> None:
    _print(chat.spent.describe())


@slash_command("diff", "[all]", "show what the last prompt changed in files, or all prompts")
def show_diff(chat: Chat, which: str) -> None:
    if which not in ("", "all"):
        raise ConfigError(f"/diff {which}: write /diff or /diff all")
    found = chat.files.diff(all_turns=which == "all") if chat.files is not None else ""
    if not found:
        _print(chat.no_files)
        return
    for line in clean(found).removesuffix("\n").split("\n"):
        terminal.echo_styled([StyledText(line, _DIFF_STYLES.get(line[:1], ""))])


@slash_command("undo", "", "undo these changes; again for those before")
def undo(chat: Chat, _argument: str) -> None:
    undone = chat.files.undo() if chat.files is not None else {}
    if not undone:
        _print(chat.no_files)
        return
    for path, what in undone.items():
        _print(f"{what} {path}")


@slash_command("save", "[FILE]", "write the conversation to a Markdown file")
def save(chat: Chat, name: str) -> None:
    turns = chat.history()
    if not turns:
        raise ConfigError("there is nothing to save: no answer was stored yet")
    session = chat.session.id
    path = Path(chat.session.prepared.cwd, os.path.expanduser(name or f"chat-{session}.md"))
    from corral._export import document

    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            document.write_session(turns[0].prompt[:80] or "Chat", chat.events(), file.write)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists", hint="Give another name: /save FILE.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    _print(f"saved {path}")


@slash_command("exit", "", "end the chat")
def end_chat(_chat: Chat, _argument: str) -> None:
    raise EndChat


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
