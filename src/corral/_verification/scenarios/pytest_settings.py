"""What held-out tests take from the settings of pytest in the work: its root, and its modules.

Everything else that a work may set decides how tests are run, and is not taken.
"""

from __future__ import annotations

import configparser
import os
import shlex
import tomllib
from pathlib import Path

import msgspec

from corral._core.nesting import decode_toml
from corral._system import fs
from corral.values import Json, is_object, is_sequence

MAX_FILE = 1024 * 1024
_INI = {
    "pytest.ini": "pytest",
    ".pytest.ini": "pytest",
    "tox.ini": "pytest",
    "setup.cfg": "tool:pytest",
}
"""The sections with the settings."""
_ALWAYS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")
"""Settings also without a section."""
_NAMES = (*_ALWAYS, "pyproject.toml", "tox.ini", "setup.cfg")
"""In the order in which pytest looks for them."""


class PytestSettings(msgspec.Struct, frozen=True):
    root: str = "."
    """From the working directory."""
    pythonpath: tuple[str, ...] = ()
    """From the root."""


def find_settings(folder: Path, top: Path) -> PytestSettings:
    """Those that pytest finds in the folder, or above it up to ``top``. Blocks."""
    for above in (folder, *folder.parents):
        for name in _NAMES:
            content = fs.read_small(above / name, MAX_FILE)
            found = None if content is None else _pythonpath(name, content)
            if found is not None:
                return PytestSettings(os.path.relpath(above, folder), found)
        if above == top:
            break
    return PytestSettings()


def _pythonpath(name: str, content: bytes) -> tuple[str, ...] | None:
    """None if the file has no settings of pytest, or cannot be read."""
    try:
        text = content.decode()
        if name.endswith(".toml"):
            return _of_toml(name, decode_toml(text))
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(text)
        if not parser.has_section(_INI[name]):
            return () if name in _ALWAYS else None
        return tuple(shlex.split(parser.get(_INI[name], "pythonpath", fallback="")))
    except (ValueError, configparser.Error, tomllib.TOMLDecodeError):
        return () if name in _ALWAYS else None


def _of_toml(name: str, table: dict[str, Json]) -> tuple[str, ...] | None:
    tool = table.get("tool") if name == "pyproject.toml" else {"pytest": table.get("pytest")}
    section = tool.get("pytest") if is_object(tool) else None
    if not is_object(section):
        return () if name in _ALWAYS else None
    options = section.get("ini_options", section)
    value = options.get("pythonpath", ()) if is_object(options) else ()
    if isinstance(value, str):
        return tuple(shlex.split(value))
    return tuple(str(path) for path in value) if is_sequence(value) else ()
