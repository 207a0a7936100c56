"""The checks before a run costs anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral._pipelines.dot_parser import parse
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.execution.preflight import check
from corral.errors import ConfigError, MissingKey, NotInstalled, UnknownAgent

GEMINI = "gemini:gemini-2.5-flash"


def check_node(attributes: str, folder: Path, **resources: object) -> None:
    text = f"digraph p {{ start [shape=Mdiamond] work [{attributes}] done [shape=Msquare] }}"
    check(parse(text), NodeResources(**resources), folder, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["codergen", "prompt"])
def test_a_missing_key_is_an_error_with_the_node_and_the_variable(
    kind: str, workspace: Path
) -> None:
    with pytest.raises(MissingKey, match="'work'") as caught:
        check_node(f'type={kind}, prompt="x", model="{GEMINI}"', workspace)
    assert "GEMINI_API_KEY" in (caught.value.hint or "")


@pytest.mark.parametrize("kind", ["codergen", "prompt"])
def test_the_check_passes_with_the_key(
    kind: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "scripted-key-0123456789")
    check_node(f'type={kind}, prompt="x", model="{GEMINI}"', workspace)
    check_node(f'type={kind}, prompt="x"', workspace, model=GEMINI)


def test_an_unknown_or_missing_agent_is_an_error_before_the_run(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnknownAgent, match="'work'"):
        check_node('prompt="x", agent=unknown', workspace)
    with pytest.raises(NotInstalled, match="'work'"):
        check_node('prompt="x", agent="gemini-cli"', workspace)


def test_invalid_attributes_of_a_node_are_an_error_before_the_run(workspace: Path) -> None:
    for wrong in ("policy=everything", "output_schema=absent.json", "max_turns=many"):
        with pytest.raises(ConfigError, match="work"):
            check_node(f'prompt="x", agent="gemini-cli", {wrong}', workspace)


@pytest.mark.parametrize(
    "attribute", ["agent", "model", "llm_model", "llm_provider", "output_schema", "policy"]
)
def test_attributes_with_placeholders_are_not_checked(attribute: str, workspace: Path) -> None:
    check_node(f'prompt="x", agent="unknown", {attribute}="{{{{which}}}}"', workspace)
