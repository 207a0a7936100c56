"""Which session made a branch, and how it is asked to repair it.

The record of a branch is a file in corral's home, not in the repository: an agent that works in the
repository could write there what its session may do. What a batch, a pipeline or a caller stores is
the agent, the session, the folder in which it worked, and those of its options that limit it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from corral._core import spending, stored_formats
from corral._sessions.api import run
from corral._system import config, fs, paths
from corral._system.git import repository
from corral._system.git.worktree import TaskWorktree
from corral.errors import CorralError
from corral.events import Event
from corral.policy import Policy
from corral.result import Result
from corral.run_kwargs import RunKwargs
from corral.values import Json, as_object, convert_to, decode_as, is_object

if TYPE_CHECKING:
    from corral._metering.budget import Budget

LIMITS = (
    "model", "policy", "sandbox", "max_turns", *spending.LIMITS, "timeout", "reasoning_effort",
    "allowed_tools", "system_prompt", "on_limit", "max_wait",
)  # fmt: skip
"""The options of a run that its session keeps when it is asked again."""


class BranchOwner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The session that made a branch."""

    format: int = stored_formats.MERGE_QUEUE
    agent: str
    session: str = ""
    """With which it is resumed; empty: a new session is asked."""
    folder: str = ""
    """Of its worktree. Some agents find a session only in the folder in which it began."""
    within: str = "."
    """Where in its worktree it worked."""
    options: dict[str, Json] = {}


Ask: TypeAlias = Callable[[BranchOwner, str, Path], Awaitable[Result]]
"""How the session of a branch gets a prompt, in the folder of a worktree."""


def options_to_keep(options: Mapping[str, object]) -> dict[str, Json]:
    """Of the options of a run, those that limit its session, as JSON."""
    kept = {name: options[name] for name in LIMITS if options.get(name) is not None}
    return as_object(msgspec.to_builtins(kept, enc_hook=os.fspath))


def record(root: Path, branch: str, owner: BranchOwner) -> None:
    """Remember who made a branch of this repository. A failure is ignored: then it has no owner."""
    try:
        paths.write_private(_path(root, branch), msgspec.json.encode(owner))
    except (OSError, CorralError):
        return


def record_in(tree: TaskWorktree, branch: str, owner: BranchOwner | None, within: str) -> None:
    """``record`` of a session that worked in this worktree, if there was one."""
    if owner is not None:
        folder = str(tree.place)
        record(tree.root, branch, msgspec.structs.replace(owner, folder=folder, within=within))


def find(root: Path, branch: str) -> BranchOwner | None:
    """None if it is not known."""
    try:
        data = fs.read_bytes(_path(root, branch))
        stored_formats.check_json(
            "a record of a branch", data, "format", stored_formats.MERGE_QUEUE
        )
        return decode_as(data, BranchOwner)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None


def forget_older(before: float) -> None:
    """Remove the records of branches that were last written before this time."""
    for path in (paths.home() / "owners").glob("*.json"):
        with contextlib.suppress(OSError):
            if fs.status(path).st_mtime < before:
                fs.remove_file(path)


def _path(root: Path, branch: str) -> Path:
    common = fs.real_path(repository.locate(root).common)
    key = f"{common}\0{branch}".encode("utf-8", "surrogateescape")
    return paths.home() / "owners" / f"{blake2b(key, digest_size=16).hexdigest()}.json"


def forget(root: Path, branch: str) -> None:
    fs.remove_file(_path(root, branch))


async def ask(
    owner: BranchOwner,
    prompt: str,
    folder: Path,
    options: RunKwargs,
    *,
    budget: Budget | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """Give the prompt to the session, in this worktree; ``options`` win over those of its own run.
    Raises ``CorralError`` if it cannot be started."""
    stored: dict[str, object] = {**owner.options}
    if is_object(policy := stored.get("policy")):
        stored["policy"] = convert_to(policy, Policy)
    given = cast("RunKwargs", {**stored, **options, "cwd": str(folder / owner.within)})
    if owner.session and config.find_agent(owner.agent).resumes:
        given["resume"] = owner.session
    return await run(owner.agent, prompt, budget=budget, on_event=on_event, **given)
