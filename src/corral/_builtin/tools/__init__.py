"""The tools of the built-in agent: files, patches, commands, searches, web pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral._builtin.tools.tool import BuiltinTool


@cache
def all_tools() -> Mapping[str, BuiltinTool[Any]]:
    """Every tool by its name. Their modules are loaded when this is first called."""
    from corral._builtin.tools.apply_patch import TOOLS as PATCHES
    from corral._builtin.tools.edit import TOOLS as EDITS
    from corral._builtin.tools.fetch import TOOLS as PAGES
    from corral._builtin.tools.find import TOOLS as SEARCHES
    from corral._builtin.tools.read import TOOLS as READS
    from corral._builtin.tools.shell import TOOLS as COMMANDS

    every = (*READS, *EDITS, *PATCHES, *COMMANDS, *SEARCHES, *PAGES)
    return {tool.name: tool for tool in every}
