"""Arguments, results and inputs of steps: as JSON, as they are stored, and as typed values."""

from __future__ import annotations

import inspect
import os
from typing import Any, cast

import msgspec

from corral._pipelines.scheduler.outcome import not_json
from corral._protocol.schema import is_model, schema_of
from corral.errors import ConfigError, SchemaInvalid, SchemaNotMet
from corral.values import Json


def to_json_value(value: object) -> Json:
    """A value as JSON: dataclasses, Structs, pydantic models, and what JSON has. Raises
    ``TypeError``, whose text continues ``the result …``."""
    try:
        found: Json = msgspec.to_builtins(value, enc_hook=_encode)
    except (TypeError, NotImplementedError, RecursionError) as error:
        text = str(error)
        raise TypeError(text if text.startswith("contains") else f"is not JSON: {text}") from error
    if wrong := not_json(found):
        raise TypeError(f"is not JSON: it {wrong}")
    return found


def _encode(value: object) -> object:
    if is_model(type(value)):
        dumped: object = cast("Any", value).model_dump(mode="json")
        return dumped
    if isinstance(value, str):  # a subclass, such as the answer of a person
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise TypeError(
        f"contains a value of the type {name}, which cannot be stored: only dataclasses, msgspec"
        " Structs, pydantic models, and what JSON has"
    )


_UNTYPED = (None, type(None), Any, object, inspect.Parameter.empty)


def check_type(kind: object, what: str) -> None:
    """Raises ``ConfigError``, which names ``what``, if no value can be stored as this type."""
    if kind not in _UNTYPED:
        try:
            schema_of(kind)
        except SchemaInvalid as error:
            raise ConfigError(f"{what}: {error.message}", hint=error.hint) from error


def typed_value(value: Json, kind: object, what: str) -> Any:
    """The value of this type that is stored as this JSON. Raises ``ConfigError``, which names
    ``what``."""
    if kind in _UNTYPED:
        return value
    try:
        return schema_of(kind).typed_value(value)
    except (SchemaNotMet, SchemaInvalid) as error:
        raise ConfigError(f"{what}: {error.message}", hint=error.hint) from error
