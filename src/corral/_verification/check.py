"""A check of the work that an agent left, and the evidence that it gives.

Theory of operation
-------------------
A ``Check`` is made and validated before the run: a command, files that must exist, a function of
the result, a schema, scenarios. It is run when the agent has ended, in a ``CheckContext``: the
clean tree that corral made of what the agent left, not the folder in which the agent worked. It
returns ``Evidence`` and changes nothing but the clean tree. A check that cannot be run (its program
is missing, a signal ended it) returns evidence that is ``missing``, never ``passed``; it raises
only ``CorralError``, for what the caller must correct.

``until`` runs the same checks after each turn, in the session's own folder.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from corral._system.environment import for_commands
from corral._verification.check_environment import TreePlaces
from corral.events import FileKind
from corral.receipt import CheckKind, Evidence
from corral.result import Result
from corral.values import JsonObject

if TYPE_CHECKING:
    from corral._metering.budget import Budget
    from corral._system.sandbox.sandbox import Sandbox


class CheckContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where a check runs, and what it may know."""

    folder: Path
    """The working directory: in the clean tree, or of the session. The check may change it only if
    it is that of a clean tree."""
    outside_folder: Path | None = None
    """The same folder as this process sees it, if a sandbox shows it under another name."""
    left: Path
    """The session's folder as the agent left it. The check only reads it."""
    result: Result | None = None
    """Of the run; None if a receipt is repeated, and in a pipeline."""
    run_id: str = ""
    """Of a run without a result."""
    changed: Mapping[str, FileKind] | None = None
    """What the run changed, by its path from the folder; None if that is not known."""
    before: Collection[str] | None = None
    """The paths of the files before the run; None if they are not known."""
    sandbox: Sandbox | None = None
    """What a command is run in."""
    env: Mapping[str, str] = {}
    """Variables that a command gets besides those that programs need."""
    pass_env: tuple[str, ...] = ()
    """Names of variables of corral's environment that it gets."""
    secrets: Mapping[str, str] = {}
    """What is redacted in the output of a command, name → value."""
    scratch: Path | None = None
    """An empty folder for temporary files of the check, outside of the tree."""
    places: TreePlaces | None = None
    """Where the clean tree is; None if the folder is not in one."""
    timeout: float = math.inf
    """Seconds that the check may take. Its own limit, if lower, wins."""
    budget: Budget | None = None
    """What the model calls of a check may use."""

    @property
    def host_folder(self) -> Path:
        """The working directory as this process sees it."""
        return self.outside_folder or self.folder

    @property
    def outside_root(self) -> Path:
        """The root of the tree as this process sees it."""
        return self.host_folder if self.places is None else Path(self.places.outside_tree)

    @property
    def is_session(self) -> bool:
        """It runs in the session's own folder, for ``until``."""
        return self.scratch is None

    def environment(
        self, given: Mapping[str, str] | None = None, pass_env: Collection[str] = ()
    ) -> dict[str, str]:
        """The variables of a command, with those in ``given`` over them."""
        names = (*self.pass_env, *pass_env)
        values = for_commands(names, {**self.env, **(given or {})})
        return values if self.places is None else self.places.moved(values)

    @property
    def has_no_network(self) -> bool:
        return self.sandbox is not None and not self.sandbox.box.network


@runtime_checkable
class Check(Protocol):
    """One source of evidence. Immutable, made before the run and validated when it is made."""

    @property
    def kind(self) -> CheckKind: ...

    @property
    def name(self) -> str:
        """What is checked, for a person."""
        ...

    @property
    def reads_files(self) -> bool:
        """Whether it judges files. Such a check proves nothing about a run that changed none."""
        ...

    def describe(self) -> JsonObject:
        """With what ``corral verify`` repeats it elsewhere; empty if it cannot be repeated."""
        ...

    async def run(self, context: CheckContext) -> Evidence: ...
