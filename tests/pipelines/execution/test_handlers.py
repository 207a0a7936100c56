"""Handlers are found by their node type: registered, built in, or in another package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral._pipelines import node_kinds
from corral._pipelines.execution import handlers
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.scheduler.outcome import Outcome
from corral.errors import ConfigError


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    before = dict(handlers._registered)  # pyright: ignore[reportPrivateUsage]
    yield
    handlers._registered.clear()  # pyright: ignore[reportPrivateUsage]
    handlers._registered.update(before)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("kind", [name for name, kind in node_kinds.KINDS.items() if kind.handler])
def test_every_built_in_type_has_a_handler(kind: str) -> None:
    assert callable(handlers.find(kind))


async def own(_: NodeContext) -> Outcome:
    return Outcome()


def test_a_registered_handler_wins_over_the_built_in_one() -> None:
    handlers.handler("tool")(own)
    assert handlers.find("tool") is own


def test_a_function_that_is_not_async_is_rejected() -> None:
    with pytest.raises(ConfigError, match="must be an async function"):
        handlers.register("x", lambda _: None)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]


def package(path: Path, module: str, named: str) -> None:
    """A package on the path whose entry point names a node type."""
    (path / "node_pack.py").write_text(module)
    info = path / "node_pack-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: node-pack\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[corral.nodes]\npack.step = {named}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield folder
    sys.modules.pop("node_pack", None)


def test_a_type_of_another_package_is_found_by_its_entry_point(site: Path) -> None:
    package(site, "async def step(work): ...\n", "node_pack:step")
    assert getattr(handlers.find("pack.step"), "__name__", "") == "step"
    assert "pack.step" in handlers.registered_kinds()


@pytest.mark.parametrize(
    ("module", "expected"), [("1 / 0\n", "division by zero"), ("step = 3\n", "async function")]
)
def test_an_import_error_of_another_package_is_reported(
    site: Path, module: str, expected: str
) -> None:
    package(site, module, "node_pack:step")
    with pytest.raises(ConfigError, match=expected):
        handlers.find("pack.step")


def test_an_unknown_type_is_an_error_with_the_most_similar_name() -> None:
    with pytest.raises(ConfigError) as raised:
        handlers.find("for_eech")
    assert raised.value.message == "no node type is called 'for_eech'"
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("Did you mean 'for_each'? Known: ")
    assert "codergen, " in raised.value.hint


@pytest.mark.parametrize(
    "kind", [kind for kind in node_kinds.SCHEDULER_KINDS if not node_kinds.find(kind).handler]
)
def test_kinds_of_the_scheduler_have_no_handler(kind: str) -> None:
    with pytest.raises(ConfigError, match="the scheduler itself runs"):
        handlers.find(kind)
