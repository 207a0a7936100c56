"""``corral models``, run as a program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_command import corral

from corral._models import registry

SECRET = "canary-key-0123456789abcdef"


def models(*words: str) -> subprocess.CompletedProcess[str]:
    return corral("models", *words, cwd=Path.cwd())


def models_json(*words: str) -> Any:
    done = models(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_list_has_every_vendor_and_the_models_of_the_catalogue() -> None:
    done = models("list")
    assert (done.returncode, done.stderr) == (0, "")
    for provider in registry.all_providers():
        assert f"\n{provider.name} " in done.stdout, provider.name
    row = next(line for line in done.stdout.splitlines() if "gemini:gemini-2.5-flash " in line)
    assert row.split()[1:6] == ["1,048,576", "65,536", "0.30", "2.50", "0.03"]
    assert "tools images audio" in row
    assert "as of 20" in done.stdout


def test_the_list_can_be_limited_to_one_vendor_by_name_or_alias() -> None:
    found = models_json("list", "--provider", "google")
    assert [vendor["name"] for vendor in found["vendors"]] == ["gemini"]
    assert {model["id"].partition(":")[0] for model in found["models"]} == {"gemini"}
    assert found["checked"]


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("show", "gemini:x", "--json")])
def test_a_key_is_shown_by_the_name_of_its_variable_and_not_by_its_value(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "✓ GOOGLE_API_KEY" not in models("list").stdout
    monkeypatch.setenv("GOOGLE_API_KEY", SECRET)
    monkeypatch.setenv("GEMINI_BASE_URL", f"https://me:{SECRET}@proxy.test/g?key={SECRET}#{SECRET}")
    done = models(*words)
    assert done.returncode == 0, done.stderr
    assert "GOOGLE_API_KEY" in done.stdout
    assert "https://proxy.test/g" in done.stdout
    assert SECRET not in done.stdout + done.stderr


def test_the_first_variable_that_is_set_gives_the_key_and_the_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "")
    monkeypatch.setenv("GOOGLE_API_KEY", SECRET)
    vendor = models_json("show", "gemini:x")["vendor"]
    assert vendor["key"] == "GOOGLE_API_KEY"
    assert vendor["base_url"] == "https://generativelanguage.googleapis.com"
    assert "✓ GOOGLE_API_KEY" in models("list", "--provider", "gemini").stdout


def test_show_prints_everything_known_about_a_model() -> None:
    done = models("show", "google:models/gemini-2.5-pro-preview-09-2025")
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("gemini:gemini-2.5-pro\n", "1,048,576", "input 1.25", "above 200,000  input 2.50"):
        assert text in done.stdout
    found = models_json("show", "gemini:2.5-pro")
    assert found["listed"]
    assert found["id"] == "gemini:gemini-2.5-pro"
    assert found["tiers"][0]["above"] == 200_000


def test_show_says_that_an_unlisted_model_can_be_used() -> None:
    done = models("show", "gemini:gemini-99-ultra")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())  # a narrow terminal wraps it
    assert "Not in the catalogue" in text
    assert "can still be used" in text
    found = models_json("show", "gemini:gemini-99-ultra")
    assert (found["listed"], found["model"]) == (False, "gemini:gemini-99-ultra")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--provider", "gemni"], "Did you mean 'gemini'?"),
        (["show", "gemni:x"], "Did you mean 'gemini'?"),
        (["show", "gemini-2.5-flash"], "the model 'gemini-2.5-flash' has no vendor prefix"),
        (["show", "gemini:"], "has no model name"),
    ],
)
def test_an_error_is_printed_without_a_traceback(words: list[str], message: str) -> None:
    done = models(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_user_defined_prices_are_read_from_the_config_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    own = tmp_path / "settings" / "corral" / "models.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[models."gemini:mine"]\nprices = { input = 0.001, output = 2 }\n')
    assert "0.001  2.00" in models("list", "--provider", "gemini").stdout
    monkeypatch.setenv("CORRAL_MODELS", "")
    assert not models_json("show", "gemini:mine")["listed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[models."gemini:x"]\nprices = { input = nan, output = 1 }', "gemini:x: prices.input"),
        ('[models."gemini:x"]\nprices = { input = -1, output = 1 }', "$.prices.input"),
        ("models = [1\nx", "(at line 2, column"),
        ("\udcff", "utf-8"),
        (None, "No such file"),
    ],
)
def test_an_error_in_user_defined_prices_is_reported(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.toml"
    if text is not None:
        own.write_bytes(text.encode("utf-8", "surrogateescape"))
    monkeypatch.setenv("CORRAL_MODELS", str(own))
    done = models("list")
    assert (done.returncode, done.stdout) == (2, "")
    assert str(own) in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
