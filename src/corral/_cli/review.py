"""``corral review``: agents review a diff; findings for people, code scanning and CI systems."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Unpack

import click

from corral._cli.command_types import SectionedCommand, examples, option
from corral._cli.options import (
    AGENTS,
    EVERYWHERE,
    FAKE,
    count_option,
    given_options,
    limit_texts,
    read_agents,
    run_options,
)
from corral._cli.ui.terminal import answer, echo_err
from corral._core.terminal_text import any_of, counted
from corral._system import paths
from corral.errors import ConfigError, PromptError
from corral.run_kwargs import RunKwargs

if TYPE_CHECKING:
    from corral._review.result import Review

NOT_HERE = (
    *("expand_files", "system_prompt", "include_directories", "program", "pass_env", "inherit"),
    *("mcp_servers", "strict", "remote_answers", "answer_timeout", "notify", "notify_on"),
)
"""Options that would give the reviewer more than the diff and the files, or belong to one agent."""
OPTIONS = tuple(name for name in EVERYWHERE if name not in NOT_HERE)
FORMATS = ("text", "markdown", "github", "sarif", "junit", "json")
LEVELS = ("low", "medium", "high", "critical")
CI_TOKENS = (
    *("GITHUB_TOKEN", "GH_TOKEN", "ACTIONS_RUNTIME_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"),
    *("GITLAB_TOKEN", "CI_JOB_TOKEN", "CI_REPOSITORY_URL", "CI_REGISTRY_PASSWORD"),
    *("CI_DEPLOY_PASSWORD", "CI_DEPENDENCY_PROXY_PASSWORD", "SYSTEM_ACCESSTOKEN"),
)
"""Variables with tokens of a CI system. Some agents would take one as their login."""


class ReviewFlags(RunKwargs):
    """The options of the command."""

    patch: str | None
    agent: tuple[str, ...]
    about: str | None
    instructions: str
    exclude: tuple[str, ...]
    diff_only: bool
    max_parts: int
    concurrency: int
    formats: tuple[str, ...]
    outputs: str | None
    fail_on: str | None
    quiet: bool


class _OutputTarget(NamedTuple):
    """Where the review is written in one format."""

    format: str
    path: str | None
    """None is stdout."""


@click.command(
    "review",
    cls=SectionedCommand,
    epilog=examples(
        "corral review --fail-on high",
        "corral review main...HEAD --agent claude,codex --max-cost 0.50",
    ),
)
@click.argument("change", required=False, metavar="[RANGE|-]")
@option("Prompt", "--patch FILE", "Review the diff in this file; - is stdin.")
@option(
    "Prompt",
    "--about FILE",
    "What the author says about the change, such as the text of the pull request.",
)
@option("Prompt", "--instructions TEXT", "What you want reviewed.", default="")
@option("Prompt", "--exclude PATTERN...", "Leave out files, as in .gitignore.")
@option("Prompt", "--diff-only", "The reviewer sees the diff, and no files.")
@AGENTS
@run_options(OPTIONS, texts=limit_texts("all agents together"))
@count_option("--max-parts", "A larger diff is divided into parts, at most this many.", 8)
@count_option("-n --concurrency", "Number of concurrent runs.", 4)
@option(
    "Output",
    "--format formats NAME[=FILE]...",
    "text, markdown, github, sarif, junit or json; without FILE to stdout.  [default: text]",
)
@option("Output", "--outputs FILE", "Write what `corral outputs apply` posts as a comment.")
@option(
    "Output",
    "--fail-on",
    "Exit with 13 if a finding has this severity or a worse one.",
    type=click.Choice(LEVELS),
)
@option("Output", "-q --quiet", "Print only the review.")
@FAKE
def command(change: str | None, **flags: Unpack[ReviewFlags]) -> int:
    """Let agents review a diff.

    RANGE is as for git diff: main...HEAD, A..B, or a commit that the files are compared with.
    Without it, everything since the default branch is reviewed, also what is not committed. With -
    the diff is read from stdin.

    The diff is a stranger's text: the reviewer may read a copy of the files and nothing else. It
    has no shell, no network, no right to write and no token of a CI system.

    \b
    Exit codes: 0 reviewed, or nothing to review · 13 a finding of --fail-on · 2 bad input, nothing
    was spent · 130 interrupted · others: an agent has failed; what others found is printed
    """
    for name in CI_TOKENS:
        os.environ.pop(name, None)
    # Not the corral.toml of this folder: in CI it is that of the change.
    user_config = paths.user_config()
    os.environ.setdefault("CORRAL_CONFIG", str(user_config) if user_config.is_file() else "")
    targets = read_targets(flags["formats"])
    for path in (flags["outputs"], *(target.path for target in targets)):
        _check_folder(path)
    patch = None
    if change == "-" or flags["patch"] is not None:
        if change is not None and flags["patch"] is not None:
            raise ConfigError("a range and --patch are both given", hint="Give one of them.")
        patch, change = _read_bytes(flags["patch"] or "-"), None
    about = "" if flags["about"] is None else _read_bytes(flags["about"]).decode("utf-8", "replace")
    found = _run(change, patch, about, flags)
    if found is None:
        from corral._cli.ui.signals import INTERRUPTED

        echo_err("corral: interrupted")
        return INTERRUPTED
    _write(found, targets, flags["outputs"])
    return _exit_code(found, flags["fail_on"])


def read_targets(given: Sequence[str]) -> list[_OutputTarget]:
    """The values of ``--format``. Raises ``ConfigError``."""
    targets: list[_OutputTarget] = []
    for each in given or ("text",):
        name, equals, path = each.partition("=")
        if name not in FORMATS or (equals and not path):
            raise ConfigError(
                f"--format {each}: it must be NAME or NAME=FILE",
                hint=f"NAME is one of {', '.join(FORMATS)}.",
            )
        targets.append(_OutputTarget(name, path or None))
    if sum(target.path is None for target in targets) > 1:
        raise ConfigError(
            "two formats are for stdout", hint="Give a file for one: --format sarif=review.sarif."
        )
    return targets


def _check_folder(path: str | None) -> None:
    """A review that cannot be written would be paid for nothing."""
    if path is not None and (
        os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or ".")
    ):
        raise ConfigError(f"{path} cannot be written", hint="Its folder must exist.")


def _read_bytes(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror}") from error


def note_of(*, quiet: bool) -> Callable[[str], None]:
    """Prints what a review does."""
    from corral._core.neutral import log_text

    def note(text: str) -> None:
        if not quiet:
            echo_err(f"corral: {log_text(text)}")

    return note


def _run(change: str | None, patch: bytes | None, about: str, flags: ReviewFlags) -> Review | None:
    from corral._cli.ui.signals import run_cancellable
    from corral._review import api

    values: Mapping[str, object] = flags
    return run_cancellable(
        api.run(
            change,
            patch=patch,
            agents=read_agents(flags["agent"]),
            about=about,
            instructions=flags["instructions"],
            exclude=flags["exclude"],
            diff_only=flags["diff_only"],
            max_parts=flags["max_parts"],
            concurrency=flags["concurrency"],
            on_note=note_of(quiet=flags["quiet"]),
            **given_options({name: values.get(name) for name in OPTIONS}),
        )
    )


def _write(found: Review, targets: Sequence[_OutputTarget], outputs: str | None) -> None:
    from corral._core.neutral import log_text
    from corral._review.formats import FORMATS as WRITERS
    from corral._review.outputs import encode, of_review

    if outputs is not None:
        _write_file(outputs, encode(of_review(found)))
    for target in targets:
        text = WRITERS[target.format](found)
        if target.path is None:
            answer(text if target.format == "github" else log_text(text))
        else:
            _write_file(target.path, text.encode("utf-8", "replace"))


def _write_file(path: str, data: bytes) -> None:
    with open(path, "wb") as file:  # not replaced: GitHub's summary file exists already
        file.write(data)


def _exit_code(found: Review, fail_on: str | None) -> int:
    from corral._cli.run_result import FAILED_ON
    from corral.errors import classes_by_code

    if fail_on is not None:
        severe = LEVELS[LEVELS.index(fail_on) :]
        count = sum(finding.severity in severe for finding in found.findings)
        if count:
            what = f"{counted(count, 'finding')} of severity {any_of(severe)}"
            echo_err(f"corral: {what} (--fail-on {fail_on})")
            return FAILED_ON
    failed = next((run for run in found.runs if run.error), None)
    if failed is None:
        return 0
    kind = classes_by_code().get(failed.error_code)
    return kind.cli_exit if kind else 1
