"""``corral chat``: a conversation at the terminal with any agent or model."""

from __future__ import annotations

import asyncio
import sys
from typing import Unpack

import click

from corral.cli.chat.conversation import Conversation
from corral.cli.chat.prompt_reader import PromptReader
from corral.cli.chat.slash_commands import (
    EndChat,
    completions,
    is_command,
    prompt_of,
    recap,
    run_command,
)
from corral.cli.options import PolicyFlags, agent_option, choose_agent, policy_options
from corral.cli.run_options import EVERYWHERE, read_options, run_options
from corral.cli.sections import SectionedCommand, option
from corral.cli.ui.terminal import echo
from corral.errors import CallerError, CorralError
from corral.run_kwargs import RunKwargs


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

    Each line is a prompt, from the terminal or from stdin; pasted lines are one
    prompt. The conversation is stored; --resume continues it. /help lists the
    commands: change the model, show the cost, undo changes of files, and more.
    """
    options = read_options(flags)
    options["record"] = options.setdefault("keep", True)
    agent = choose_agent(agent, options)
    with asyncio.Runner() as runner:
        chat = Conversation(runner, agent, options, quiet=flags["quiet"])
        chat.open()
        try:
            code = _converse(chat, options, quiet=flags["quiet"])
        finally:
            chat.close()
    if chat.resume_token and chat.spent.prompts and not flags["quiet"]:
        echo(f"continue with: corral chat --resume {chat.resume_token}", err=True)
    return 0 if sys.stdin.isatty() else code


def _converse(chat: Conversation, options: RunKwargs, *, quiet: bool) -> int:
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
