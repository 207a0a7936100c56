"""Comparisons that exist: show the work of an attempt, apply it to the user's files, and remove
comparisons. Everything blocks."""

from __future__ import annotations

from pathlib import Path

from corral._comparison import store
from corral._comparison.plan import load_plan
from corral._comparison.summary import AttemptRow, ComparisonSummary, summarize
from corral._pipelines.attempts import PATCH
from corral._system import fs
from corral._system.git import command, repository, worktree
from corral.errors import ConfigError


def find_attempt(found: ComparisonSummary, text: str) -> AttemptRow:
    """The attempt with this id; or the only one of this agent, or of this task, or whose id begins
    with it. Raises ``ConfigError``."""
    rows = found.attempts
    for fits in (
        [row for row in rows if row.id == text],
        [row for row in rows if row.agent == text],
        [row for row in rows if row.task == text],
        [row for row in rows if row.id.startswith(text)],
    ):
        if len(fits) == 1:
            return fits[0]
        if fits:
            ids = ", ".join(row.id for row in fits[:8])
            raise ConfigError(f"{len(fits)} attempts fit {text!r}: {ids}")
    raise ConfigError(
        f"{found.id} has no attempt {text!r}", hint=f"See: corral runs show {found.id}"
    )


def patch_of(row: AttemptRow) -> str:
    """The changes of an attempt as a patch; empty if it has changed nothing."""
    path = Path(row.folder, PATCH)
    try:
        return fs.read_bytes(path).decode("utf-8", "replace") if row.commit else ""
    except OSError as error:
        raise ConfigError(f"the patch of {row.id} cannot be read: {error}") from error


def apply(name: str, attempt: str, *, check: bool = False) -> tuple[AttemptRow, tuple[str, ...]]:
    """Bring the changes of an attempt into the files that it started from, as they are now. Nothing
    is written if there is a conflict; nothing is committed. Returns the attempt and the changed
    files. ``check``: only find out whether it is possible. Raises ``ConfigError``."""
    plan = load_plan(store.find(name))
    row = find_attempt(summarize(plan, store.results(plan.name)), attempt)
    if row.verdict == "pending":
        raise ConfigError(f"{row.id} has not ended")
    if not row.commit:
        raise ConfigError(f"{row.id} has changed nothing")
    task = next(task for task in plan.tasks if task.id == row.task)
    root = folder = Path(task.repository)
    if root.is_relative_to(store.folder_of(plan.name)):
        # A repository of corral's own, with the files of a folder that is in none.
        folder = Path(task.folder)
        if not fs.is_dir(folder):
            raise ConfigError(f"{folder} does not exist any more")
    else:
        command.require("applying a patch")
    try:
        files = worktree.merge_into(root, folder, task.commit, row.commit, check=check)
    except worktree.Conflict as error:
        raise ConfigError(
            f"the changes of {row.id} do not fit your files: {error.message}",
            hint=f"Nothing was changed. The patch is {Path(row.folder, PATCH)}",
        ) from error
    return row, files


def remove(name: str) -> str:
    """Remove a comparison: its files, and its commits in the repositories. Returns its name. Raises
    ``ConfigError``."""
    found = store.find(name)
    if store.is_in_use(found):
        raise ConfigError(f"{found} is running", hint="Stop it first.")
    plan = load_plan(found)
    for root in {Path(task.repository) for task in plan.tasks if task.repository}:
        if fs.is_dir(root) and not root.is_relative_to(store.folder_of(found)):
            prefix = f"refs/corral/{found}/"
            for each in repository.run(root, "for-each-ref", "--format=%(refname)", prefix).split():
                repository.run(root, "update-ref", "-d", each)
    store.remove(found)
    return found
