"""Where a run works: a folder as it is, shared; or one of its own, at a commit of a repository.

Its own is a git worktree in corral's folder. What its nodes changed is kept as a branch of
the repository (``corral/<run>``), anew after each node that did well: so a run that goes on
on another machine that has the repository goes on from there, and nobody's own tree is
touched. At the end the branch stays, a patch is among the artefacts, and the folder goes.
"""

from __future__ import annotations

import asyncio
import contextlib
from hashlib import blake2b
from pathlib import Path

import msgspec

from corral.engine.journal import Setting
from corral.errors import ConfigError, StorageFailed
from corral.events import Json
from corral.io import folders, worktrees
from corral.io.worktrees import Change, Tree
from corral.pipelines.folder import RunFolder

PATCH = "changes.patch"


def own_place(run_id: str) -> Path:
    """Where this run's worktree is."""
    digest = blake2b(run_id.encode(), digest_size=8).hexdigest()
    return folders.home() / "workspaces" / digest


def at_commit(run_id: str, repository: Path, commit: str | None) -> tuple[str, str, str]:
    """Workspace, repository and commit of a run that works in a worktree of its own; without a
    commit, at the one that is checked out. Raises ``ConfigError``. Blocking."""
    root, head = worktrees.root_of(repository)
    if commit is not None:
        try:
            head = worktrees.commit_of(root, commit)
        except StorageFailed as error:
            raise ConfigError(f"{root} has no commit {commit!r}", hint=error.message) from error
    return str(own_place(run_id) / "tree"), str(root), head


def kept_at(setting: Setting, run_id: str) -> str | None:
    """The commit that a run's work is kept at by now. Blocking."""
    if not setting.repository:
        return None
    with contextlib.suppress(StorageFailed):
        return worktrees.commit_of(Path(setting.repository), f"refs/heads/{_branch(run_id)}")
    return setting.commit


async def ready(setting: Setting, run_id: str) -> None:
    """See that the worktree is there; made where it is not, with what was kept of it. Raises
    ``StorageFailed``."""
    if not setting.repository or Path(setting.workspace).is_dir():  # noqa: ASYNC240
        return
    root = Path(setting.repository)
    commit = setting.commit
    with contextlib.suppress(StorageFailed):
        name = f"refs/heads/{_branch(run_id)}"
        commit = await asyncio.to_thread(worktrees.commit_of, root, name)
    own_place(run_id).mkdir(parents=True, exist_ok=True)
    tree = await worktrees.make(root, commit, Path(setting.workspace))
    folders.write_private(_notes(run_id), msgspec.json.encode(tree, enc_hook=str))


async def keep(setting: Setting, run_id: str, message: str) -> Change | None:
    """Put what is changed there on the run's branch; None where nothing is. Raises
    ``StorageFailed``."""
    tree = _tree(run_id)
    if not setting.repository or tree is None:
        return None
    since = msgspec.structs.replace(tree, commit=setting.commit)
    return await worktrees.keep(since, _branch(run_id), message)


async def close(setting: Setting, run_id: str) -> dict[str, Json]:
    """The run is over: what came of its work. The folder goes, once its work is safe."""
    tree = _tree(run_id)
    if not setting.repository or tree is None:
        return {}
    try:
        change = await keep(setting, run_id, f"corral: the work of {run_id}")
        if change is not None and change.patch:
            artefacts = RunFolder(setting.folder).artifacts
            artefacts.mkdir(parents=True, exist_ok=True)
            (artefacts / PATCH).write_text(change.patch, "utf-8")
    except (StorageFailed, OSError) as error:
        return {"error": str(error), "folder": setting.workspace}
    await worktrees.remove(tree)
    _notes(run_id).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        own_place(run_id).rmdir()
    if change is None:
        return {"files": []}
    return {"branch": change.branch, "commit": change.commit, "files": [*change.files]}


def _branch(run_id: str) -> str:
    return worktrees.branch_of(run_id)


def _notes(run_id: str) -> Path:
    return own_place(run_id) / "tree.json"


def _tree(run_id: str) -> Tree | None:
    try:
        return msgspec.json.decode(_notes(run_id).read_bytes(), type=Tree, dec_hook=_path)
    except FileNotFoundError:
        return None


def _path(kind: type, value: object) -> Path:
    return Path(str(value))
