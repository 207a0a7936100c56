"""``corral verify``: repeat a receipt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
import msgspec

from corral._cli.command_types import SectionedCommand, enable_gc, examples, option
from corral._cli.options import JSON, resolve_last
from corral._cli.ui.terminal import echo, echo_err, echo_json
from corral._cli.verdict import REQUIRE, SUMMARY, VerdictRule, append_summary
from corral._system import fs, threads
from corral.errors import ConfigError, ResumeLost, SandboxFailed, StorageFailed
from corral.options import RunOptions
from corral.policy import Policy
from corral.receipt import Receipt
from corral.values import Json

if TYPE_CHECKING:
    from corral._system.sandbox.sandbox import Sandbox
    from corral._verification.receipt_file import StoredReceipt
    from corral._verification.repeat import Repetition

    class VerifyFlags(TypedDict):
        """The options of the command."""

        folder: str
        sandbox: str
        verify: tuple[str, ...]
        require: str | None
        git_note: bool
        agent_trace: str | None
        schema: bool
        summary: str | None
        as_json: bool


STALE, DIFFERS, OTHER = 15, 16, 17
EXIT_CODES = {
    "same": 0,
    "stale": STALE,
    "differs": DIFFERS,
    "another repository": OTHER,
    "edited": OTHER,
}


@click.command(
    "verify",
    cls=SectionedCommand,
    epilog=examples("corral verify receipt.json", "corral verify last"),
)
@click.argument("receipt", required=False)
@option(
    "Verification",
    "-C --folder DIR",
    "The work that the receipt is about.  [default: here]",
    default=".",
    type=click.Path(),
)
@option(
    "Verification",
    "--verify CMD",
    "The receipt must have this check (repeatable).",
    multiple=True,
)
@REQUIRE
@option(
    "Permissions",
    "--sandbox MODE",
    "Where its commands run: in corral's sandbox without a network (require), or not (off).",
    type=click.Choice(("require", "off")),
    default="require",
)
@option(
    "Output", "--git-note", "If it says the same, add it as a note to the commit with these files."
)
@option(
    "Output",
    "--agent-trace FILE",
    "If it says the same, write which lines the agent wrote, in the format of Agent Trace.",
)
@option("Output", "--schema", "Print the JSON Schema of receipts.")
@SUMMARY
@JSON
def command(receipt: str | None, **flags: Unpack[VerifyFlags]) -> int:
    """Repeat RECEIPT: a file, the id of a session or 'last'.

    The files are compared with those that the receipt is about, and its checks are made again in a
    clean tree. They are commands that the receipt names: read them if it is not yours.

    \b
    Exit codes: 0 it says the same · 1 it cannot be repeated · 2 usage, or no receipt ·
    14 the verdict is not that of --require · 15 stale: files changed since ·
    16 it differs · 17 it was edited, or is about another repository
    """
    if flags["schema"]:
        echo_json(msgspec.json.format(msgspec.json.encode(receipt_schema())))
        return 0
    if receipt is None:
        raise ConfigError("which receipt?", hint="Give a file, the id of a session or 'last'.")
    folder = Path(os.path.abspath(flags["folder"]))
    if not fs.is_dir(folder):
        raise ConfigError(f"there is no folder {folder}")
    stored, earlier = _find(receipt)
    found = _required(stored, flags) or _repeat(stored, folder, flags["sandbox"], earlier)
    if flags["as_json"]:
        verdict = {"verdict": stored.receipt.verdict, **msgspec.to_builtins(found)}
        echo_json(msgspec.json.encode(verdict))
    else:
        _print(stored.receipt, found)
    if flags["summary"] is not None:
        text = f"{found.answer}; the receipt says {stored.receipt.verdict}"
        append_summary(Path(flags["summary"]), stored.receipt, text)
    if found.answer != "same":
        return EXIT_CODES[found.answer]
    if flags["git_note"]:
        _add_note(folder, stored.receipt, found)
    if flags["agent_trace"] is not None:
        _write_trace(Path(flags["agent_trace"]), stored.receipt, found)
    return VerdictRule(flags["require"]).finish(0, stored.receipt)


def receipt_schema() -> Json:
    """The published JSON Schema: ``docs/receipt.schema.json``."""
    from corral._protocol.schema import without_samples

    return without_samples(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Receipt of a run of corral",
            **msgspec.json.schema(Receipt),
        }
    )


def _find(name: str) -> tuple[StoredReceipt, Path | None]:
    """The receipt, and where the run has stored its trees. Raises ``ConfigError``."""
    from corral._sessions import store
    from corral._sessions.run_verifier import TREES
    from corral._verification.receipt_file import read_receipt

    if fs.exists(name):
        stored = read_receipt(Path(name))
        try:
            record = store.find(stored.receipt.run.run_id.rpartition(".")[0])
        except (ResumeLost, ConfigError):
            return stored, None
        return stored, _existing(record.folder / TREES)
    if "/" in name or name.endswith(".json"):
        raise ConfigError(f"there is no receipt {name}")
    record = store.find(resolve_last(name, "session"))
    folder = record.folder / store.RECEIPTS
    numbers = [int(stem) for file in _names(folder) if (stem := Path(file).stem).isdecimal()]
    if not numbers:
        raise ConfigError(
            f"session {record.meta.id} has no receipt", hint="Run it with --verify CMD."
        )
    return read_receipt(folder / f"{max(numbers)}.json"), _existing(record.folder / TREES)


def _names(folder: Path) -> list[str]:
    return fs.list_names(folder) if fs.is_dir(folder) else []


def _existing(folder: Path) -> Path | None:
    return folder if fs.is_dir(folder) else None


def _required(stored: StoredReceipt, flags: VerifyFlags) -> Repetition | None:
    """The answer if the receipt has not the checks that it must have; None if it has."""
    from corral._verification.repeat import Repetition

    names = {each.name for each in stored.receipt.evidence}
    missing = [f"it has no check {name!r}" for name in flags["verify"] if name not in names]
    if flags["verify"] and stored.receipt.verify_from == "after":
        missing.append("its checks used judging files as the agent left them")
    return Repetition(answer="differs", reasons=tuple(missing)) if missing else None


def _repeat(stored: StoredReceipt, folder: Path, sandbox: str, earlier: Path | None) -> Repetition:
    from corral._verification.clean_tree import own_folder
    from corral._verification.repeat import repeat

    box = None if stored.is_edited or sandbox == "off" else _sandbox(folder)
    own = own_folder()
    enable_gc()
    try:
        return threads.run_event_loop(repeat(stored, folder, box, own, earlier=earlier))
    finally:
        fs.remove_tree(own)


def _sandbox(folder: Path) -> Sandbox | None:
    """Raises ``SandboxFailed``."""
    from corral._sessions.sandbox import for_user_command

    policy = Policy(write="allow", shell="allow")
    run = RunOptions.build("corral", {"sandbox": "require", "policy": policy})
    try:
        return for_user_command(run, str(folder), ())
    except SandboxFailed as error:
        hint = f"{error.hint or ''} If its checks are yours: --sandbox off runs them as they are."
        raise SandboxFailed(error.message, hint=hint.strip()) from error


def _print(receipt: Receipt, found: Repetition) -> None:
    echo(f"{found.answer}; the verdict of the receipt is {receipt.verdict}")
    for reason in found.reasons:
        echo(f"  {reason}")
    for evidence in found.evidence:
        how = evidence.outcome + (f": {evidence.reason}" if evidence.reason else "")
        echo(f"  {evidence.kind:9} {evidence.name} → {how}")
    for name in found.not_repeated:
        echo(f"  not repeated: {name}")
    if receipt.verify_from == "after":
        echo("  its checks used judging files as the agent left them")
    for pattern in receipt.judge_files:
        echo(f"  judging files by pattern: {pattern}")
    for gap in receipt.gaps:
        echo(f"  gap: {gap}")


def _add_note(folder: Path, receipt: Receipt, found: Repetition) -> None:
    """Raises ``ConfigError`` and ``StorageFailed``."""
    from corral._system.git import notes

    notes.require_repository(folder)
    if not found.commit:
        raise ConfigError(
            "no commit has the files that the receipt is about",
            hint="Commit the work first: the note is added to the current commit.",
        )
    notes.add_note(folder, found.commit, msgspec.json.encode(receipt))
    echo_err(f"corral: added to {found.commit[:12]}: git notes --ref={notes.RECEIPTS} show")


def _write_trace(path: Path, receipt: Receipt, found: Repetition) -> None:
    """Raises ``StorageFailed``."""
    from corral._verification.agent_trace import trace_record

    record = trace_record(receipt, found.lines, found.commit)
    try:
        fs.write_atomically(path, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
