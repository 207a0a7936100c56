"""A call is told alike whatever an agent names its fields."""

from __future__ import annotations

import pytest

from corral.events import Json
from corral.protocol.tool_fields import build_tool_use, objects_in


@pytest.mark.parametrize(
    ("given", "title", "paths"),
    [
        ({"command": "ls", "path": "/a"}, "t ls", ("/a",)),
        ({"filePath": "/a", "file_path": "/a", "path": "/a"}, "t /a", ("/a",)),
        ({"notebook_path": "n", "dir_path": "d"}, "t n", ("n", "d")),
        ({"pattern": "x*", "path": 3}, "t x*", ()),
        ({"other": "x"}, "t", ()),
        ({"command": ""}, "t", ()),
        ("words", "t", ()),
        (None, "t", ()),
    ],
)
def test_a_call_says_what_it_is_about_and_which_files(
    given: Json, title: str, paths: tuple[str, ...]
) -> None:
    use = build_tool_use("1", "t", given, kind="read", parent="p")
    assert (use.title, use.paths, use.input, use.parent) == (title, paths, given, "p")


def test_of_a_list_only_objects_count() -> None:
    assert objects_in([{"a": 1}, "b", None, {}]) == [{"a": 1}, {}]
    assert objects_in({"a": 1}) == []
