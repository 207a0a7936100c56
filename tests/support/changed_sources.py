"""Modules of corral with a changed source, in memory: of this process, before they are imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType

Changes = Mapping[str, Sequence[tuple[str, str]]]
"""Module → texts of its source, each with what is added before it."""


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, added: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._added = added

    def get_code(self, fullname: str) -> CodeType:
        text = Path(self.path).read_text("utf-8")
        for before, new in self._added:
            assert before in text, f"{fullname} has no {before!r}"
            text = text.replace(before, new + before)
        code: CodeType = compile(text, self.path, "exec", dont_inherit=True)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._changes[fullname])
        return spec


def change(changes: Changes) -> None:
    assert not changes.keys() & sys.modules.keys()
    sys.meta_path.insert(0, _Finder(changes))
