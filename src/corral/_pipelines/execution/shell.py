"""Shell commands of a pipeline, and the values of the context that they use.

A value never becomes part of the command's text. A placeholder ``{{key}}`` in a command is
replaced by a reference to an environment variable that has the value (``{{tool.output}}`` ->
``"${CONTEXT_TOOL_OUTPUT}"``). The shell does not execute the value of a variable, so text of a
model can be an argument, but never a command. Inside single quotes the shell expands nothing, so a
placeholder there is an error. A placeholder with an unknown key stays. ``$goal`` is such a
variable, too. A command that passes its text to another interpreter (``sh -c``, ``eval``, ``ssh``,
``python -c``) must let that interpreter read the variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.scheduler.outcome import MAX_IN_CONTEXT
from corral._pipelines.templates import PLACEHOLDER, as_text, find
from corral._system.environment import QUIET, for_commands
from corral._system.process.command import CommandResult, registry_for, run_command
from corral._system.process.process import ProcessSpec
from corral._telemetry import trace_context
from corral._telemetry.trace_context import TraceContext
from corral.errors import ConfigError
from corral.values import Json

if TYPE_CHECKING:
    from corral._system.sandbox.repository_guard import GitNotice
    from corral._system.sandbox.sandbox import Sandbox

LONGEST_VALUE = 120_000
"""Bytes of a value: Linux accepts no variable over 128 KiB."""

_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9]+")


def shell_command(text: str, context: Mapping[str, Json]) -> tuple[str, dict[str, str]]:
    """The command with a variable in place of each placeholder, and the variables. Raises
    ``ConfigError``."""
    env: dict[str, str] = {}
    names: dict[str, str] = {}
    out: list[str] = []
    at = 0
    arithmetic = closed = -1  # the last positions of "$((" and "))"
    quote = ""
    for placeholder in PLACEHOLDER.finditer(text):
        key = placeholder[1]
        value = find(context, key)
        if value is None and key not in context:
            continue  # a template of another language, such as docker's
        between = text[at : placeholder.start()]
        quote = _quote_after(between, quote)
        out.append(between)
        if quote == "'":
            raise ConfigError(
                f"{{{{{key}}}}} is in single quotes, where the shell expands nothing",
                hint="Use double quotes, or no quotes: the value is quoted automatically.",
            )
        arithmetic = max(arithmetic, text.rfind("$((", at, placeholder.start()))
        closed = max(closed, text.rfind("))", at, placeholder.start()))
        if arithmetic > closed:
            raise ConfigError(
                f"{{{{{key}}}}} is in $((…)): some shells run commands that they find there"
            )
        name = names.get(key)
        if name is None:
            plain = "CONTEXT_" + _NOT_IN_NAME.sub("_", key).strip("_").upper()
            name, number = plain, 1
            while name in env:
                number += 1
                name = f"{plain}_{number}"
            names[key] = name
            env[name] = _variable_value(key, value)
        out.append(f"${{{name}}}" if quote else f'"${{{name}}}"')
        at = placeholder.end()
    return "".join((*out, text[at:])), env


def _quote_after(text: str, quote: str) -> str:
    """The quote that is open at the end of the text. If the guess is wrong, a word may be split in
    two, but no text becomes a command: the value is in a variable in any case."""
    escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
    return quote


def _variable_value(key: str, value: Json) -> str:
    text = as_text(value)
    if "\0" in text:
        raise ConfigError(
            f"the value of {{{{{key}}}}} has a NUL character: no command accepts that"
        )
    if len(text.encode("utf-8", "replace")) > LONGEST_VALUE:
        raise ConfigError(
            f"the value of {{{{{key}}}}} is over {LONGEST_VALUE:,} bytes: no command accepts that",
            hint="Put it into a file with a write_file node, and name the file.",
        )
    return text


def node_env(work: NodeContext) -> dict[str, str]:
    """The variables that tell agents and commands of a node about the node."""
    env = {
        "ATTRACTOR_STAGE_DIR": str(work.folder.absolute()),
        "ATTRACTOR_NODE_ID": work.node.id,
        "ATTRACTOR_LOGS_ROOT": str(work.run_folder.absolute()),
    }
    if work.resources.options.get("otel") is not None:
        env[trace_context.VARIABLE] = node_span(work).header
    return env


def node_span(work: NodeContext) -> TraceContext:
    """The span of a node's visit, which the spans of its agents and models are below."""
    outer = trace_context.parent_in(work.resources.env)
    return trace_context.of_visit(work.run_id, work.visit.id, outer)


async def run_shell_command(
    command: str,
    *,
    cwd: Path,
    env: Mapping[str, str],
    pass_env: tuple[str, ...],
    timeout: float,
    stdin: bytes | None = None,
    sandbox: Sandbox | None = None,
) -> CommandResult:
    """Run a command in the shell, to its end or its timeout. No process that it started is left; if
    this process is killed, the next one finds the command in the process registry and ends it. The
    command sees the variables that programs need, those in ``pass_env``, and ``env``. Notices about
    repositories that it made in the sandbox are at the end of ``stderr``. Raises ``CorralError`` if
    it cannot be started."""
    notices: list[GitNotice] = []
    if sandbox is not None:
        sandbox = msgspec.structs.replace(sandbox, report=notices.append)
    spec = ProcessSpec(
        ["sh", "-c", command],
        cwd=cwd,
        env=for_commands(pass_env, {**QUIET, **env}),
        stdin=stdin,
        registry=registry_for("command"),
        sandbox=sandbox,
    )
    done = await run_command(spec, timeout)
    if not notices:
        return done
    stderr = "\n".join([done.stderr, *(f"corral: {notice.message}" for notice in notices)])
    return msgspec.structs.replace(done, stderr=stderr)


def last_bytes(text: str, most: int = MAX_IN_CONTEXT) -> str:
    """At most the last ``most`` bytes: the end of an output says how a command ended."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most:
        return text
    return raw[-most:].decode("utf-8", "ignore")
