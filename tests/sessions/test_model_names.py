"""The names of models that people write, and what each agent gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from corral import models
from corral._agents import registry
from corral._sessions.prepare import prepare, with_model_name
from corral.errors import ConfigError, MissingKey
from corral.options import RunOptions

URL = {
    "gemini": "GOOGLE_GEMINI_BASE_URL",
    "claude": "ANTHROPIC_BASE_URL",
    "codex": "OPENAI_BASE_URL",
}


@pytest.fixture(autouse=True)
def no_base_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in URL.values():
        monkeypatch.delenv(name, raising=False)


def name_for(agent: str, model: str, env: Mapping[str, str] | None = None) -> str | None:
    spec = registry.find(agent)
    run = RunOptions.build(spec.name, {"model": model, "env": dict(env or {})})
    return with_model_name(spec, run, model).model


@pytest.mark.parametrize(
    ("agent", "written", "sent"),
    [
        ("gemini", "gemini-2.5-flash", "gemini-2.5-flash"),
        ("gemini", "gemini:gemini-2.5-flash", "gemini-2.5-flash"),
        ("gemini", "gemini/gemini-2.5-flash", "gemini-2.5-flash"),
        ("gemini", "google/gemini-2.5-flash", "gemini-2.5-flash"),
        ("gemini", "flash", "flash"),
        ("claude", "anthropic:claude-sonnet-5", "claude-sonnet-5"),
        ("claude", "opus", "opus"),
        ("codex", "openai/gpt-5.5", "gpt-5.5"),
        ("opencode", "openai/gpt-5.5", "openai/gpt-5.5"),
        ("corral", "openai/gpt-5.5", "openai:gpt-5.5"),
        ("corral", "chat:org/name", "chat:org/name"),
    ],
)
def test_an_agent_gets_the_name_in_its_own_form(agent: str, written: str, sent: str) -> None:
    assert name_for(agent, written) == sent


@pytest.mark.parametrize(
    ("agent", "written", "hints"),
    [
        ("gemini", "gpt-5.5", ("--model openai:gpt-5.5", "--agent codex --model gpt-5.5")),
        ("gemini", "openai/gpt-5.5", ("--model openai:gpt-5.5", "--agent codex")),
        ("gemini", "claude-sonnet-5", ("anthropic:claude-sonnet-5", "--agent claude")),
        ("claude", "gemini:gemini-2.5-pro", ("gemini:gemini-2.5-pro", "--agent gemini")),
        ("codex", "deepseek/deepseek-chat", ("--model deepseek:deepseek-chat",)),
    ],
)
def test_a_model_of_another_vendor_is_refused_with_what_works(
    agent: str, written: str, hints: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="has no model of another vendor") as caught:
        name_for(agent, written)
    assert all(hint in (caught.value.hint or "") for hint in hints), caught.value.hint


@pytest.mark.parametrize("agent", [*URL])
def test_behind_a_base_url_every_bare_name_is_passed_on(agent: str) -> None:
    env = {URL[agent]: "http://127.0.0.1:1"}
    for name in ("gpt-5.5", "gemini/gemini-2.5-flash", "claude-sonnet-5", "anything"):
        assert name_for(agent, name, env) == name


def test_a_vendor_with_a_slash_chooses_the_built_in_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "no-real-key")
    assert registry.default("openai/gpt-5.5") == "openai:gpt-5.5"
    assert registry.default("unheard-of/name") == registry.DEFAULT_AGENT
    options: dict[str, object] = {"model": "openai/gpt-5.5", "cwd": tmp_path}
    prepared = prepare("openai/gpt-5.5", options)
    assert (prepared.agent.name, prepared.run.model) == ("corral", "openai:gpt-5.5")


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("gpt-5.5", "Did you mean openai:gpt-5.5?"),
        ("gemini-2.5-flash", "Did you mean gemini:gemini-2.5-flash?"),
        ("claude-sonnet-5", "Did you mean anthropic:claude-sonnet-5?"),
        ("models/gemini-2.5-flash", "Did you mean gemini:gemini-2.5-flash?"),
        ("deepseek-v4-pro", "Did you mean deepseek:deepseek-v4-pro?"),
    ],
)
async def test_a_bare_name_gets_the_vendor_that_was_meant(written: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="no vendor prefix") as caught:
        await models.generate(written, "hi")
    assert caught.value.hint == hint


async def test_a_slash_is_understood_by_the_models_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(MissingKey, match="OpenAI"):
        await models.generate("openai/gpt-5.5", "hi")
