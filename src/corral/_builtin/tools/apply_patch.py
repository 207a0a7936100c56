"""apply_patch: apply all changes of a patch, or none."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from corral._builtin.tools.edit import file_effect
from corral._builtin.tools.file_access import OutcomeUnknown, file_access, write
from corral._builtin.tools.files import FileText, Staged, find_mode, read_text, remove
from corral._builtin.tools.patch import Add, Delete, Update, apply, parse, paths_in
from corral._builtin.tools.tool import (
    EDIT_LIMITS,
    Args,
    Arguments,
    BuiltinTool,
    FileEffect,
    Output,
    ToolOutcome,
)
from corral._builtin.tools.workspace import ToolError, Workspace
from corral._system import fs

UNDO_TIMEOUT = 10.0
"""Seconds to undo changes through an editor: it may not answer."""


class ApplyPatch(Arguments, frozen=True):
    patch: Annotated[
        str,
        Meta(
            description="The complete patch, from *** Begin Patch to *** End Patch.", min_length=1
        ),
    ]


class PatchedFile(msgspec.Struct):
    """One file, before and after the patch. None: it does not exist."""

    before: FileText | None
    after: FileText | None
    mode: int | None = None
    source: Path | None = None
    """Where it was moved from."""
    moved: bool = False
    """It was moved away."""


class PatchPlan:
    """Applies the steps of a patch to copies in memory: later steps see the effects of earlier
    ones."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._access = file_access(workspace)
        self.files: dict[Path, PatchedFile] = {}

    async def do(self, step: Add | Delete | Update) -> None:
        path = self._workspace.resolve(step.path, write=True)
        name = self._workspace.name(path)
        match step:
            case Add(lines=lines):
                await self._put(path, name, FileText("".join(f"{line}\n" for line in lines)))
            case Delete():
                self._check_link(step.path)
                await self._take(path, name, binary=True)
            case Update(move_to=target, hunks=hunks):
                text = await self._take(path, name)
                new = FileText(apply(hunks, text.body, name), text.bom)
                if target is None:
                    self.files[path].after = new
                    return
                self._check_link(step.path)
                target_path = self._workspace.resolve(target, write=True)
                if target_path == path:
                    raise ToolError(f"{name} cannot be moved to itself")
                source = self.files[path]
                await self._put(target_path, self._workspace.name(target_path), new)
                moved = self.files[target_path]
                moved.source, moved.mode = source.source or path, source.mode
                source.moved = True

    def _check_link(self, path: str) -> None:
        # The target of the link would be removed, and the link would stay.
        if fs.is_link(self._workspace.root / path):
            raise ToolError(f"{path} is a link, which a patch can neither delete nor move")

    async def _state(self, path: Path, name: str, *, binary: bool = False) -> PatchedFile:
        if path not in self.files:
            mode = find_mode(self._workspace, path)
            if mode is not None and stat.S_ISDIR(mode):
                raise ToolError(f"{name} is a folder")
            exists = mode is not None
            text = await self._access.read(path, binary=binary) if exists else None
            self.files[path] = PatchedFile(text, text, mode)
        return self.files[path]

    async def _take(self, path: Path, name: str, *, binary: bool = False) -> FileText:
        state = await self._state(path, name, binary=binary)
        if state.after is None:
            # Raises the error with a hint of similar names, if it never existed.
            read_text(self._workspace, path)
            raise ToolError(f"{name} does not exist any more: the patch itself removes it")
        text, state.after = state.after, None
        return text

    async def _put(self, path: Path, name: str, text: FileText) -> None:
        state = await self._state(path, name)
        if state.after is not None:
            raise ToolError(f"{name} exists already: update it, or delete it first")
        state.after = text


async def apply_patch(workspace: Workspace, args: ApplyPatch, _: Output) -> ToolOutcome:
    plan = PatchPlan(workspace)
    for step in parse(args.patch):
        await plan.do(step)
    changed = {path: state for path, state in plan.files.items() if state.before != state.after}
    if not changed:
        raise ToolError("the patch leaves every file as it is")
    await write_changes(workspace, changed)
    effects: list[FileEffect] = []
    lines = ["Applied the patch:"]
    for path, state in changed.items():
        if state.moved and state.after is None:
            continue  # the file at the new path has the effect
        origin = plan.files[state.source or path].before
        before, after = (text.body if text else None for text in (origin, state.after))
        effect = file_effect(path, before, after, source=state.source)
        effects.append(effect)
        name = workspace.name(Path(effect.path))
        if effect.source is not None:
            name = f"{workspace.name(Path(effect.source))} to {name}"
        lines.append(f"{effect.kind} {name} (+{effect.lines_added} -{effect.lines_removed})")
    return ToolOutcome("\n".join(lines), tuple(effects))


async def write_changes(workspace: Workspace, changed: dict[Path, PatchedFile]) -> None:
    """Prepare all new files first, so that most errors occur before the first file changes;
    changes are undone if a later step fails or is cancelled."""
    access = file_access(workspace)
    staged: list[tuple[Path, Staged]] = []
    done: list[Path] = []
    try:
        for path, state in changed.items():
            if state.after is not None:
                data = state.after.encoded(state.after.body)
                staged.append((path, await access.stage(path, data, mode=state.mode)))
        for path, file in staged:
            try:
                await file.commit()
            except (OutcomeUnknown, asyncio.CancelledError):
                done.append(path)  # the editor may have written it, or may still do so
                raise
            done.append(path)
        for path, state in changed.items():
            if state.after is None:
                remove(workspace, path)
                done.append(path)
    except BaseException as error:
        for _, file in staged:
            file.discard()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNDO_TIMEOUT):
                await _undo(workspace, {path: changed[path].before for path in done})
        if isinstance(error, OSError):
            about = f": {error.filename}" if error.filename else ""
            raise ToolError(f"the patch was not applied{about}: {error.strerror}") from error
        raise


async def _undo(workspace: Workspace, before: dict[Path, FileText | None]) -> None:
    """Write the old texts again, as far as that is possible."""
    access = file_access(workspace)
    for path, text in before.items():
        with contextlib.suppress(OSError, ToolError):
            if text is None:
                remove(workspace, path)
            else:
                await write(access, workspace, path, text.encoded(text.body))


def _paths(args: Args) -> tuple[str, ...]:
    patch = args.get("patch")
    return paths_in(patch) if isinstance(patch, str) else ()


TOOLS = (
    BuiltinTool(
        arguments=ApplyPatch,
        run=apply_patch,
        name="apply_patch",
        kind="edit",
        description=(
            "Change files by a patch. Either all changes are made, or none.\n"
            "*** Begin Patch\n"
            "*** Update File: path\n"
            "*** Move to: other/path (only to move the file)\n"
            "@@ a line above the change, such as a def or class, if the context is not"
            " unique\n"
            " three lines of context before and after\n"
            "-a line to remove\n"
            "+a line to add\n"
            "*** End of File (only if the change is at the very end)\n"
            "*** Add File: path\n"
            "+every line of the new file\n"
            "*** Delete File: path\n"
            "*** End Patch"
        ),
        limits=EDIT_LIMITS,
        title_form="Patch patch",
        path_arguments=_paths,
    ),
)
