"""JSON and TOML that is nested too deeply is rejected with a clear error."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from corral import errors
from corral._core.nesting import MAX_DEPTH, decode_json, decode_toml, is_too_deep
from corral._protocol.response_builder import ResponseBuilder
from corral._protocol.schema import schema_of
from corral._system import config
from corral._testing.model_server.script import Script
from corral.messages import ToolCall

DEPTHS = [MAX_DEPTH + 1, 900, 100_000]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", DEPTHS)
def test_json_beyond_the_limit_is_rejected(depth: int) -> None:
    with pytest.raises(msgspec.DecodeError, match="levels deep"):
        decode_json(nested(depth))


def test_json_at_the_limit_passes() -> None:
    assert not is_too_deep(decode_json(nested(MAX_DEPTH)))
    assert decode_json('{"a": 1}', dict[str, int]) == {"a": 1}


@pytest.mark.parametrize(
    "text",
    [
        "a = " + nested(300),
        "a = " + nested(5000),
        "a = " + "{b=" * 3000 + "1" + "}" * 3000,
        ".".join("a" * 100_000) + " = 1",
        "[" + " . ".join("a" * 100_000) + "]",
        ".".join(["'a b'"] * 50_000) + " = 1",
        ".".join(['"a"'] * 50_000) + " = 1",
    ],
    ids=lambda text: text[:12],
)
def test_toml_that_is_too_deep_is_rejected(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError, match=r"levels deep|more than 50 parts"):
        decode_toml(text)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("char", ["a", "a.", '"', "'", '"a', ". ", "-"])
def test_the_search_for_long_keys_takes_linear_time(char: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError):
        decode_toml("x = 1\n" + char * 300_000 + "\n=")


def test_toml_of_the_common_kind_passes() -> None:
    assert decode_toml("[a.b]\nc.d = '1.2.3.4'\n") == {"a": {"b": {"c": {"d": "1.2.3.4"}}}}


@pytest.mark.parametrize("kind", ["config", "policy", "large", "script.toml", "script.json"])
def test_a_file_that_is_too_deep_is_a_clear_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / (kind if "." in kind else "file.toml")
    path.write_text("a = " + nested(5000))
    match kind:
        case "config":
            monkeypatch.setenv("CORRAL_CONFIG", str(path))
            with pytest.raises(errors.ConfigError, match="levels deep"):
                config.load("gemini-cli")
        case "large":
            path.write_text("#" * (config.LARGEST + 1))
            with pytest.raises(errors.PolicyError, match="not a configuration file"):
                config.read_policy(path)
        case "policy":
            with pytest.raises(errors.PolicyError, match="levels deep"):
                config.read_policy(path)
        case _:
            if kind.endswith("json"):
                path.write_text(nested(5000))
            with pytest.raises(errors.ConfigError, match="levels deep"):
                Script.load(path)


def test_a_schema_that_is_too_deep_is_a_clear_error() -> None:
    schema: dict[str, object] = {}
    for _ in range(2000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(errors.SchemaInvalid, match="nested too deeply"):
        schema_of(schema)


@pytest.mark.parametrize("depth", DEPTHS)
def test_tool_arguments_that_are_too_deep_are_stored_as_text(depth: int) -> None:
    parts = ResponseBuilder("provider", "model")
    parts.start_call(0, "id", "tool")
    written = '{"a": ' + nested(depth) + "}"
    parts.add_arguments(0, written)
    parts.end_call(0)
    parts.set_finish("tool_calls")
    [call] = [part for part in parts.response().message.content if isinstance(part, ToolCall)]
    assert (call.arguments, call.raw) == ({}, written)
