"""``corral outputs``: check what a run without rights wants to have done, and do it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click

from corral._cli.command_types import Decorator, all_of, examples, plain_option
from corral._cli.ui.terminal import echo, echo_json
from corral._system import threads
from corral.errors import ConfigError

if TYPE_CHECKING:
    from corral._review.outputs import Allowed

C = TypeVar("C", bound=Callable[..., object])


class AllowFlags(TypedDict):
    """The values of ``allow_options``."""

    comments: int
    label: tuple[str, ...]
    patch_path: tuple[str, ...]
    max_files: int


allow_options: Decorator = all_of(
    (
        plain_option("--comments", "Number of comments.", type=click.IntRange(0, 20), default=1),
        plain_option("--label NAME...", "A label that may be added."),
        plain_option(
            "--patch-path PATTERN...",
            "Files that a patch may change, as in .gitignore. Without it, no patch is allowed.",
        ),
        plain_option(
            "--max-files", "Files that a patch may change.", type=click.IntRange(1), default=20
        ),
    )
)


def _allowed(flags: AllowFlags) -> Allowed:
    from corral._review.outputs import Allowed

    return Allowed(
        comments=flags["comments"],
        labels=flags["label"],
        patch_paths=flags["patch_path"],
        max_files=flags["max_files"],
    )


@click.group("outputs")
def command() -> None:
    """Apply what a run without rights wants to have done.

    A run that reads a stranger's text gets no token. It writes a file of outputs: comments, labels,
    a patch. `corral outputs apply` checks the complete file and applies it with the token.
    """


@command.command(
    "apply",
    epilog=examples(
        "corral outputs apply outputs.json --github",
        "corral outputs apply outputs.json --github --label bug --comments 2",
    ),
)
@click.argument("file", type=click.Path(), metavar="FILE")
@plain_option("--github host", "Use the API of GitHub, with GITHUB_TOKEN.", flag_value="github")
@plain_option("--gitlab host", "Use the API of GitLab, with GITLAB_TOKEN.", flag_value="gitlab")
@plain_option("--dry-run", "Only check, and print what would be done.")
@plain_option(
    "--number", "The pull request or merge request.  [default: that of the CI job]",
    type=click.IntRange(1),
)  # fmt: skip
@plain_option("--replace", "Remove the comments that were made in this way before.")
@plain_option("--cwd DIR", "The repository that a patch changes.", default=".")
@allow_options
def apply(
    file: str,
    host: str | None,
    dry_run: bool,
    number: int | None,
    replace: bool,
    cwd: str,
    **flags: Unpack[AllowFlags],
) -> None:
    """Check the outputs in FILE (- is stdin) and apply them.

    If one output is not allowed, nothing is done. The texts become plain text in Markdown: no
    links, images, mentions or commands. A patch changes the files of the repository and commits
    nothing; it never changes .git, CI settings, settings and instructions of agents, or links.

    \b
    Exit codes: 0 done · 5 an output is not allowed, nothing was done · 2 bad input · 6 the token
    is not valid, or has not the rights
    """
    from corral._review import apply as applying
    from corral._review import outputs

    chosen = applying.host_of(host)
    if chosen is None and not dry_run:
        raise ConfigError("where to apply it is missing", hint="--github, --gitlab or --dry-run.")
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    checked = outputs.check(outputs.decode(data), _allowed(flags), Path(cwd))
    if dry_run or chosen is None:
        for line in applying.preview(checked):
            echo(line)
        return
    threads.run_event_loop(
        applying.apply(checked, lambda: applying.find_target(chosen, number), echo, replace=replace)
    )


@command.command("schema")
@allow_options
def schema(**flags: Unpack[AllowFlags]) -> None:
    """Print the JSON Schema of outputs, for `corral run --schema`."""
    import msgspec

    from corral._review import outputs

    echo_json(msgspec.json.encode(outputs.schema(_allowed(flags))))
