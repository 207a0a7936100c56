"""``corral verify``: a receipt is repeated, here or elsewhere.

A receipt says what was found; whoever has it can find it again. What it *claims* counts for
nothing. The caller says where the work began (a commit, else the merge base), what the run may have
changed, and which checks there must be; these are run with the caller's own command line. Of the
receipt come only further checks, and patterns of files that judge, never those that take one out.
Its commands may be a stranger's, so they run in the sandbox unless the caller says otherwise.

A receipt that equals what corral itself has stored on this machine is no claim, but a record: it is
repeated with what was chosen for the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from corral._core.terminal_text import one_line
from corral._system import fs, paths
from corral._system.environment import is_secret, variables
from corral._system.git import repository, scan
from corral._system.git.repository import commit_with, written_lines
from corral._system.git.scan import TooManyFiles
from corral._system.sandbox.sandbox import Sandbox
from corral._system.threads import in_thread
from corral._verification.check import Check, FilesCheck
from corral._verification.command_check import CommandCheck
from corral._verification.receipt_file import StoredReceipt
from corral._verification.run_trees import RepeatedTrees, RunTrees, WorkTrees
from corral._verification.verification import (
    CheckSetting,
    Verification,
    VerifyOptions,
    find_gaps,
)
from corral.errors import ConfigError, StorageFailed
from corral.receipt import Evidence, Receipt, Scope
from corral.values import JsonObject, as_texts, number_or_none

Answer: TypeAlias = Literal["same", "stale", "differs", "another repository", "edited"]
MOST_NAMES = 20


class Demands(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller says, whatever a receipt claims."""

    commands: tuple[str, ...] = ()
    """Checks that must be repeated."""
    is_required: bool = False
    """All of the evidence must be repeated."""
    before: str | None = None
    """A commit or a branch: the work began where its history and that of ``HEAD`` meet."""
    uncommitted: bool = False
    """What the receipt says was not committed before the run counts."""
    work: tuple[str, ...] = ()
    judge_files: tuple[str, ...] = ()

    @property
    def is_strict(self) -> bool:
        return self.is_required or bool(self.commands)


class Repetition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the repetition of a receipt has shown."""

    answer: Answer
    reasons: tuple[str, ...] = ()
    """What differs, one sentence each."""
    not_repeated: tuple[str, ...] = ()
    """Checks that only the run itself can make."""
    evidence: tuple[Evidence, ...] = ()
    """What was found now."""
    scope: Scope | None = None
    """Which rule held now."""
    work: tuple[str, ...] = ()
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
    demands: Demands | None = None,
    earlier: Path | None = None,
) -> Repetition:
    """Repeat a receipt with the files of ``folder``. ``own`` is an empty folder; in ``earlier`` the
    run has stored its trees. Raises ``ConfigError`` if no check of it can be repeated, and
    ``StorageFailed`` if files from before the run are not here."""
    receipt, demands = stored.receipt, demands or Demands()
    if stored.is_edited:
        return Repetition(answer="edited", reasons=("its hash is not that of its content",))
    checks = [_check_of(fields, demands, is_trusted=sandbox is None) for fields in receipt.checks]
    if demands.is_required and not demands.commands and not stored.is_own:
        raise ConfigError(
            "--require: the checks of a receipt that was not made on this machine are claims",
            hint="Say which checks there must be: --verify CMD.",
        )
    if refused := _not_as_demanded(stored, checks, demands):
        return Repetition(answer="differs", reasons=tuple(refused))
    if not any(checks) or receipt.before is None or receipt.clean is None:
        raise ConfigError(
            "no check of this receipt can be repeated",
            hint="Commands and files can be; functions are known only to the run itself.",
        )
    if (other := await in_thread(_other_repository, receipt, folder)) is not None:
        return Repetition(answer="another repository", reasons=(other,))
    # What another check leaves in the tree is not there for those that the caller names.
    order = sorted(
        (number for number, check in enumerate(checks) if check is not None),
        key=lambda number: _is_demanded(checks[number], demands),
        reverse=True,
    )
    repeated = tuple(check for number in order if (check := checks[number]) is not None)
    options = _options(stored, repeated, demands)
    try:
        trees = await in_thread(_trees, stored, options, folder, demands, (own, earlier))
    except (OSError, TooManyFiles) as error:
        raise StorageFailed(f"the files of {folder} cannot be read: {error}") from error
    if trees is None:
        inside = one_line(receipt.inside) or "the top of the repository"
        reason = f"its checks ran in another folder: {inside} (--folder)"
        return Repetition(answer="differs", reasons=(reason,))
    if stale := trees.stale:
        named = f"files changed since: {_first(stale)}"
        return Repetition(answer="stale", reasons=(named,))
    if trees.uncommitted:
        named = f"files that judge were not committed before the run: {_first(trees.uncommitted)}"
        return Repetition(answer="differs", reasons=(f"{named} (--uncommitted counts them)",))
    setting = CheckSetting(sandbox=sandbox)
    found = await _compare(
        receipt, dict(zip(order, repeated, strict=True)), trees.work, options, setting
    )
    failed = tuple(
        f"{each.name}: it must pass, and {each.outcome} ({each.reason})"
        for each, check in zip(found.evidence, repeated, strict=True)
        if _is_demanded(check, demands) and not each.passed
    )
    if failed and found.answer == "same":
        found = msgspec.structs.replace(found, answer="differs", reasons=failed)
    work = trees.work
    lines = await in_thread(written_lines, work.store, work.before.tree, work.after.tree)
    commit: str | None = None
    if receipt.folder == "repository":
        commit = await in_thread(commit_with, folder, work.after.tree)
    return msgspec.structs.replace(found, lines=lines, commit=commit)


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES])}{more}"


def _not_as_demanded(
    stored: StoredReceipt, checks: Sequence[Check | None], demands: Demands
) -> list[str]:
    """What the receipt must have and has not, one sentence each."""
    receipt = stored.receipt
    if not demands.is_strict:
        return []
    repeated = {each.command for each in checks if isinstance(each, CommandCheck)}
    reasons = [f"it has no check {name!r}" for name in demands.commands if name not in repeated]
    is_chosen = bool(demands.work) or (stored.is_own and not demands.commands)
    if receipt.verify_from == "after" and not is_chosen:
        reasons.append("its checks used judging files as the agent left them")
    claims = [each.name for each, check in zip(receipt.evidence, checks, strict=False)
              if check is None]  # fmt: skip
    claims += [each.name for each in receipt.evidence[len(checks) :]]
    reasons += [f"{name}: this evidence cannot be repeated" for name in claims]
    if len(checks) > len(receipt.evidence) or not receipt.evidence:
        reasons.append("evidence of its checks is missing")
    return reasons


def _options(stored: StoredReceipt, checks: tuple[Check, ...], demands: Demands) -> VerifyOptions:
    """Of a record all that was chosen for the run, of a claim only what makes more files judge."""
    receipt = stored.receipt
    if stored.is_own:
        return VerifyOptions(
            checks=checks,
            verify_from="before" if demands.work else receipt.verify_from,
            work=demands.work or receipt.work,
            judge_files=(*receipt.judge_files, *demands.judge_files),
        )
    more = (pattern for pattern in receipt.judge_files if not pattern.lstrip().startswith("!"))
    return VerifyOptions(
        checks=checks, work=demands.work, judge_files=(*demands.judge_files, *more)
    )


def _is_demanded(check: Check | None, demands: Demands) -> bool:
    return isinstance(check, CommandCheck) and check.command in demands.commands


async def _compare(
    receipt: Receipt,
    checks: Mapping[int, Check],
    trees: WorkTrees,
    options: VerifyOptions,
    setting: CheckSetting,
) -> Repetition:
    """``checks``: those that are repeated, by their number in the receipt, in their order."""
    verification = Verification(options, str(trees.root / trees.inside), trees.store.parent)
    found, gaps = await verification.run_checks(trees, None, setting)
    reasons: list[str] = []
    if receipt.clean is not None and trees.clean.tree != receipt.clean.tree:
        reasons.append("the tree in which the checks run is another one")
    new_evidence = dict(zip(checks, found, strict=True))
    merged: list[Evidence] = []
    for number, old in enumerate(receipt.evidence):
        merged.append(new := new_evidence.get(number, old))
        if difference := _difference(old, new):
            reasons.append(f"{old.name}: {difference}")
    if len(receipt.evidence) < len(receipt.checks):
        reasons.append("evidence of some of its checks is missing")
    gaps = [*find_gaps(merged), *gaps]
    if receipt.verdict == "verified" and gaps:
        # Another tree is explained by the files that were put back in it.
        reasons += gaps if not reasons else gaps[len(find_gaps(merged)) :]
    has_failed = bool(receipt.gaps) or receipt.run.status != "success"
    if receipt.verdict == "verified" and has_failed:
        reasons.append("its verdict does not follow from its evidence")
    return Repetition(
        answer="differs" if reasons else "same",
        reasons=tuple(reasons),
        not_repeated=tuple(
            old.name for number, old in enumerate(receipt.evidence) if number not in checks
        ),
        evidence=tuple(found),
        scope=options.scope,
        work=options.work,
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


def _check_of(fields: JsonObject, demands: Demands, *, is_trusted: bool) -> Check | None:
    """The check that a receipt describes; None if it cannot be repeated. One that the caller has
    named is run as the caller wrote it. One that is not trusted gets no secret that it names."""
    if fields.get("kind") == "files" and (names := as_texts(fields.get("paths"))):
        return FilesCheck(tuple(names))
    argv = as_texts(fields.get("argv"))
    if fields.get("kind") != "command" or not argv:
        return None
    names, env = as_texts(fields.get("variables")), variables()
    # What is shown is what is run.
    shown = argv[2] if argv[:2] == ["sh", "-c"] and len(argv) == 3 else " ".join(argv)
    return CommandCheck(
        argv=("sh", "-c", shown) if shown in demands.commands else tuple(argv),
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
    options: VerifyOptions,
    folder: Path,
    demands: Demands,
    stores: tuple[Path, Path | None],
) -> RepeatedTrees | None:
    """None if the checks of the receipt ran in another folder than that of the caller."""
    receipt, (own, earlier) = stored.receipt, stores
    found = scan.find_repository(folder)
    root = folder if found is None or found.top is None else found.top
    inside = Path(fs.real_path(root)) / receipt.inside
    if not paths.is_inside(fs.real_path(inside), fs.real_path(root)):
        named = one_line(receipt.inside)
        raise ConfigError(f"the receipt names a folder outside of the tree: {named}")
    if not stored.is_own and fs.real_path(inside) != fs.real_path(folder):
        return None
    if not fs.is_dir(inside):
        # Gone with all its files: these are named as changed.
        inside = root
    trees = RunTrees(str(inside), own, options.choice, more=earlier)
    is_record = stored.is_own and demands.before is None
    base = None if is_record else _base(folder, demands.before)
    return trees.repeat(receipt, stored.path, base, uncommitted=demands.uncommitted)


def _base(folder: Path, named: str | None) -> str:
    """The commit that the work began at: where the history of ``HEAD`` meets that of the commit
    that the caller names, else of the branch that ``origin`` offers first. Raises ``ConfigError``
    and ``StorageFailed``."""
    if named is None:
        default = "refs/remotes/origin/HEAD"
        has_default = repository.check(folder, "rev-parse", "--verify", "--quiet", default)
        named = default if has_default else "HEAD"
    head = repository.commit_of(folder, "HEAD")
    try:
        other = repository.commit_of(folder, named)
    except StorageFailed as error:
        raise ConfigError(f"--before: there is no commit {named!r} (git fetch?)") from error
    base = repository.merge_base(folder, head, other)
    if base is None:
        raise ConfigError(
            f"{named} and the current commit have no commit in common here",
            hint="Fetch the history, or name the commit that the work began at: --before COMMIT.",
        )
    return base
