"""File lock, atomic replace, slug and back-off are each written once, and used everywhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral

ROOT = Path(corral.__file__).parent
SOURCES = [path for path in sorted(ROOT.rglob("*.py")) if "_testing" not in path.parts]

OWNERS = {
    "atomic replace": {"_system/fs.py"},
    "file lock": {"_system/fs.py"},
    "back-off": {"_core/durations.py"},
    "slug": {"values.py"},
    "typed decoding": {"values.py"},
}
USE = {
    "atomic replace": "corral._system.fs.write_atomically or move_into_place",
    "file lock": "corral._system.fs",
    "back-off": "corral._core.durations.backoff_delay",
    "slug": "corral.values.slug",
    "typed decoding": "corral.values.decode_as, convert_to or decoder_for",
}
LOCKS = {"fcntl.flock", "fcntl.lockf", "msvcrt.locking"}
CALLED = {"replace", *(name.partition(".")[2] for name in LOCKS)}
BUILTIN = ("Json", "str", "msgspec.Raw")
"""Types of which msgspec stores nothing."""
ROUGHLY = re.compile(
    r"\.replace\(|flock|lockf|locking|fcntl|msvcrt|\*\*|isalnum|msgspec\.(?:convert|json)"
)
"""What code with a primitive has: parsing takes longer."""


def primitives(code: str) -> Iterator[str]:
    """The primitives that this code implements itself."""
    for node in ast.walk(ast.parse(code)) if ROUGHLY.search(code) else ():
        if isinstance(node, ast.Call) and _uses_a_type(node):
            yield "typed decoding"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in CALLED:
                continue
            called = ast.unparse(node.func)
            # ``Path.replace`` has one argument, ``str.replace`` has two.
            is_path_replace = node.func.attr == "replace" and len(node.args) == 1
            if called == "os.replace" or (is_path_replace and not node.keywords):
                yield "atomic replace"
            if called in LOCKS:
                yield "file lock"
        elif isinstance(node, ast.ImportFrom) and node.module in ("fcntl", "msvcrt"):
            yield "file lock"
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            names = {each.id for each in ast.walk(node.right) if isinstance(each, ast.Name)}
            if names:
                yield "back-off"
        elif isinstance(node, ast.GeneratorExp | ast.ListComp):
            chosen = node.elt.test if isinstance(node.elt, ast.IfExp) else None
            if chosen is not None and ".isalnum()" in ast.unparse(chosen):
                yield "slug"


def _uses_a_type(call: ast.Call) -> bool:
    """Whether msgspec builds a type here: it crashes if two threads do so at the same time."""
    if getattr(call.func, "attr", "") not in ("convert", "decode", "Decoder"):
        return False
    called = ast.unparse(call.func)
    if called in ("msgspec.convert", "msgspec.json.Decoder"):
        return True
    kinds = [ast.unparse(each.value) for each in call.keywords if each.arg == "type"]
    plain = ("list[str]", *(f"dict[str, {name}]" for name in BUILTIN))
    return called == "msgspec.json.decode" and bool(kinds) and kinds[0] not in plain


ALLOWED = {
    ("typed decoding", "_system/hook_guard.py"): "a program with one thread that loads little",
    ("atomic replace", "_engine/batch/api.py"): "a method of the results file",
    ("atomic replace", "_engine/batch/rounds.py"): "a method of the results file",
    ("slug", "_pipelines/execution/run_dir.py"): "an escape that can be reversed, not a slug",
}


@pytest.mark.spine
def test_modules_use_the_shared_primitives() -> None:
    assert len(SOURCES) > 40
    own = [
        f"{name} writes its own {found}: use {USE[found]}"
        for path in SOURCES
        for name in [path.relative_to(ROOT).as_posix()]
        for found in primitives(path.read_text("utf-8"))
        if name not in OWNERS[found] and (found, name) not in ALLOWED
    ]
    assert own == []


def test_every_owner_and_every_exception_is_real() -> None:
    for primitive, owners in OWNERS.items():
        for owner in owners - {"values.py"}:  # its slug is written with a regular expression
            assert primitive in {*primitives((ROOT / owner).read_text("utf-8"))}
    for primitive, name in ALLOWED:
        assert primitive in {*primitives((ROOT / name).read_text("utf-8"))}


@pytest.mark.parametrize(
    ("code", "primitive"),
    [
        ("os.replace(draft, path)", "atomic replace"),
        ("draft.replace(path)", "atomic replace"),
        ("fcntl.flock(fd, fcntl.LOCK_EX)", "file lock"),
        ("from fcntl import flock", "file lock"),
        ("pause = min(60, 0.2 * 2**attempt)", "back-off"),
        ("''.join(c if c.isalnum() else '-' for c in name)", "slug"),
        ("msgspec.json.decode(data, type=Meta)", "typed decoding"),
        ("msgspec.convert(value, Meta)", "typed decoding"),
        ("msgspec.json.Decoder(Meta)", "typed decoding"),
    ],
)
def test_a_copy_is_found(code: str, primitive: str) -> None:
    assert [*primitives(code)] == [primitive]


@pytest.mark.parametrize(
    "code",
    [
        "text.replace('a', 'b')",
        "structs.replace(a, b=1)",
        "fcntl.fcntl(fd, 1, 2)",
        "2**64",
        "msgspec.json.decode(data)",
        "msgspec.json.decode(data, type=dict[str, Json])",
    ],
)
def test_other_code_is_left_alone(code: str) -> None:
    assert [*primitives(code)] == []
