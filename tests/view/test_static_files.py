"""The files of the page: small, complete, without inline code, and ready to be joined into one."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import corral

STATIC = Path(corral.__file__).parent / "_view" / "static"
MODULES = sorted(STATIC.glob("*.js"))
MAX_COMPRESSED = 60_000
"""Bytes of all files, each compressed. The next larger viewer of this kind has 2.3 MB."""
_IMPORT = re.compile(r'^import \{[\w\s,]+\} from "\./(\w+)\.js";$', re.MULTILINE)
_TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)


def test_all_files_together_are_small() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in STATIC.iterdir()}
    assert {"index.html", "app.js", "style.css", "icon.svg"} <= set(sizes)
    assert sum(sizes.values()) <= MAX_COMPRESSED, sizes


def test_the_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]* src=)", page)
    assert "//" not in re.sub(r"<!.*?>", "", page)
    for path in STATIC.iterdir():
        urls = re.findall(r"https?://[^\s\"'`)]+", path.read_text())
        assert [url for url in urls if url != "http://www.w3.org/2000/svg"] == [], path.name


def test_text_is_parsed_as_markup_in_one_module_only() -> None:
    parses = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|parseFromString")
    assert [path.name for path in MODULES if parses.search(path.read_text())] == ["markup.js"]
    runs = re.compile(r"\beval\(|new Function|import\(|setAttribute\(\"(?:style|on)")
    assert [path.name for path in MODULES if runs.search(path.read_text())] == []


def test_only_one_module_knows_where_data_comes_from() -> None:
    reads = re.compile(r"\bfetch\(|EventSource|XMLHttpRequest|WebSocket|corral-data")
    assert [path.name for path in MODULES if reads.search(path.read_text())] == ["api.js"]


def test_modules_can_be_joined_into_one_script() -> None:
    """An exported file has all modules in one script: names are unique, imports have one form."""
    owners: dict[str, str] = {}
    for path in MODULES:
        text = path.read_text()
        plain = _IMPORT.sub("", text)
        assert not re.search(r"^import\b|^export (?!async |function|class|const)", plain, re.M), (
            path
        )
        for name in _TOP_LEVEL.findall(plain):
            assert owners.setdefault(name, path.name) == path.name, name
        missing = [name for name in _IMPORT.findall(text) if not (STATIC / f"{name}.js").exists()]
        assert missing == [], path.name


@pytest.mark.skipif(shutil.which("node") is None, reason="Node checks the syntax; there is none")
def test_the_joined_script_has_valid_syntax() -> None:
    """The modules in any order: a duplicate name or a syntax error in one of them is an error."""
    joined = "".join(
        _IMPORT.sub("", path.read_text()).replace("\nexport ", "\n") for path in MODULES
    )
    checked = subprocess.run(
        ["node", "--input-type=module", "--check", "-"],
        input=joined,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
