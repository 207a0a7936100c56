"""What can be found out before a run spends anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.errors import ConfigError, MissingKey, NotInstalled, UnknownAgent
from corral.pipelines.dot.parser import parse
from corral.pipelines.execution.handlers import NodeResources
from corral.pipelines.execution.preflight import check

GEMINI = "gemini:gemini-2.5-flash"


def of(attributes: str, folder: Path, **resources: object) -> None:
    text = f"digraph p {{ start [shape=Mdiamond] work [{attributes}] done [shape=Msquare] }}"
    check(parse(text), NodeResources(**resources), folder, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["codergen", "prompt"])
def test_a_missing_key_is_told_with_the_node_and_the_variable(kind: str, workspace: Path) -> None:
    with pytest.raises(MissingKey, match="'work'") as told:
        of(f'type={kind}, prompt="x", model="{GEMINI}"', workspace)
    assert "GEMINI_API_KEY" in (told.value.hint or "")


@pytest.mark.parametrize("kind", ["codergen", "prompt"])
def test_with_its_key_it_may_run(
    kind: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")
    of(f'type={kind}, prompt="x", model="{GEMINI}"', workspace)
    of(f'type={kind}, prompt="x"', workspace, model=GEMINI)


def test_an_agent_that_is_unknown_or_not_installed_is_told_before_the_run(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnknownAgent, match="'work'"):
        of('prompt="x", agent=nobody', workspace)
    with pytest.raises(NotInstalled, match="'work'"):
        of('prompt="x", agent="gemini-cli"', workspace)


def test_what_a_node_says_wrongly_is_told_before_the_run(workspace: Path) -> None:
    for wrong in ("policy=everything", "output_schema=absent.json", "max_turns=many"):
        with pytest.raises(ConfigError, match="work"):
            of(f'prompt="x", agent="gemini-cli", {wrong}', workspace)


def test_what_only_the_run_can_know_is_left_to_it(workspace: Path) -> None:
    of('prompt="x", model="{{which}}"', workspace)
