"""``corral run --schema``, ``--fail-on`` and ``--result``: one JSON value at the end of the run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from corral._cli.ui.signals import INTERRUPTED, run_cancellable, signals
from corral._cli.ui.terminal import answer, echo_err
from corral._cli.ui.turn_output import exit_code, terminal_asker
from corral._protocol.schema import Schema, find_properties, schema_of
from corral._protocol.validation import check as schema_errors
from corral._protocol.validation import json_equal
from corral._system import threads
from corral.errors import ConfigError, SchemaInvalid
from corral.result import Result
from corral.values import Json, JsonObject, is_object

if TYPE_CHECKING:
    from corral._cli.ui.progress import TurnProgress
    from corral._cli.verdict import VerdictRule
    from corral._sessions.warm.client import WarmTurn
    from corral.run_kwargs import RunKwargs

FAILED_ON = 13
"""Exit code if the answer has a value of ``--fail-on``."""
ALWAYS = ("status", "text", "output", "files", "usage", "cost", "error", "session")
"""Keys of ``--result`` that are there in any case."""


def read_schema(given: str) -> JsonObject:
    """The JSON Schema in a file, on stdin (``-``), or written on the command line. Raises
    ``SchemaInvalid`` and ``ConfigError``."""
    source, text = "--schema", given
    if given == "-":
        source, text = "stdin", sys.stdin.read()
    elif not given.lstrip().startswith("{"):
        source = given
        try:
            text = Path(given).read_text("utf-8")
        except OSError as error:
            raise ConfigError(
                f"the schema {given} cannot be read: {error.strerror}",
                hint="Give a file, - for stdin, or the JSON Schema itself.",
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"--schema {given} is not UTF-8: {error}") from error
    try:
        schema: object = json.loads(text)
    except ValueError as error:
        raise SchemaInvalid(f"{source} is not JSON: {error}") from error
    if not is_object(schema):
        raise SchemaInvalid(f"{source} is not a JSON Schema: it must be an object")
    return schema


class FailOn(NamedTuple):
    """``--fail-on FIELD=VALUE,VALUE``."""

    field: str
    values: tuple[str, ...]

    def count(self, output: Json) -> int:
        """How many fields of the output, at any depth, have one of the values."""
        if isinstance(output, list):
            return sum(map(self.count, output))
        if not isinstance(output, dict):
            return 0
        hit = self.field in output and any(
            json_equal(output[self.field], value)
            for text in self.values
            for value in _possible_values(text)
        )
        return hit + sum(map(self.count, output.values()))

    def check(self, schema: JsonObject) -> None:
        """Raises ``ConfigError`` if no answer that fits the schema can have the field, or one of
        the values: a misspelled condition would never fail a run."""
        fields = find_properties(schema)
        if self.field not in fields:
            shown = ", ".join(sorted(fields)) or "none"
            raise ConfigError(
                f"--fail-on {self.field}: the schema has no such field; it has: {shown}"
            )
        for text in self.values:
            errors = [
                schema_errors(value, field, schema, self.field)
                for value in _possible_values(text)
                for field in fields[self.field]
            ]
            if all(errors):
                raise ConfigError(
                    f"--fail-on {self.field}={text}: no answer can have this value: {errors[0][0]}"
                )


def _possible_values(text: str) -> list[Json]:
    """The values that are written like this on the command line: a string, or JSON."""
    try:
        return [text, json.loads(text)]
    except ValueError:
        return [text]


def read_flags(schema: str | None, fail_on: Sequence[str], *, full: bool) -> TypedFlags:
    """The values of ``--schema``, ``--fail-on`` and ``--result``. Raises ``ConfigError`` and
    ``SchemaInvalid``."""
    conditions: list[FailOn] = []
    for given in fail_on:
        field, _, values = given.partition("=")
        if not field or not values:
            raise ConfigError(
                f"--fail-on {given}: it must be FIELD=VALUE", hint="For example: severity=high."
            )
        conditions.append(FailOn(field, tuple(values.split(","))))
    wanted = None if schema is None else schema_of(read_schema(schema))
    for condition in conditions:
        condition.check({} if wanted is None else wanted.json)
    return TypedFlags(wanted, tuple(conditions), is_full=full)


class TypedFlags(NamedTuple):
    """What a run prints as JSON, and when it fails."""

    schema: Schema[Json] | None
    fail_on: tuple[FailOn, ...]
    is_full: bool
    """Print the complete result, not only the output."""

    def run(
        self,
        agent: str,
        text: str | None,
        options: RunKwargs,
        progress: TurnProgress,
        rule: VerdictRule,
    ) -> int:
        """Run to the end, then print the output or the result as JSON."""
        from corral._sessions import api
        from corral._verification.verified import verified

        until = verified() if rule.until_verified else None

        work = api.run(
            agent,
            text,
            ask=terminal_asker(progress, options.get("cwd")),
            output=self.schema,
            until=until,
            rounds=rule.rounds,
            on_event=progress.show,
            **options,
        )
        result = run_cancellable(work, progress)
        code = self.report(result, progress)
        return rule.finish(code, None if result is None else result.receipt)

    def run_named(self, turn: WarmTurn, progress: TurnProgress, rule: VerdictRule) -> int:
        """As ``run``, for a prompt to a named session, whose request wants the result."""

        async def show() -> None:
            with signals(turn.cancel), progress:
                async for event in turn:
                    progress.show(event, turn.notes)

        threads.run_event_loop(show())
        code = self.report(turn.result, progress)
        return rule.finish(code, None if turn.result is None else turn.result.receipt)

    def report(self, result: Result | None, progress: TurnProgress) -> int:
        """Print the output or the result as JSON; returns the exit code. None: interrupted."""
        if result is None:
            return INTERRUPTED
        if self.is_full:
            answer(json.dumps(result_table(result), ensure_ascii=False) + "\n")
        elif result.ok:
            answer(json.dumps(result.output, ensure_ascii=False) + "\n")
        if result.ok:
            return self.exit_code(result.output)
        if result.error is not None and not self.is_full:
            progress.error(result.error)
        return exit_code(result)

    def exit_code(self, output: Json) -> int:
        """The exit code of a success with this output."""
        for condition in self.fail_on:
            if found := condition.count(output):
                times = "once" if found == 1 else f"{found} times"
                shown = f"{condition.field}={','.join(condition.values)}"
                echo_err(f"corral: the answer has {shown} {times}")
                return FAILED_ON
        return 0


def result_table(result: Result) -> Mapping[str, object]:
    """The result as JSON, with the keys in ``ALWAYS`` first."""
    found: dict[str, object] = msgspec.to_builtins(result)
    found["session"] = found.pop("resume_token", None)
    defaults: dict[str, object] = {"text": "", "files": [], "usage": {}, "cost": {}}
    first = {name: found.pop(name, defaults.get(name)) for name in ALWAYS}
    return {**first, **found}
