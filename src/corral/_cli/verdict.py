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
from corral._system import fs
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
RECEIPT = option("Verification", "--receipt FILE", "Write the receipt to this file, as JSON.")


class VerdictFlags(TypedDict):
    require: str | None
    receipt: str | None


def verdict_options() -> Decorator:
    return all_of([REQUIRE, RECEIPT])


class VerdictRule(NamedTuple):
    """What the verdict of a run must be, and where its receipt goes."""

    require: str | None = None
    receipt: str | None = None

    @classmethod
    def read(cls, flags: VerdictFlags, options: Mapping[str, object]) -> VerdictRule:
        """Raises ``ConfigError``, before anything is spent."""
        given = {"--require": flags["require"], "--receipt": flags["receipt"]}
        for name, value in given.items():
            if value is not None and not (options.get("verify") or options.get("scenarios")):
                raise ConfigError(
                    f"{name} needs --verify or --scenarios",
                    hint="For example: --verify 'pytest -q'.",
                )
        file = flags["receipt"]
        if file is not None and not os.access(os.path.dirname(os.path.abspath(file)), os.W_OK):
            raise ConfigError(f"the receipt cannot be written to {file}: no such folder")
        return cls(flags["require"], file)

    def accepts(self, verdict: Verdict) -> bool:
        return verdict in {"verified": ("verified",), "gaps": ("verified", "gaps")}.get(
            self.require or "", (verdict,)
        )

    def finish(self, code: int, receipt: Receipt | None) -> int:
        """The exit code of a run that would exit with ``code``. Writes the receipt. Raises
        ``StorageFailed``."""
        if self.receipt is not None and receipt is not None:
            write_receipt(Path(self.receipt), receipt)
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


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Raises ``StorageFailed``."""
    try:
        fs.write_atomically(path, msgspec.json.format(msgspec.json.encode(receipt)) + b"\n")
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
