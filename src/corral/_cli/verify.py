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
from corral._core.neutral import log_text
from corral._system import fs, threads
from corral.errors import ConfigError, ResumeLost, SandboxFailed, StorageFailed
from corral.options import RunOptions, check_scope
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
        before: str | None
        uncommitted: bool
        work: tuple[str, ...]
        judge_files: tuple[str, ...]
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
    "This check must be in the receipt and pass; it is run as you write it (repeatable).",
    multiple=True,
)
@option(
    "Verification",
    "--before COMMIT",
    "The commit that the work began at, or a branch that it will be merged into.  [default: the"
    " merge base with origin's branch, else HEAD]",
)
@option(
    "Verification",
    "--uncommitted",
    "Count files that judge and that were not committed before the run.",
)
@option(
    "Verification",
    "--work PATTERN",
    "What the run may have changed; all else is as before it (repeatable).",
    multiple=True,
)
@option(
    "Verification",
    "--judge-file judge_files PATTERN",
    "More files that judge the work; !PATTERN takes one out (repeatable).",
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
    clean tree. What a receipt claims counts for nothing: --verify says which checks there must be,
    and --before where the work began. A receipt of a run on this machine needs neither.

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
    found = _repeat(stored, folder, flags, earlier)
    if flags["as_json"]:
        verdict = {"verdict": stored.receipt.verdict, **msgspec.to_builtins(found)}
        echo_json(msgspec.json.encode(verdict))
    else:
        _print(stored.receipt, found)
    if flags["summary"] is not None:
        text = f"{found.answer}; the receipt says {stored.receipt.verdict}"
        append_summary(Path(flags["summary"]), _as_repeated(stored.receipt, found), text)
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
        session, _, number = stored.receipt.run.run_id.rpartition(".")
        try:
            record = store.find(session)
        except (ResumeLost, ConfigError):
            return stored, None
        kept = record.receipt_file(stored.receipt.run.run_id)
        if record.meta.id == session and number.isdecimal() and fs.is_file(kept):
            stored = msgspec.structs.replace(stored, is_own=_is_same(stored, read_receipt(kept)))
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
    stored = read_receipt(folder / f"{max(numbers)}.json")
    return msgspec.structs.replace(stored, is_own=True), _existing(record.folder / TREES)


def _is_same(one: StoredReceipt, other: StoredReceipt) -> bool:
    is_edited = one.is_edited or other.is_edited
    return not is_edited and one.receipt.hash == other.receipt.hash


def _names(folder: Path) -> list[str]:
    return fs.list_names(folder) if fs.is_dir(folder) else []


def _existing(folder: Path) -> Path | None:
    return folder if fs.is_dir(folder) else None


def _repeat(
    stored: StoredReceipt, folder: Path, flags: VerifyFlags, earlier: Path | None
) -> Repetition:
    from corral._verification.clean_tree import own_folder
    from corral._verification.repeat import Demands, repeat

    check_scope("before", flags["work"], put_back=False)
    demands = Demands(
        commands=flags["verify"],
        is_required=flags["require"] is not None,
        before=flags["before"],
        uncommitted=flags["uncommitted"],
        work=flags["work"],
        judge_files=flags["judge_files"],
    )
    box = None if stored.is_edited or flags["sandbox"] == "off" else _sandbox(folder)
    own = own_folder()
    enable_gc()
    try:
        repeating = repeat(stored, folder, box, own, demands=demands, earlier=earlier)
        return threads.run_event_loop(repeating)
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
    from corral._core.receipt_text import scope_text

    lines = [f"{found.answer}; the verdict of the receipt is {receipt.verdict}"]
    lines += [f"  {reason}" for reason in found.reasons]
    for evidence in found.evidence:
        how = evidence.outcome + (f": {evidence.reason}" if evidence.reason else "")
        lines.append(f"  {evidence.kind:9} {evidence.name} → {how}")
    lines += [f"  not repeated: {name}" for name in found.not_repeated]
    if found.evidence:
        lines.append(f"  scope: {scope_text(_as_repeated(receipt, found))}")
    lines += [f"  judging files by pattern: {pattern}" for pattern in receipt.judge_files]
    lines += [f"  gap: {gap}" for gap in receipt.gaps]
    for line in lines:  # a stranger's text
        echo(log_text(line))


def _as_repeated(receipt: Receipt, found: Repetition) -> Receipt:
    """The receipt with the rule that held now."""
    if not found.evidence:
        return receipt
    return msgspec.structs.replace(receipt, scope=found.scope, work=found.work)


def _add_note(folder: Path, receipt: Receipt, found: Repetition) -> None:
    """Raises ``ConfigError`` and ``StorageFailed``."""
    from corral._system.git import repository

    repository.require_repository(folder)
    if not found.commit:
        raise ConfigError(
            "no commit has the files that the receipt is about",
            hint="Commit the work first: the note is added to the current commit.",
        )
    repository.add_note(folder, found.commit, msgspec.json.encode(receipt))
    echo_err(f"corral: added to {found.commit[:12]}: git notes --ref={repository.RECEIPTS} show")


def _write_trace(path: Path, receipt: Receipt, found: Repetition) -> None:
    """Raises ``StorageFailed``."""
    from corral._verification.agent_trace import trace_record

    record = trace_record(receipt, found.lines, found.commit)
    try:
        fs.write_atomically(path, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
