"""The tools of the built-in agent: files, patches, commands, searches, web pages.

The modules are loaded when the first tool is requested.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.builtin.tools.tool import BuiltinTool

NAMES = (
    "read_file",
    "read_many_files",
    "write_file",
    "edit_file",
    "apply_patch",
    "shell",
    "grep",
    "glob",
    "list_dir",
    "web_fetch",
)


def all_tools() -> tuple[BuiltinTool[Any], ...]:
    """Every tool, in the order of ``NAMES``."""
    return tuple(_tools()[name] for name in NAMES)


def by_name(name: str) -> BuiltinTool[Any] | None:
    return _tools().get(name)


@cache
def _tools() -> dict[str, BuiltinTool[Any]]:
    from corral.builtin.tools.apply_patch import TOOLS as PATCHES
    from corral.builtin.tools.edit import TOOLS as EDITS
    from corral.builtin.tools.fetch import TOOLS as PAGES
    from corral.builtin.tools.find import TOOLS as SEARCHES
    from corral.builtin.tools.read import TOOLS as READS
    from corral.builtin.tools.shell import TOOLS as COMMANDS

    every = (*READS, *EDITS, *PATCHES, *COMMANDS, *SEARCHES, *PAGES)
    return {tool.name: tool for tool in every}
