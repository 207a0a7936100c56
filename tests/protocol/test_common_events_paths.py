"""All paths that a call names are found, whatever its fields are called."""

from __future__ import annotations

import pytest

from corral._protocol.common_events import named_paths, patched_paths
from corral.events import ToolKind
from corral.values import Json

PATCH = """*** Begin Patch
*** Add File: new.txt
+words
*** Update File: ../old.txt
*** Move to: .git/config
@@
-a
+b
*** Delete File: /etc/gone
*** End Patch"""
DIFF = """--- a/old.txt
+++ b/new.txt\t2026-01-01
@@ -1 +1 @@
--- not a header, but a removed line
"""


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        ("edit", {"file_path": "a", "filePath": "b", "path": "c", "absolute_path": "d"}, "a b c d"),
        ("edit", {"target_file": "a", "notebook_path": "b", "new_path": "c"}, "a b c"),
        ("edit", {"edits": [{"path": "a"}, {"filePath": "b", "new_string": "x"}]}, "a b"),
        ("edit", {"path": "a", "outputPath": "b", "base_dir": "c", "new-file": "d"}, "a b c d"),
        ("edit", {"changes": {"/a": {"type": "add"}, "b": {}}}, "/a b"),
        ("edit", {"changes": [{"path": "a"}]}, "a"),
        ("move", {"source": "a", "destination": "b"}, "a b"),
        ("read", {"files": [{"path": "a"}, "b"]}, "b a"),
        ("read", {"paths": ["a", "b"]}, "a b"),
        ("edit", {"patch": PATCH}, "new.txt ../old.txt .git/config /etc/gone"),
        ("edit", {"nested": {"input": PATCH}}, "new.txt ../old.txt .git/config /etc/gone"),
        ("edit", PATCH, "new.txt ../old.txt .git/config /etc/gone"),
        ("edit", {"content": "*** not a patch", "path": "a"}, "a"),
        ("edit", {}, ""),
        ("edit", None, ""),
        ("read", "words", ""),
        ("execute", {"command": "x", "cwd": "/a"}, "/a"),
    ],
)
def test_paths_are_found(kind: ToolKind, given: Json, wanted: str) -> None:
    found = named_paths("tool", kind, given)
    assert set(wanted.split()) == set(found)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("**/*.py", ()),
        ("src/**/*.py", ("src",)),
        ("src/a.py", ("src/a.py",)),
        ("link/*", ("link",)),
        ("/etc/*", ("/etc/",)),
        ("/etc/passwd", ("/etc/passwd",)),
        ("../*", ("/../*",)),
        ("a/../../*", ("/a/../../*",)),
        ("{/etc,x}/*", ("/{/etc,x}/*",)),
        ("{..,x}/*", ("/{..,x}/*",)),
        ("@(/etc|x)/*", ("/@(/etc|x)/*",)),
        ("~/x", ("/~/x",)),
        ("a..b/*", ("a..b",)),
    ],
)
def test_a_glob_counts_as_the_path_before_its_first_wildcard(
    pattern: str, wanted: tuple[str, ...]
) -> None:
    assert named_paths("glob", "search", {"pattern": pattern}) == wanted
    assert named_paths("grep_search", "search", {"glob": pattern}) == wanted


def test_a_search_expression_is_not_a_path() -> None:
    assert named_paths("grep_search", "search", {"pattern": "/api/.*", "path": "src"}) == ("src",)


def test_a_unified_diff_names_its_files() -> None:
    assert {"old.txt", "new.txt"} <= set(patched_paths(DIFF))
    assert named_paths("patch", "edit", {"diff": DIFF})[:2] == ("old.txt", "new.txt")
    renamed = "diff --git a/x b/y\nrename from x\nrename to .git/config\n"
    assert patched_paths(renamed) == ("x", ".git/config")


def test_depth_is_bounded() -> None:
    given: Json = {"path": "deep"}
    for _ in range(5_000):
        given = {"x": given}
    assert named_paths("t", "edit", given) == ()


def test_blanks_around_the_path_of_a_patch_are_no_part_of_it() -> None:
    patch = (
        "*** Begin Patch\n*** Update File:   a b.txt \t\r\n@@\n*** Move to:\tc.txt\n"
        "*** Add File:\n *** Delete File: in the text\n*** Delete File:x\n*** End Patch\n"
    )
    assert patched_paths(patch) == ("a b.txt", "c.txt", "", "x")
    hostile = f"*** Add File: a{' ' * 2_000_000}b"
    assert [len(path) for path in patched_paths(hostile)] == [2_000_002]
