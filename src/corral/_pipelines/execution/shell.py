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

from corral._builtin.tools.shell import run_program
from corral._builtin.tools.workspace import Workspace
from corral._pipelines.execution.handlers import NodeContext
from corral._pipelines.scheduler.outcome import MAX_IN_CONTEXT
from corral._pipelines.templates import PLACEHOLDER, as_text, find
from corral._system.environment import SecretRedactor
from corral._telemetry import trace_context
from corral._telemetry.trace_context import TraceContext
from corral.errors import ConfigError
from corral.values import Json

if TYPE_CHECKING:
    from corral._system.sandbox.repository_guard import GitNotice
    from corral._system.sandbox.sandbox import Sandbox

LONGEST_VALUE = 120_000
"""Bytes of a value: Linux accepts no variable over 128 KiB."""
MAX_OUTPUT = 16 * 1024 * 1024
"""Bytes of a command's output that are stored in its file. Of a longer output, the end is."""
MAX_IN_REASON = 2_000
"""Characters of an output in an error message."""

_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9]+")


class CommandResult(msgspec.Struct, frozen=True):
    code: int | None
    """None: a signal ended it."""
    timed_out: bool
    stdout: bytes
    """The end of the output, at most ``MAX_OUTPUT``."""
    cut: int
    """Bytes of stdout that were dropped before that."""
    stderr: str
    stderr_is_cut: bool = False

    def redacted(self, redactor: SecretRedactor) -> CommandResult:
        """The same with secrets redacted, even if a secret was cut in two."""
        out = redactor.clean_part(self.stdout, begin_cut=self.cut > 0)
        err = redactor.clean_text_part(self.stderr, begin_cut=self.stderr_is_cut)
        return msgspec.structs.replace(self, stdout=out, stderr=err)

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out

    def end(self, timeout: float) -> str:
        """How it ended: ``exited with 1``."""
        if self.timed_out:
            return f"did not end within {timeout:g}s"
        return "was killed by a signal" if self.code is None else f"exited with {self.code}"

    def output_tail(self) -> str:
        """The end of stderr, or of stdout if stderr is empty."""
        output = self.stderr.strip() or self.stdout.decode("utf-8", "replace").strip()
        return output[-MAX_IN_REASON:]


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


async def run_command(
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
    output = bytearray()
    notices: list[GitNotice] = []
    if sandbox is not None:
        sandbox = msgspec.structs.replace(sandbox, report=notices.append)
    cut = 0

    def drop_beginning() -> None:
        nonlocal cut
        cut += len(output) - MAX_OUTPUT
        del output[: len(output) - MAX_OUTPUT]

    def on_output(chunk: bytes) -> None:
        output.extend(chunk)
        if len(output) > 2 * MAX_OUTPUT:
            drop_beginning()

    workspace = Workspace(cwd, env=env, pass_env=pass_env, sandbox=sandbox)
    done = await run_program(
        workspace,
        ["sh", "-c", command],
        workspace.root,
        timeout,
        on_output,
        stdin=stdin,
        owner="command",
    )
    if len(output) > MAX_OUTPUT:
        drop_beginning()
    stderr = "\n".join([done.stderr, *(f"corral: {notice.message}" for notice in notices)])
    return CommandResult(
        done.exit.code,
        done.late,
        bytes(output),
        cut,
        stderr if notices else done.stderr,
        done.stderr_is_cut,
    )


def last_bytes(text: str, most: int = MAX_IN_CONTEXT) -> str:
    """At most the last ``most`` bytes: the end of an output says how a command ended."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most:
        return text
    return raw[-most:].decode("utf-8", "ignore")
