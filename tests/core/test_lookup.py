"""Finding specs by name, in modules and in entry points; ids by a unique beginning."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from corral._core.lookup import SpecLookup, find_id
from corral.errors import ConfigError


class Sample(msgspec.Struct, frozen=True):
    name: str
    aliases: tuple[str, ...] = ()


reads: list[str] = []
"""The groups of which the entry points were read."""
FOREIGN = (Sample("foreign", ("far",)), "not a spec")


@pytest.fixture
def lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpecLookup[Sample]]:
    package = tmp_path / "sample_specs"
    (package / "folder").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "folder" / "__init__.py").touch()
    module = "from test_lookup import Sample\nSPECS = ({},)\n"
    (package / "first.py").write_text(module.format("Sample('first-one', ('f',))"))
    (package / "folder" / "spec.py").write_text(module.format("Sample('folder-one')"))
    (package / "broken.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    entry = metadata.EntryPoint("x", f"{__name__}:FOREIGN", "sample_specs")

    def entry_points(group: str) -> list[metadata.EntryPoint]:
        reads.append(group)
        return [entry] if group == "sample_specs" else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    yield SpecLookup("sample_specs", "SPECS", Sample, group="sample_specs")
    for name in [name for name in sys.modules if name.split(".")[0] == "sample_specs"]:
        del sys.modules[name]


def test_a_spec_is_found_in_the_module_of_its_name_without_importing_others(
    lookup: SpecLookup[Sample],
) -> None:
    found = lookup.find("first-one", "first")
    assert found is not None
    assert found.aliases == ("f",)
    assert lookup.find("folder-one", "folder") is not None


def test_an_error_inside_a_module_is_not_taken_for_a_missing_module(
    lookup: SpecLookup[Sample],
) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        lookup.in_module("broken")
    assert lookup.in_module("missing") == ()
    assert lookup.in_module("not-an-identifier") == ()


def test_aliases_and_other_packages_are_searched_and_the_nearest_name_is_suggested(
    lookup: SpecLookup[Sample], tmp_path: Path
) -> None:
    (tmp_path / "sample_specs" / "broken.py").unlink()
    assert lookup.find("f", "f") == Sample("first-one", ("f",))
    reads.clear()
    assert lookup.find("far", "far") == Sample("foreign", ("far",))
    assert lookup.find("nothing", "nothing") is None
    assert [spec.name for spec in lookup.all()] == ["first-one", "folder-one", "foreign"]
    assert lookup.suggestion("foreing", "Else.") == "Did you mean 'foreign'?"
    assert lookup.suggestion("zzz", "Else.") == "Else."
    assert lookup.suggestion("zzz").startswith("Known: ")
    assert reads == ["sample_specs"]  # once, although every search looked at them


IDS = ["review-20260102-3f9a", "review-20260101-77aa", "fix-20260101-0c11"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("last", None),  # what it means is decided elsewhere
        ("fix", IDS[2]),
        ("77", IDS[1]),
        ("review-20260102", IDS[0]),
        (IDS[1], IDS[1]),
        ("other", None),
        ("", None),
    ],
)
def test_a_name_is_an_id_or_a_unique_beginning(name: str, found: str | None) -> None:
    assert find_id(name, IDS, "runs") == found


def test_several_that_begin_so_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"2 runs begin with 'rev': review-.*3f9a, review-.*77aa"):
        find_id("rev", IDS, "runs")


def test_an_id_wins_over_longer_ones_that_begin_with_it() -> None:
    assert find_id("fix", ["fix-2", "fix"], "batches") == "fix"
