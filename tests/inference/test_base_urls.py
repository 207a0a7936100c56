"""The base-URL variables of the vendors, as docs/models.md names them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corral import errors, models
from corral._models.registry import find_provider
from corral.testing import ModelServer, Turn

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
CASES = [
    ("gemini:gemini-2.5-flash", "GOOGLE_GEMINI_BASE_URL", ""),
    ("gemini:gemini-2.5-flash", "GEMINI_BASE_URL", ""),
    ("gemini:gemini-2.5-flash", "GOOGLE_GEMINI_BASE_URL", "/v1beta"),
    ("anthropic:claude-sonnet-5", "ANTHROPIC_BASE_URL", ""),
    ("anthropic:claude-sonnet-5", "ANTHROPIC_BASE_URL", "/v1"),
    ("openai:gpt-5.5", "OPENAI_BASE_URL", "/v1"),
    ("openai-chat:gpt-5.5", "OPENAI_BASE_URL", "/v1"),
    ("chat:any", "CHAT_BASE_URL", "/v1"),
    ("groq:any", "GROQ_BASE_URL", "/v1"),
]


@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize(("model", "variable", "path"), CASES)
async def test_the_variable_directs_the_calls(
    model: str,
    variable: str,
    path: str,
    end: str,
    model_server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vendor = model.partition(":")[0]
    provider = find_provider(vendor)
    lane = model_server.lane(
        f"base-url-{vendor}-{variable}-{path}-{bool(end)}", [Turn(text="reached")]
    )
    for name in provider.base_url_env:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"{lane.url}{path}{end}")
    monkeypatch.setenv(provider.key_env[0], "no-real-key")
    async with models.Client() as client:
        answer = await models.generate(model, "hi", client=client)
    assert answer.text == "reached"
    (received,) = lane.requests
    assert not re.search(r"/v1(beta)?/v1", received.path)


async def test_a_variable_that_changes_directs_the_next_call_of_the_same_client(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = model_server.lane("changed-base-url-1", [Turn(text="first")])
    second = model_server.lane("changed-base-url-2", [Turn(text="second"), Turn(text="third")])
    monkeypatch.setenv("GEMINI_API_KEY", "no-real-key")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", first.url)
    texts: list[str] = []
    async with models.Client() as client:
        for url in (first.url, second.url):
            monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", url)
            answer = await models.generate("gemini:gemini-2.5-flash", "hi", client=client)
            texts.append(answer.text)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", first.url)
        answer = await models.generate(
            "gemini:gemini-2.5-flash", "hi", client=client, base_url=second.url
        )
        texts.append(answer.text)
        monkeypatch.delenv("GEMINI_API_KEY")
        monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
        with pytest.raises(errors.MissingKey):
            await models.generate("gemini:gemini-2.5-flash", "hi", client=client)
    assert texts == ["first", "second", "third"]


@pytest.mark.parametrize("variable", sorted({case[1] for case in CASES}))
def test_the_variable_is_documented(variable: str) -> None:
    text = PAGE.read_text("utf-8")
    named = rf"`{variable}`|`NAME_BASE_URL`"
    assert re.search(rf"`{variable}`", text) or ("GROQ" in variable and re.search(named, text))
