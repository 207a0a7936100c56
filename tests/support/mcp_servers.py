"""A real MCP server on stdio, as a program that a test starts."""

from __future__ import annotations

import sys
from pathlib import Path

from corral import McpServer

PROGRAM = Path(__file__).parents[1] / "programs" / "notes_server.py"


def notes_server(folder: Path, **env: str) -> McpServer:
    """A real MCP server on stdio with one tool, ``keep``, which writes a file into ``folder``."""
    return McpServer("notes", command=(sys.executable, str(PROGRAM), str(folder)), env=env)
