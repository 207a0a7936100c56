"""A tool call is reported in one form, whatever an agent calls its arguments."""

from __future__ import annotations

import pytest

from corral._protocol.common_events import build_tool_use
from corral.values import Json


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
def test_a_call_has_a_title_and_the_paths_of_its_arguments(
    given: Json, title: str, paths: tuple[str, ...]
) -> None:
    use = build_tool_use("1", "t", given, kind="read", parent="p")
    assert (use.title, use.paths, use.input, use.parent) == (title, paths, given, "p")
