"""A check of the work that an agent left, and the evidence that it gives.

Theory of operation
-------------------
A ``Check`` is made and validated before the run: a command, files that must exist, a function of
the result, a schema, scenarios. It is run when the agent has ended, in a ``CheckContext``: the
clean tree that corral made of what the agent left, not the folder in which the agent worked. It
returns ``Evidence`` and changes nothing but the clean tree. A check that cannot be run (its program
is missing, a signal ended it) returns evidence that is ``missing``, never ``passed``; it raises
only ``CorralError``, for what the caller must correct.

``until`` runs the same checks after each turn, in the session's own folder. Files and functions of
the result are checked here, commands in ``command_check``, scenarios in ``scenarios``.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import msgspec

from corral._system import fs
from corral._system.environment import for_commands
from corral._system.threads import in_own_thread
from corral._verification.check_environment import TreePlaces
from corral.errors import ConfigError
from corral.events import FileKind
from corral.receipt import CheckKind, Evidence, Receipt
from corral.result import Result
from corral.values import JsonObject, convert_to, is_object

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


class FilesCheck(msgspec.Struct, frozen=True):
    """Made by ``files_exist``."""

    paths: tuple[str, ...]

    def __repr__(self) -> str:
        return f"files_exist({', '.join(map(repr, self.paths))})"

    @property
    def kind(self) -> CheckKind:
        return "files"

    @property
    def name(self) -> str:
        return ", ".join(self.paths)

    @property
    def reads_files(self) -> bool:
        return True

    def describe(self) -> JsonObject:
        return {"paths": [*self.paths]}

    async def run(self, context: CheckContext) -> Evidence:
        """Looks at what the agent left, not at the clean tree: a file may be ignored by git."""
        left = context.left
        missing = [path for path in self.paths if not fs.is_file(left / path)]
        reason = f"these files do not exist: {', '.join(missing)}" if missing else ""
        return Evidence(
            kind="files",
            name=self.name,
            outcome="failed" if missing else "passed",
            reason=reason,
            passed_before=self._passed_before(context),
        )

    def _passed_before(self, context: CheckContext) -> bool | None:
        """True: the run made or changed none of them."""
        if context.changed is None or context.before is None:
            return None
        names = [os.path.normpath(path) for path in self.paths]
        if any(name in context.changed for name in names):
            return False
        return True if all(name in context.before for name in names) else None


def files_exist(*paths: str | os.PathLike[str]) -> FilesCheck:
    """A check for ``verify`` and ``until`` that passes if each of these is a file; in the session's
    folder, where not absolute.

    ::

        corral.run_sync(
            "gemini-cli", "Write the notes", policy="edits", until=corral.files_exist("NOTES.md")
        )
    """
    names = tuple(os.fspath(path) for path in paths)
    if not names or not all(names):
        raise ConfigError("files_exist needs the name of a file")
    return FilesCheck(names)


CheckResult: TypeAlias = str | bool | None
"""None or True: done. A text: what is wrong. False: something is."""
ResultFunction: TypeAlias = Callable[[Result], CheckResult | Awaitable[CheckResult]]
NO_REASON = "the check of your work did not pass"


class FunctionCheck(msgspec.Struct, frozen=True):
    """A function of the ``Result``, sync or async."""

    function: ResultFunction

    def __repr__(self) -> str:
        return self.name

    @property
    def kind(self) -> CheckKind:
        return "function"

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def reads_files(self) -> bool:
        return False

    def describe(self) -> JsonObject:
        return {}

    async def run(self, context: CheckContext) -> Evidence:
        """Raises what the function raises."""
        function, result = self.function, context.result
        if result is None:
            reason = "a Python function is known only to the run itself"
            return Evidence(kind="function", name=self.name, outcome="missing", reason=reason)
        verdict: object
        if inspect.iscoroutinefunction(function):
            verdict = await function(result)
        else:
            # A check that blocks must not stop the loop: the agent's tools are served there.
            verdict = await in_own_thread(partial(function, result))
            if inspect.isawaitable(verdict):
                verdict = await verdict
        complaint = read_verdict(verdict, self.name)
        return Evidence(
            kind="function",
            name=self.name,
            outcome="passed" if complaint is None else "failed",
            reason=complaint or "",
        )


def read_verdict(verdict: object, name: str) -> str | None:
    """What is wrong; None if the work is done. Raises ``ConfigError`` for what a check cannot
    return."""
    match verdict:
        case None | True:
            return None
        case str():
            # A command can write anything: no prompt may have a zero byte or a lone surrogate.
            text = verdict.replace("\0", "").encode("utf-8", "replace").decode().strip()
            return text or NO_REASON
        case False:
            return NO_REASON
        case _:
            raise ConfigError(
                f"the check {name} returned a {type(verdict).__name__}",
                hint="Return None or True if done, a text that says what is wrong, or False.",
            )


JUDGE = "judge"
"""The key of ``Evidence.details``."""


class ModelSpending(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of a judging model used. None: it is not known."""

    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    """In USD."""


def judging_of(receipt: Receipt) -> list[ModelSpending]:
    """What was used for the judgements that a receipt has."""
    found = (each.details.get(JUDGE) for each in receipt.evidence)
    return [convert_to(spent, ModelSpending) for spent in found if is_object(spent)]
