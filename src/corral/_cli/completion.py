"""``corral completion``: the script that completes commands and values in a shell.

The script calls ``corral`` with ``_CORRAL_COMPLETE`` set; ``answer`` then prints the candidates.
``agents``, ``models``, ``sessions``, ``names``, ``runs``, ``batches`` and ``comparisons`` complete
the values of options and arguments. A completion must not print an error over the line that is
being typed: what cannot be read yields no candidates.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from functools import partial

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from corral._cli.ui.terminal import echo
from corral.errors import CorralError

VARIABLE = "_CORRAL_COMPLETE"
MOST = 50
"""Sessions, runs and batches that are offered, the newest first."""
_HOW_TO = {
    "bash": 'eval "$(corral completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(corral completion zsh)"   # in ~/.zshrc',
    "fish": "corral completion fish > ~/.config/fish/completions/corral.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_HOW_TO.values()))
@click.argument("shell", type=click.Choice(list(_HOW_TO)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    source = found(ctx.find_root().command, {}, "corral", VARIABLE).source()
    echo(source.rstrip())


def answer(root: click.Command, instruction: str) -> int:
    """Print the script or the candidates that a shell asks for. Returns the exit code."""
    return shell_complete(root, {}, "corral", VARIABLE, instruction)


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completing(values: Callable[[], Iterable[tuple[str, str]]]) -> Complete:
    """Offer the values (with their descriptions) that begin with what was typed."""

    def complete(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
        found: list[CompletionItem] = []
        with contextlib.suppress(CorralError, OSError):
            found += (
                CompletionItem(value, help=text)
                for value, text in values()
                if value.startswith(typed)
            )
        return found

    return complete


@_completing
def agents() -> Iterable[tuple[str, str]]:
    from corral._system import config

    return ((agent.name, agent.title) for agent in config.all_agents())


@_completing
def models() -> Iterable[tuple[str, str]]:
    from corral._metering import prices

    return ((entry.id, "") for entry in prices.catalogue().entries())


def _sessions() -> Iterable[tuple[str, str]]:
    from corral._sessions import index

    found = index.search(index.Query(limit=MOST))
    return [("last", "the newest"), *((match.meta.id, match.meta.title) for match in found)]


@_completing
def names() -> Iterable[tuple[str, str]]:
    from corral._sessions.warm import names

    return ((session.name, session.cwd) for _, session in names.all_names())


def _folders(kind: str) -> Iterable[tuple[str, str]]:
    """What has a folder in corral's home, the newest first. Reading the database would take
    longer than a person waits for a completion."""
    from corral._system import paths

    with os.scandir(paths.home() / kind) as entries:
        found = [(entry.stat().st_mtime, entry.name) for entry in entries if entry.is_dir()]
    newest = sorted(found, reverse=True)[:MOST]
    return [("last", "the newest"), *((name, "") for _, name in newest)]


@_completing
def runs() -> Iterable[tuple[str, str]]:
    found = [*_sessions()]
    for folder in ("runs", "batches", "comparisons", "reviews", "merges"):
        with contextlib.suppress(OSError):
            found += [entry for entry in _folders(folder) if entry[0] != "last"]
    return found


sessions: Complete = _completing(_sessions)
batches: Complete = _completing(partial(_folders, "batches"))
comparisons: Complete = _completing(partial(_folders, "comparisons"))
