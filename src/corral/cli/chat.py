"""``corral chat``: a conversation at the terminal with any agent or model."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Unpack

import click

from corral.cli.options import PolicyFlags, agent_option, choose_agent, policy_options
from corral.cli.run import exit_code
from corral.cli.run_options import EVERYWHERE, read_options, run_options
from corral.cli.sections import SectionedCommand, option
from corral.cli.ui.progress import Progress
from corral.cli.ui.questions import TerminalAsker, is_interactive
from corral.cli.ui.stdout import answer_printer
from corral.cli.ui.terminal import echo
from corral.cli.ui.turn_output import print_turn
from corral.errors import CallerError, CorralError
from corral.events import Done
from corral.options import RunKwargs
from corral.sessions.session import Session
from corral.values import Usage

HELP = """\
  /help    show this   /usage   show the tokens used so far
  /exit    quit, like Ctrl-D; Ctrl-C stops an answer
  End a line with \\ to continue it on the next."""


class ChatFlags(PolicyFlags, RunKwargs):
    """The options of the command."""

    quiet: bool


@click.command("chat", cls=SectionedCommand)
@agent_option
@policy_options
@run_options((*EVERYWHERE, "resume", "fork", "keep"))
@option("Output", "-q", "--quiet", is_flag=True, help="Print only the answers.")
def command(agent: str | None, **flags: Unpack[ChatFlags]) -> int:
    """Chat with an agent or a model.

    Each line is a prompt, from the terminal or from stdin. The conversation is stored;
    --resume continues it. /help lists the commands.
    """
    options = read_options(flags)
    agent = choose_agent(agent, options)
    with asyncio.Runner() as runner:
        return Chat(runner, agent, options, quiet=flags["quiet"]).run()


class Chat:
    """The prompt loop. The event loop runs only during a turn."""

    def __init__(
        self, runner: asyncio.Runner, agent: str, options: RunKwargs, *, quiet: bool
    ) -> None:
        self._runner = runner
        self._quiet = quiet
        self._usage = Usage()
        self._code = 0
        self._resume: str | None = None
        self._progress = Progress(enabled=False)
        asker = TerminalAsker(self._paused, options.get("cwd")) if is_interactive() else None
        self._asks = asker is not None
        self._session = Session(agent, {**options}, asker)

    def run(self) -> int:
        session = self._session
        self._runner.run(_open(session))
        try:
            Progress(enabled=not self._quiet).begin(session.prepared, asks=self._asks)
            if sys.stdin.isatty() and not self._quiet:
                self._print(f"{session.prepared.agent.title}. /help lists the commands.")
            for text in self._prompts():
                try:
                    self._runner.run(self._turn(text))
                except CallerError as error:  # only this prompt is invalid, such as an empty file
                    self._print(f"corral: {error}")
                    self._code = error.cli_exit
                except CorralError as error:
                    self._print(f"corral: {error}")
                    self._code = error.cli_exit
                    break
        finally:
            self._runner.run(session.__aexit__(None, None, None))
        if self._resume and not self._quiet:
            self._print(f"continue with: corral chat --resume {self._resume}")
        return 0 if sys.stdin.isatty() else self._code

    def _prompts(self) -> Iterator[str]:
        """Yield the prompts that are typed; handle the commands."""
        while True:
            text = self._read_prompt()
            if text is None or text.strip() in ("/exit", "/quit"):
                return
            match text.strip():
                case "":
                    continue
                case "/help":
                    self._print(HELP)
                case "/usage":
                    self._print(
                        f"{self._usage.input or 0:,} tokens in, {self._usage.output or 0:,} out"
                    )
                case _:
                    yield text

    def _read_prompt(self) -> str | None:
        """Read the next prompt; a backslash at the end of a line continues it. None at the end of
        the input."""
        lines: list[str] = []
        while True:
            try:
                line = _read_line("… " if lines else "> ")
            except KeyboardInterrupt:  # at the prompt Ctrl-C only clears the input
                self._print("")
                lines.clear()
                continue
            except EOFError:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    async def _turn(self, text: str) -> None:
        turn = self._session.prompt(text)
        progress = self._progress = Progress(enabled=not self._quiet)
        done = await print_turn(turn, answer_printer(progress=not self._quiet), progress)
        if done is not None:
            self._finish_turn(done, progress)

    def _finish_turn(self, done: Done, progress: Progress) -> None:
        self._usage = self._usage + done.usage
        self._resume = done.resume_token or self._resume
        self._code = exit_code(done)
        if done.status != "success" or done.files or done.denied:
            progress.summary(done)

    def _paused(self) -> AbstractContextManager[None]:
        return self._progress.paused()

    def _print(self, text: str) -> None:
        echo(text, err=True)


def _read_line(prompt: str) -> str:
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")
    import contextlib

    with contextlib.suppress(ImportError):  # arrow keys and history, where available
        import readline  # noqa: F401  # pyright: ignore[reportUnusedImport]
    return input(prompt)


async def _open(session: Session) -> None:
    await session.__aenter__()
