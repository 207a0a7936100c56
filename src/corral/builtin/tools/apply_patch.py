"""apply_patch: every change of a patch, or none."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from corral.builtin.tools import truncate
from corral.builtin.tools.edit_summary import numbers
from corral.builtin.tools.files import Staged, Text, mode_of, read_text, remove, stage, write
from corral.builtin.tools.patch import Add, Delete, Update, apply, parse, paths_in
from corral.builtin.tools.tool import (
    Args,
    Arguments,
    Effect,
    Outcome,
    Output,
    ToolError,
    define,
    outcome,
)
from corral.builtin.tools.workspace import Workspace, plain
from corral.events import FileKind


class ApplyPatch(Arguments, frozen=True):
    patch: Annotated[
        str,
        Meta(description="The whole patch, from *** Begin Patch to *** End Patch.", min_length=1),
    ]


class State(msgspec.Struct):
    """One file, as it was and as the patch would leave it. None: it is not there."""

    before: Text | None
    after: Text | None
    mode: int | None = None
    source: Path | None = None
    """Where it was moved from."""
    moved: bool = False
    """It was moved away."""


class Plan:
    """The steps of a patch, done to copies: later ones see what earlier ones did."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.files: dict[Path, State] = {}

    def do(self, step: Add | Delete | Update) -> None:
        whole = self._workspace.resolve(step.path, write=True)
        name = self._workspace.name(whole)
        match step:
            case Add(lines=lines):
                self._put(whole, name, Text("".join(f"{line}\n" for line in lines)))
            case Delete():
                self._check_link(step.path)
                self._take(whole, name, binary=True)
            case Update(move_to=target, hunks=hunks):
                text = self._take(whole, name)
                new = Text(apply(hunks, text.body, name), text.bom)
                if target is None:
                    self.files[whole].after = new
                    return
                self._check_link(step.path)
                there = self._workspace.resolve(target, write=True)
                if there == whole:
                    raise ToolError(f"{name} cannot be moved to itself")
                left = self.files[whole]
                self._put(there, self._workspace.name(there), new)
                moved = self.files[there]
                moved.source, moved.mode = left.source or whole, left.mode
                left.moved = True

    def _check_link(self, path: str) -> None:
        # What it leads to would go, and the link would stay.
        if (self._workspace.root / path).is_symlink():
            raise ToolError(f"{path} is a link, which a patch can neither delete nor move")

    def _state(self, whole: Path, name: str, *, binary: bool = False) -> State:
        if whole not in self.files:
            mode = mode_of(self._workspace, whole)
            if mode is not None and stat.S_ISDIR(mode):
                raise ToolError(f"{name} is a folder")
            there = mode is not None
            text = read_text(self._workspace, whole, binary=binary) if there else None
            self.files[whole] = State(text, text, mode)
        return self.files[whole]

    def _take(self, whole: Path, name: str, *, binary: bool = False) -> Text:
        state = self._state(whole, name, binary=binary)
        if state.after is None:
            # For the hint of what may have been meant.
            read_text(self._workspace, whole)
            raise ToolError(f"{name} does not exist any more: the patch itself removes it")
        text, state.after = state.after, None
        return text

    def _put(self, whole: Path, name: str, text: Text) -> None:
        state = self._state(whole, name)
        if state.after is not None:
            raise ToolError(f"{name} exists already: update it, or delete it first")
        state.after = text


async def apply_patch(workspace: Workspace, args: ApplyPatch, _: Output) -> Outcome:
    plan = Plan(workspace)
    for step in parse(args.patch):
        plan.do(step)
    changed = {whole: state for whole, state in plan.files.items() if state.before != state.after}
    if not changed:
        raise ToolError("the patch leaves every file as it is")
    carry_out(workspace, changed)
    effects = [
        _effect(whole, state, plan.files)
        for whole, state in changed.items()
        if not (state.moved and state.after is None)
    ]
    lines = [_told(workspace, effect) for effect in effects]
    return outcome("\n".join(["Applied the patch:", *lines]), truncate.EDIT, tuple(effects))


def carry_out(workspace: Workspace, changed: dict[Path, State]) -> None:
    """Everything is written beside its place first, so that what can go wrong has gone wrong
    before the first file changes; what fails later is taken back."""
    staged: list[tuple[Path, Staged]] = []
    done: list[Path] = []
    try:
        for whole, state in changed.items():
            if state.after is not None:
                data = state.after.encoded(state.after.body)
                staged.append((whole, stage(workspace, whole, data, mode=state.mode)))
        for whole, file in staged:
            file.commit()
            done.append(whole)
        for whole, state in changed.items():
            if state.after is None:
                remove(workspace, whole)
                done.append(whole)
    except (OSError, ToolError) as error:
        for _, file in staged:
            file.discard()
        for whole in done:
            _restore(workspace, whole, changed[whole])
        if isinstance(error, ToolError):
            raise
        about = f": {error.filename}" if error.filename else ""
        raise ToolError(f"the patch was not applied{about}: {error.strerror}") from error


def _restore(workspace: Workspace, whole: Path, state: State) -> None:
    with contextlib.suppress(OSError, ToolError):
        if state.before is None:
            remove(workspace, whole)
        else:
            write(workspace, whole, state.before.encoded(state.before.body))


def _effect(whole: Path, state: State, files: dict[Path, State]) -> Effect:
    origin = files[state.source] if state.source is not None else state
    before = origin.before.body if origin.before else ""
    added, removed = numbers(before, state.after.body if state.after else "")
    kind: FileKind = "modified"
    if state.source is not None:
        kind = "moved"
    elif state.before is None or state.after is None:
        kind = "created" if state.before is None else "deleted"
    return Effect(
        path=plain(str(whole)),
        kind=kind,
        lines_added=added,
        lines_removed=removed,
        source=plain(str(state.source)) if state.source is not None else None,
    )


def _told(workspace: Workspace, effect: Effect) -> str:
    name = workspace.name(Path(effect.path))
    if effect.source is not None:
        name = f"{workspace.name(Path(effect.source))} to {name}"
    return f"{effect.kind} {name} (+{effect.lines_added} -{effect.lines_removed})"


def _paths(args: Args) -> tuple[str, ...]:
    patch = args.get("patch")
    return paths_in(patch) if isinstance(patch, str) else ()


TOOLS = (
    define(
        ApplyPatch,
        apply_patch,
        name="apply_patch",
        kind="edit",
        description=(
            "Change files by a patch; either all of it is done or nothing.\n"
            "*** Begin Patch\n"
            "*** Update File: path\n"
            "*** Move to: other/path (only to move it)\n"
            "@@ a line above the change, such as a def or class, where the context is not unique\n"
            " three lines of context before and after\n"
            "-a line that goes\n"
            "+a line that comes\n"
            "*** End of File (only where the change is at the very end)\n"
            "*** Add File: path\n"
            "+every line of the new file\n"
            "*** Delete File: path\n"
            "*** End Patch"
        ),
        limits=truncate.EDIT,
        title="Patch patch",
        paths=_paths,
    ),
)
