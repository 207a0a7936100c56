"""What the scripted model does with Claude Code's tools."""

from __future__ import annotations

from pathlib import Path

from corral.testing import Call


def read(path: str | Path) -> Call:
    return Call("Read", {"file_path": str(path)})


def write(path: str | Path, content: str = "written\n") -> Call:
    return Call("Write", {"file_path": str(path), "content": content})


def edit(path: str | Path, old: str, new: str) -> Call:
    return Call("Edit", {"file_path": str(path), "old_string": old, "new_string": new})


def shell(command: str) -> Call:
    return Call("Bash", {"command": command, "description": "Run it"})


def fetch(url: str) -> Call:
    return Call("WebFetch", {"url": url, "prompt": "What is there?"})


def delegate(prompt: str) -> Call:
    given = {"description": "help", "prompt": prompt, "subagent_type": "general-purpose"}
    return Call("Agent", given, id="toolu_master")
