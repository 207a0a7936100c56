"""Safe outputs: what a run without rights wants to have done, checked before anything is done.

Theory of operation
-------------------
Two steps, with a file between them. The first step reads a stranger's text: it has no token, and
nothing that it does has an effect but the file that it writes. The second step has the token and
reads nothing but that file. It does not trust the file: whatever the first step was made to say is
data. ``check`` decides about the complete file before the first effect. It allows what the caller
of the second step has named (how many comments, which labels, which paths of a patch) and refuses
the file otherwise: nothing is applied in part.

Where an output goes is never in the file: the repository and the number of the pull request are
those of the CI job, or options. Texts become Markdown here (``corral._core.neutral``), so that
no text can contain markup. A patch is judged by what it does to the tree of files that git makes
of it, not by what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from corral._core.neutral import markdown_document
from corral._core.protected_paths import unattended_protection_of
from corral._core.terminal_text import counted, one_line, visible
from corral._review.formats import MAX_MARKDOWN, markdown
from corral._review.result import Review
from corral._system.environment import SecretRedactor, own_secrets
from corral._system.git import repository, scan, tree, worktree
from corral._system.git.repository import TreeDifference
from corral.errors import ConfigError, PermissionRefused, StorageFailed
from corral.values import Json, JsonObject, decode_as, printable_path

VERSION = 1
MAX_FILE = 8 * 1024 * 1024
"""Bytes of a file of outputs."""
MAX_COMMENT = 20_000
"""Characters."""
MAX_PATCH = 256 * 1024
"""Bytes."""
MAX_LABEL = 100
_PLAIN = "100644"


class CommentOutput(msgspec.Struct, frozen=True, tag_field="kind", tag="comment",
                    forbid_unknown_fields=True):  # fmt: skip
    """A comment on the pull request, as plain text with blocks of code."""

    text: str


class ReviewOutput(msgspec.Struct, frozen=True, tag_field="kind", tag="review",
                   forbid_unknown_fields=True):  # fmt: skip
    """A comment with the findings of ``corral review``."""

    review: Review


class LabelOutput(msgspec.Struct, frozen=True, tag_field="kind", tag="label",
                  forbid_unknown_fields=True):  # fmt: skip
    """A label to add."""

    name: str


class PatchOutput(msgspec.Struct, frozen=True, tag_field="kind", tag="patch",
                  forbid_unknown_fields=True):  # fmt: skip
    """A change of the files, as a diff."""

    patch: str


Output = CommentOutput | ReviewOutput | LabelOutput | PatchOutput


class Outputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file of outputs."""

    outputs: tuple[Output, ...]
    version: int = VERSION


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """What the second step accepts."""

    comments: int = 1
    labels: tuple[str, ...] = ()
    """Names; no others."""
    patch_paths: tuple[str, ...] = ()
    """Patterns as in ``.gitignore`` of the files that a patch may change. Without any, there may be
    no patch."""
    max_files: int = 20
    """Of a patch."""


class CheckedPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A patch that may be applied."""

    root: Path
    changes: tuple[TreeDifference, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(printable_path(_text(change.path)) for change in self.changes)

    def apply(self) -> None:
        """Change the files; nothing is committed. Raises ``StorageFailed``."""
        tree.update(self.root, self.root, self.changes, force=False)


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What will be done."""

    comments: tuple[str, ...] = ()
    """Markdown."""
    labels: tuple[str, ...] = ()
    patch: CheckedPatch | None = None


def of_review(review: Review) -> Outputs:
    """The outputs of a review: a comment, unless there was nothing to review."""
    found = () if review.status == "nothing" else (ReviewOutput(review),)
    return Outputs(found)


def encode(outputs: Outputs) -> bytes:
    return msgspec.json.encode(outputs) + b"\n"


def decode(data: bytes) -> Outputs:
    """Read a file of outputs. Secrets of this process in it are redacted. Raises
    ``ConfigError``."""
    if len(data) > MAX_FILE:
        raise ConfigError(f"the outputs are larger than {MAX_FILE:,} bytes: {len(data):,}")
    try:
        found = decode_as(SecretRedactor(own_secrets()).clean(data), Outputs)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(
            f"this is no file of outputs: {one_line(str(error))[:300]}",
            hint="`corral outputs schema` prints what it contains.",
        ) from error
    if found.version != VERSION:
        raise ConfigError(f"outputs of the version {found.version} are not supported")
    return found


def check(outputs: Outputs, allowed: Allowed, folder: Path) -> Checked:
    """Decide about all outputs. ``folder`` is in the repository that a patch changes. Blocks.
    Raises ``PermissionRefused`` for the first that is not allowed."""
    comments: list[str] = []
    labels: list[str] = []
    patches: list[str] = []
    for each in outputs.outputs:
        match each:
            case ReviewOutput(review):
                comments.append(_short_enough(markdown(review)))
            case CommentOutput(text):
                comments.append(_comment(text))
            case LabelOutput(name):
                labels.append(_label(name, allowed.labels))
            case PatchOutput(text):
                patches.append(text)
    if len(comments) > allowed.comments:
        raise PermissionRefused(
            f"{counted(len(comments), 'comment')}, allowed: {allowed.comments}",
            hint="--comments N allows more.",
        )
    if len(patches) > 1:
        raise PermissionRefused(f"{len(patches)} patches, allowed: 1")
    patch = (
        _patch(patches[0].encode("utf-8", "surrogatepass"), allowed, folder) if patches else None
    )
    return Checked(comments=tuple(comments), labels=tuple(dict.fromkeys(labels)), patch=patch)


def _comment(text: str) -> str:
    if not text.strip():
        raise PermissionRefused("a comment is empty")
    if len(text) > MAX_COMMENT:
        raise PermissionRefused(f"a comment has {len(text):,} characters, allowed: {MAX_COMMENT:,}")
    return _short_enough(markdown_document(text))


def _short_enough(written: str) -> str:
    if len(written) > MAX_MARKDOWN:
        raise PermissionRefused(
            f"a comment has {len(written):,} characters as Markdown, allowed: {MAX_MARKDOWN:,}"
        )
    return written


def _label(name: str, allowed: Sequence[str]) -> str:
    if name not in allowed:
        shown = ", ".join(map(one_line, allowed)) or "none"
        raise PermissionRefused(
            f"the label {one_line(name[:MAX_LABEL])!r} is not allowed; allowed: {shown}",
            hint="--label NAME allows a label.",
        )
    return name


def _patch(patch: bytes, allowed: Allowed, folder: Path) -> CheckedPatch:
    if not allowed.patch_paths:
        raise PermissionRefused(
            "a patch is not allowed", hint="--patch-path PATTERN names the files it may change."
        )
    if len(patch) > MAX_PATCH:
        raise PermissionRefused(f"the patch has {len(patch):,} bytes, allowed: {MAX_PATCH:,}")
    root, head = worktree.repository_root(folder)
    base = worktree.snapshot_of(root, head)
    try:
        changed = repository.patched_tree(root, base, patch)
    except StorageFailed as error:
        raise PermissionRefused(
            f"the patch does not apply: {one_line(error.message)[:300]}"
        ) from error
    changes = repository.differences(root, base, changed)
    if len(changes) > allowed.max_files:
        raise PermissionRefused(
            f"the patch changes {len(changes):,} files, allowed: {allowed.max_files}",
            hint="--max-files N allows more.",
        )
    rules = scan.Rules("\n".join(allowed.patch_paths).encode("utf-8", "surrogateescape"))
    folders = _new_dot_folders(root, base, changes)
    for change in changes:
        reason = _refusal(change, rules)
        if not reason and (new := _unnamed(change, folders, allowed.patch_paths)):
            reason = f"{new} is a new folder that programs may obey, and no --patch-path names it"
        if reason:
            raise PermissionRefused(f"the patch may not change {_shown(change.path)}: {reason}")
    return CheckedPatch(root=root, changes=tuple(changes))


def _refusal(change: TreeDifference, rules: scan.Rules) -> str:
    """Why a file may not be changed like this; empty if it may."""
    path = _text(change.path)
    old = None if change.old is None else change.old.mode
    new = None if change.new is None else change.new.mode
    if visible(path) != path or not path.isprintable():
        return "its name has characters that cannot be seen"
    if protection := unattended_protection_of(path):
        return protection.reason
    if not scan.covers(rules, change.path):
        return "no --patch-path names it"
    for mode in (old, new):
        if mode in (tree.LINK, tree.SUBMODULE):
            return "it is a link or a submodule"
    if new not in (None, _PLAIN, old):
        return "it would become executable"
    return ""


def _new_dot_folders(root: Path, base: str, changes: Sequence[TreeDifference]) -> set[str]:
    """The folders with a hidden name that the changes make. Which programs obey one is not
    known."""
    made = {folder for change in changes for folder in _dot_folders(change.path)}
    if not made:
        return made
    return made - {
        folder for path in repository.entries(root, base) for folder in _dot_folders(path)
    }


def _dot_folders(path: bytes) -> list[str]:
    parts = _text(path).split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts)) if parts[end - 1][:1] == "."]


def _unnamed(change: TreeDifference, folders: set[str], patterns: Sequence[str]) -> str:
    """A new folder with a hidden name in the path that no pattern has as a part."""
    named = {part for pattern in patterns if pattern[:1] != "!" for part in pattern.split("/")}
    new = (folder for folder in _dot_folders(change.path) if folder in folders)
    return next((folder for folder in new if folder.rpartition("/")[2] not in named), "")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _shown(path: bytes) -> str:
    return one_line(printable_path(_text(path)))


def schema(allowed: Allowed) -> JsonObject:
    """The JSON Schema of a file of outputs with what is allowed, for ``corral run --schema``."""
    kinds: list[Json] = []
    if allowed.comments:
        text: JsonObject = {"type": "string", "maxLength": MAX_COMMENT}
        text["description"] = "Plain text. Lines between ``` are code."
        kinds.append(_kind("comment", "text", text))
    if allowed.labels:
        kinds.append(_kind("label", "name", {"enum": list(allowed.labels)}))
    if allowed.patch_paths:
        shown = ", ".join(allowed.patch_paths)
        described = f"A diff as git writes it, of files that fit: {shown}"
        kinds.append(_kind("patch", "patch", {"type": "string", "description": described}))
    return {
        "title": "outputs",
        "type": "object",
        "properties": {"outputs": {"type": "array", "items": {"anyOf": kinds}}},
        "required": ["outputs"],
        "additionalProperties": False,
    }


def _kind(name: str, field: str, value: JsonObject) -> JsonObject:
    return {
        "type": "object",
        "properties": {"kind": {"const": name}, field: value},
        "required": ["kind", field],
        "additionalProperties": False,
    }
