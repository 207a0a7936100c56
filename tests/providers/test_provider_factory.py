"""Providers by name, and their metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from corral.providers import (
    ClaudeCodeProvider,
    GeminiCliProvider,
    ManualProvider,
    ProviderResult,
    ResponseProvider,
    ResponseProviderFactory,
)

create = ResponseProviderFactory.create


def test_the_metadata_has_every_key_that_an_engine_lists() -> None:
    assert GeminiCliProvider.get_metadata() == {
        "name": "gemini-cli",
        "description": "Gemini CLI AI agent via subprocess",
        "requires_config": False,
        "config_keys": [
            "model",
            "approval_mode",
            "allowed_tools",
            "working_dir",
            "timeout",
            "sandbox",
            "include_directories",
        ],
        "default_connection_timeout": 60,
        "default_response_timeout": 600,
        "fs_ability": "local-write",
    }
    assert ManualProvider.get_metadata()["default_response_timeout"] is None
    assert ClaudeCodeProvider.get_metadata()["name"] == "claude-code"


def test_every_agent_and_three_more_names_have_a_provider() -> None:
    names = ResponseProviderFactory.list_providers()
    assert names == sorted(names)
    assert {"gemini-cli", "gemini-acp", "claude-code", "manual", "corral"} <= {*names}
    for name in names:
        assert create(name).get_metadata()["name"] == name
    assert isinstance(create("gemini-cli"), GeminiCliProvider)
    assert isinstance(create("claude-code"), ClaudeCodeProvider)
    assert isinstance(create("manual"), ManualProvider)
    assert "include_directories" in create("gemini-acp").get_metadata()["config_keys"]
    assert "sandbox" not in create("corral").get_metadata()["config_keys"]


def test_an_unknown_name_is_an_error_that_lists_the_known_names() -> None:
    with pytest.raises(KeyError, match=r"no provider is called 'gemni'.*claude-code.*gemini-cli"):
        create("gemni")


class Echo(ResponseProvider):
    """A provider that a user wrote."""

    @classmethod
    def get_metadata(cls) -> dict[str, Any]:
        return {"name": "echo", "config_keys": ["loud"]}

    def validate(self) -> None: ...

    def generate(
        self,
        prompt: str,
        context: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        connection_timeout: float | None = None,
        response_timeout: float | None = None,
    ) -> ProviderResult:
        return ProviderResult(prompt, {"echo.txt": prompt})


def test_a_registered_provider_is_created_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, type[ResponseProvider]] = vars(ResponseProviderFactory)["_registered"]
    monkeypatch.setattr(ResponseProviderFactory, "_registered", dict(registered))
    ResponseProviderFactory.register("echo", Echo)
    assert "echo" in ResponseProviderFactory.list_providers()
    assert create("echo", {"loud": True}).generate("hi") == ProviderResult("hi", {"echo.txt": "hi"})
    assert create("echo").config == {}


def test_the_factory_reports_the_metadata_of_its_providers() -> None:
    assert ResponseProviderFactory.is_registered("gemini-cli")
    assert ResponseProviderFactory.is_registered("gemini")
    assert not ResponseProviderFactory.is_registered("gemni")
    assert ResponseProviderFactory.get_metadata("claude-code")["name"] == "claude-code"
    with pytest.raises(KeyError, match="no provider is called 'gemni'"):
        ResponseProviderFactory.get_metadata("gemni")
    every = ResponseProviderFactory.get_all_metadata()
    assert list(every) == ResponseProviderFactory.list_providers()
    assert every["manual"]["default_response_timeout"] is None
