"""``corral verify``: a receipt is repeated, here or elsewhere.

A receipt says what was found; whoever has it can find it again. Nothing in it is believed: the
files are compared with its trees, the clean tree is made again, and its commands are run in it.
They are commands of a file that may come from a stranger, so they run in the sandbox unless the
caller says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from corral._system import fs, paths
from corral._system.environment import is_secret, variables
from corral._system.git import repository, scan
from corral._system.git.notes import commit_with, written_lines
from corral._system.git.scan import TooManyFiles
from corral._system.sandbox.sandbox import Sandbox
from corral._system.threads import in_thread
from corral._verification.check import Check
from corral._verification.command_check import CommandCheck
from corral._verification.file_check import FilesCheck
from corral._verification.receipt_file import StoredReceipt
from corral._verification.run_trees import RunTrees, TreeChoice, WorkTrees
from corral._verification.verification import (
    CheckSetting,
    Verification,
    VerifyOptions,
    find_gaps,
)
from corral.errors import ConfigError, StorageFailed
from corral.receipt import Evidence, Receipt
from corral.values import JsonObject, as_texts, number_or_none

Answer: TypeAlias = Literal["same", "stale", "differs", "another repository", "edited"]
MOST_NAMES = 20


class Repetition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the repetition of a receipt has shown."""

    answer: Answer
    reasons: tuple[str, ...] = ()
    """What differs, one sentence each."""
    not_repeated: tuple[str, ...] = ()
    """Checks that only the run itself can make."""
    evidence: tuple[Evidence, ...] = ()
    """What was found now."""
    lines: dict[str, list[tuple[int, int]]] = {}
    """The lines that the run wrote."""
    commit: str | None = None
    """The current commit, if it has the files that the receipt is about."""


async def repeat(
    stored: StoredReceipt,
    folder: Path,
    sandbox: Sandbox | None,
    own: Path,
    *,
    earlier: Path | None = None,
) -> Repetition:
    """Repeat a receipt with the files of ``folder``. ``own`` is an empty folder; in ``earlier`` the
    run has stored its trees. Raises ``ConfigError`` if no check of it can be repeated, and
    ``StorageFailed`` if files from before the run are not here."""
    receipt = stored.receipt
    if stored.is_edited:
        return Repetition(answer="edited", reasons=("its hash is not that of its content",))
    checks = [_check_of(fields, is_trusted=sandbox is None) for fields in receipt.checks]
    if not any(checks) or receipt.before is None or receipt.clean is None:
        raise ConfigError(
            "no check of this receipt can be repeated",
            hint="Commands and files can be; functions are known only to the run itself.",
        )
    if (other := await in_thread(_other_repository, receipt, folder)) is not None:
        return Repetition(answer="another repository", reasons=(other,))
    try:
        trees, stale = await in_thread(_trees, stored, checks, folder, own, earlier)
    except (OSError, TooManyFiles) as error:
        raise StorageFailed(f"the files of {folder} cannot be read: {error}") from error
    if stale:
        more = f" and {len(stale) - MOST_NAMES:,} more" if len(stale) > MOST_NAMES else ""
        named = f"files changed since: {', '.join(stale[:MOST_NAMES])}{more}"
        return Repetition(answer="stale", reasons=(named,))
    found = await _compare(receipt, checks, trees, sandbox)
    lines = await in_thread(written_lines, trees.store, trees.before.tree, trees.after.tree)
    commit: str | None = None
    if receipt.folder == "repository":
        commit = await in_thread(commit_with, folder, trees.after.tree)
    return msgspec.structs.replace(found, lines=lines, commit=commit)


async def _compare(
    receipt: Receipt, checks: Sequence[Check | None], trees: WorkTrees, sandbox: Sandbox | None
) -> Repetition:
    repeated = tuple(check for check in checks if check is not None)
    options = VerifyOptions(
        checks=repeated, verify_from=receipt.verify_from, judge_files=receipt.judge_files
    )
    verification = Verification(options, str(trees.root / trees.inside), trees.store.parent)
    setting = CheckSetting(sandbox=sandbox)
    found, gaps = await verification.run_checks(trees, None, setting)
    reasons: list[str] = []
    if receipt.clean is not None and trees.clean.tree != receipt.clean.tree:
        reasons.append("the tree in which the checks run is another one")
    remaining = iter(found)
    merged: list[Evidence] = []
    for check, old in zip(checks, receipt.evidence, strict=False):
        new = old if check is None else next(remaining)
        merged.append(new)
        if difference := _difference(old, new):
            reasons.append(f"{old.name}: {difference}")
    if len(receipt.evidence) < len(checks):
        reasons.append("evidence of some of its checks is missing")
    merged += receipt.evidence[len(checks) :]
    gaps = [*find_gaps(merged), *gaps]
    if receipt.verdict == "verified" and gaps and not reasons:
        reasons += gaps
    has_failed = bool(receipt.gaps) or receipt.run.status != "success"
    if receipt.verdict == "verified" and has_failed:
        reasons.append("its verdict does not follow from its evidence")
    return Repetition(
        answer="differs" if reasons else "same",
        reasons=tuple(reasons),
        not_repeated=tuple(
            old.name for check, old in zip(checks, receipt.evidence, strict=False) if check is None
        ),
        evidence=tuple(found),
    )


def _difference(old: Evidence, new: Evidence) -> str:
    """How the evidence differs, but for its output and its time; empty if it does not."""
    if (old.kind, old.name) != (new.kind, new.name):
        return f"the receipt has the evidence of another check, {new.name}"
    if old.outcome != new.outcome:
        return f"it {new.outcome} now ({new.reason or 'it exited with 0'}), and {old.outcome} then"
    if old.exit_code != new.exit_code:
        return f"it exited with {new.exit_code} now, and with {old.exit_code} then"
    if bool(old.passed_before) != bool(new.passed_before):
        return "it judges files that the run did not change"
    return ""


def _check_of(fields: JsonObject, *, is_trusted: bool) -> Check | None:
    """The check that a receipt describes; None if it cannot be repeated. One that is not trusted
    gets no secret that it names."""
    if fields.get("kind") == "files" and (names := as_texts(fields.get("paths"))):
        return FilesCheck(tuple(names))
    argv = as_texts(fields.get("argv"))
    if fields.get("kind") != "command" or not argv:
        return None
    names, env = as_texts(fields.get("variables")), variables()
    # What is shown is what is run.
    shown = argv[2] if argv[:2] == ["sh", "-c"] and len(argv) == 3 else " ".join(argv)
    return CommandCheck(
        argv=tuple(argv),
        command=shown,
        timeout=number_or_none(fields.get("timeout")) or 600.0,
        pass_env=tuple(
            name for name in names if is_trusted or not is_secret(name, env.get(name, ""))
        ),
    )


def _other_repository(receipt: Receipt, folder: Path) -> str | None:
    """Why the folder cannot be the one that the receipt is about; None if it can be."""
    found = scan.find_repository(folder)
    is_repository = found is not None and found.top is not None
    if receipt.folder == "folder":
        return "it is about a folder that is in no repository" if is_repository else None
    if not is_repository:
        return f"{folder} is in no git repository"
    commit = "" if receipt.before is None else receipt.before.commit
    if commit and not repository.check(folder, "cat-file", "-e", f"{commit}^{{commit}}"):
        return f"the commit {commit[:12]} that the run started from is not here (git fetch?)"
    return None


def _trees(
    stored: StoredReceipt,
    checks: Sequence[Check | None],
    folder: Path,
    own: Path,
    earlier: Path | None,
) -> tuple[WorkTrees, tuple[str, ...]]:
    receipt = stored.receipt
    before, clean = receipt.before, receipt.clean
    if before is None or clean is None:
        raise ConfigError("the receipt has no trees")
    found = scan.find_repository(folder)
    root = folder if found is None or found.top is None else found.top
    inside = Path(fs.real_path(root)) / receipt.inside
    if not paths.is_inside(fs.real_path(inside), fs.real_path(root)):
        raise ConfigError(f"the receipt names a folder outside of the tree: {receipt.inside}")
    if not fs.is_dir(inside):
        # Gone with all its files: these are named as changed.
        inside = root
    choice = TreeChoice(
        verify_from=receipt.verify_from,
        judge_files=receipt.judge_files,
        commands=tuple(each.command for each in checks if isinstance(each, CommandCheck)),
    )
    trees = RunTrees(str(inside), own, choice, more=earlier)
    return trees.repeat(before, receipt.changed, clean.provided, written_since=stored.path)
