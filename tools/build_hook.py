"""What a wheel has besides the source: its version, as ``corral/version.py``, and the
documentation, in ``corral/_docs``: the pages, and the site if ``make docs`` has built it. Used by
hatchling."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index", "SECURITY.md": "security", "CHANGELOG.md": "changelog"}
SITE = ROOT / ".cache" / "site" / "site"


class BuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # its code is that of the checkout
            return
        self.folder = tempfile.TemporaryDirectory()
        module = Path(self.folder.name) / "version.py"
        text = f'"""The version of corral."""\n\n__version__ = "{self.metadata.version}"\n'
        module.write_text(text, "utf-8")
        docs = ROOT / "docs"
        pages = {
            path: path.relative_to(docs).with_suffix("").as_posix() for path in docs.rglob("*.md")
        }
        pages |= {ROOT / file: name for file, name in PAGES.items()}
        included = build_data["force_include"]
        included[str(module)] = "corral/version.py"
        included |= {str(path): f"corral/_docs/pages/{name}.md" for path, name in pages.items()}
        if SITE.is_dir():
            included[str(SITE)] = "corral/_docs/site"
