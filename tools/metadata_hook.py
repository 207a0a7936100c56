"""What hatchling writes into the metadata of a build besides ``pyproject.toml``: the README as a
package index shows it, and the links of the project.

Links of README.md are relative, so that they work in a clone. An index needs complete ones: they
lead to ``REPOSITORY_URL`` (such as ``https://github.com/OWNER/corral``, which the workflow of
releases sets) at the tag of the version. Without that variable they become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


class MetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        address = os.environ.get("REPOSITORY_URL", "").rstrip("/")
        tag = f"v{metadata['version']}"
        text = for_index((ROOT / "README.md").read_text("utf-8"), address, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if address:
            metadata["urls"] = {
                "Source": address,
                "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
                "Documentation": f"{address}/tree/{tag}/docs",
                "Issues": f"{address}/issues",
            }


def for_index(text: str, address: str, tag: str) -> str:
    """The README with complete links, or without its relative links and pictures."""

    def link(match: re.Match[str]) -> str:
        picture, label, path = match.groups()
        if not address:
            return "" if picture else label
        return f"{picture}[{label}]({address}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return _LINK.sub(link, text)
