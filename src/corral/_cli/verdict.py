"""``--require`` and ``--receipt``: what a command does with the receipts of its runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypedDict

import click
import msgspec

from corral._cli.command_types import Decorator, all_of, option
from corral._cli.ui.terminal import echo_err
from corral._system import config, fs
from corral.errors import ConfigError, StorageFailed
from corral.receipt import Receipt, Verdict

NOT_VERIFIED = 14
"""Exit code of a run that succeeded, but has not the verdict of ``--require``."""
REQUIRE = option(
    "Verification",
    "--require VERDICT",
    "Exit with 14 unless the work is verified; gaps: unless it was checked.",
    type=click.Choice(("verified", "gaps")),
)
RECEIPT = option(
    "Verification", "--receipt FILE", "Write the receipt to this file, as JSON.", is_rare=True
)
SUMMARY = option(
    "Output",
    "--summary FILE",
    "Append the verdict and the evidence to this file, as Markdown.",
    is_rare=True,
)


UNTIL = option(
    "Verification",
    "--until-verified",
    "Send the agent what failed, again and again, until the work is verified. The best state is"
    " kept.",
)
FURTHER = option(
    "Verification",
    "--rounds N",
    "With --until-verified: how often, at most.  [default: 10]",
    type=click.IntRange(0),
    is_rare=True,
)


class VerdictFlags(TypedDict):
    require: str | None
    receipt: str | None
    until_verified: bool
    rounds: int | None
    summary: str | None


def verdict_options() -> Decorator:
    return all_of([REQUIRE, RECEIPT, UNTIL, FURTHER, SUMMARY])


class VerdictRule(NamedTuple):
    """What the verdict of a run must be, and where its receipt goes."""

    require: str | None = None
    receipt: str | None = None
    until_verified: bool = False
    rounds: int = 10
    """Further rounds."""
    summary: str | None = None

    @classmethod
    def read(cls, flags: VerdictFlags, options: Mapping[str, object]) -> VerdictRule:
        """Raises ``ConfigError``, before anything is spent."""
        if flags["rounds"] is not None and not flags["until_verified"]:
            raise ConfigError("--rounds needs --until-verified")
        given = {
            "--require": flags["require"],
            "--receipt": flags["receipt"],
            "--until-verified": flags["until_verified"],
            "--summary": flags["summary"],
            "--put-back": options.get("put_back"),
            "--work": options.get("work"),
            "--judge-file": options.get("judge_files"),
            "--verify-with": options.get("verify_with"),
        }
        for name, value in given.items():
            if value and not has_checks(options):
                raise ConfigError(
                    f"{name} needs --verify or --scenarios",
                    hint="For example: --verify 'pytest -q'.",
                )
        for what in ("receipt", "summary"):
            file = flags[what]
            if file is not None and not os.access(os.path.dirname(os.path.abspath(file)), os.W_OK):
                raise ConfigError(f"the {what} cannot be written to {file}: no such folder")
        rounds = cls().rounds if flags["rounds"] is None else flags["rounds"]
        return cls(
            flags["require"], flags["receipt"], flags["until_verified"], rounds, flags["summary"]
        )

    def accepts(self, verdict: Verdict) -> bool:
        return verdict in {"verified": ("verified",), "gaps": ("verified", "gaps")}.get(
            self.require or "", (verdict,)
        )

    def finish(self, code: int, receipt: Receipt | None) -> int:
        """The exit code of a run that would exit with ``code``. Writes the receipt. Raises
        ``StorageFailed``."""
        if self.receipt is not None and receipt is not None:
            write_receipt(Path(self.receipt), receipt)
        if self.summary is not None and receipt is not None:
            append_summary(Path(self.summary), receipt)
        verdict: Verdict = "unverified" if receipt is None else receipt.verdict
        if code or self.accepts(verdict):
            return code
        echo_err(f"corral: the verdict is {verdict}, and {self.require} is required")
        return NOT_VERIFIED

    def finish_batch(self, verified: int, gaps: int, total: int) -> int:
        """The exit code of a batch of ``total`` tasks, all of which succeeded."""
        enough = verified if self.require == "verified" else verified + gaps
        if self.require is None or enough == total:
            return 0
        echo_err(f"corral: {total - enough:,} of {total:,} tasks are not {self.require}")
        return NOT_VERIFIED


def append_summary(path: Path, receipt: Receipt, answer: str = "") -> None:
    """Append the receipt as Markdown. ``answer``: what repeating it has found. Raises
    ``StorageFailed``."""
    from corral._core.receipt_text import receipt_markdown

    title = f"### Verification: {answer or receipt.verdict}"
    text = f"{title}\n\n{receipt_markdown(receipt)}\n"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error


def has_checks(options: Mapping[str, object]) -> bool:
    """Whether the command or corral.toml gives checks. Raises ``ConfigError``."""
    defaults = config.load(str(options.get("agent") or ""))
    return any(given.get(name) for given in (options, defaults) for name in ("verify", "scenarios"))


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Raises ``StorageFailed``."""
    try:
        fs.write_atomically(path, msgspec.json.format(msgspec.json.encode(receipt)) + b"\n")
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
