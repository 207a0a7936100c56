"""The options of a run: where it works, and what is stored of them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from corral._system import fs
from corral.errors import ConfigError
from corral.run_kwargs import AgentKwargs, RunKwargs
from corral.values import Json, as_object, is_sequence


def workspace_path(cwd: str | os.PathLike[str] | None) -> Path:
    """The directory in which agents and commands work. Raises ``ConfigError``."""
    place = Path(cwd or ".").absolute()
    if not fs.is_dir(place):
        raise ConfigError(f"the workspace {str(place)!r} is not a directory")
    return place


def with_active_span(options: RunKwargs) -> RunKwargs:
    """The options, which name the caller's active span if spans are sent: the nodes and tasks may
    run in other processes."""
    if options.get("otel") is not None:
        from corral._telemetry import trace_context

        options["env"] = trace_context.with_parent(options.get("env") or {})
    return options


def as_json(options: AgentKwargs | None) -> dict[str, Json]:
    """The options as JSON, to store them with the run. Raises ``ConfigError``."""
    given: dict[str, object] = {**(options or {})}
    verify = given.get("verify") or ()
    if not all(isinstance(each, str) for each in (verify if is_sequence(verify) else (verify,))):
        raise ConfigError(
            "a durable run can be verified with commands only",
            hint="Give them as text: verify='pytest -q'.",
        )
    try:
        return as_object(msgspec.to_builtins(options or {}, enc_hook=os.fspath))
    except (TypeError, NotImplementedError) as error:
        raise ConfigError(f"a durable run cannot store this option: {error}") from error
