"""Writes the version of a wheel into it, as ``corral/version.py``. Used by hatchling."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class VersionHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # its code is that of the checkout
            return
        self.folder = tempfile.TemporaryDirectory()
        module = Path(self.folder.name) / "version.py"
        text = f'"""The version of corral."""\n\n__version__ = "{self.metadata.version}"\n'
        module.write_text(text, "utf-8")
        build_data["force_include"][str(module)] = "corral/version.py"
