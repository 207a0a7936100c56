"""Shell commands of a pipeline, and the values of the context that they use.

A value never becomes part of the command's text. A hole ``{{key}}`` in a command becomes a
reference to an environment variable that holds the value (``{{tool.output}}`` →
``"${CONTEXT_TOOL_OUTPUT}"``), and the shell does not read what it expands as commands: what a
model wrote can be an argument, never a command. Inside double quotes a hole is fine; inside
single quotes the shell expands nothing, so a hole there is refused. A hole whose key nobody
knows stays as it is written. ``$goal`` is such a variable too. A command that hands its text
to another interpreter (``sh -c``, ``eval``, ``ssh``, ``python -c``) must let that one read the
variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from corral.builtin.tools.run_program import run_program
from corral.builtin.tools.workspace import Workspace
from corral.errors import ConfigError
from corral.pipelines.execution.handlers import NodeContext
from corral.pipelines.templates import as_text, find
from corral.system.environment import SecretRedactor
from corral.system.platform import WINDOWS
from corral.values import Json

LONGEST_VALUE = 120_000
"""Bytes of a value: Linux takes no variable over 128 KiB."""
KEPT = 16 * 1024 * 1024
"""Bytes of a command's output that are kept in its file; of more, the end."""
IN_CONTEXT = 32 * 1024
"""Bytes of it that go into the context."""

_HOLE = re.compile(r"\{\{\s*+\.?([A-Za-z_][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*+)\s*+\}\}")
"""As in ``templates``, which fills texts that nobody runs."""
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9]+")


class Ran(msgspec.Struct, frozen=True):
    code: int | None
    """None where a signal ended it."""
    late: bool
    stdout: bytes
    """The last of it."""
    cut: int
    """Bytes before that."""
    stderr: str
    stderr_is_cut: bool = False

    def redacted(self, redactor: SecretRedactor) -> Ran:
        """The same without secrets, also where the cut went through one."""
        out = redactor.clean_part(self.stdout, begin_cut=self.cut > 0)
        err = redactor.clean_text_part(self.stderr, begin_cut=self.stderr_is_cut)
        return msgspec.structs.replace(self, stdout=out, stderr=err)

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.late


def command_of(text: str, values: Mapping[str, Json]) -> tuple[str, dict[str, str]]:
    """The command with a variable in place of each hole, and the variables. Raises
    ``ConfigError``."""
    env: dict[str, str] = {}
    names: dict[str, str] = {}
    out: list[str] = []
    at = 0
    arithmetic = closed = -1  # where "$((" and "))" were last seen
    quote = ""
    for hole in _HOLE.finditer(text):
        key = hole[1]
        value = find(values, key)
        if value is None and key not in values:
            continue  # the template of another language: docker's, say
        between = text[at : hole.start()]
        quote = _quote_after(between, quote)
        out.append(between)
        if quote == "'":
            raise ConfigError(
                f"{{{{{key}}}}} stands in single quotes, where the shell expands nothing",
                hint="Use double quotes, or none: the value is quoted by itself.",
            )
        arithmetic = max(arithmetic, text.rfind("$((", at, hole.start()))
        closed = max(closed, text.rfind("))", at, hole.start()))
        if arithmetic > closed:
            raise ConfigError(
                f"{{{{{key}}}}} stands in $((…)): some shells run commands that they find there"
            )
        name = names.get(key)
        if name is None:
            name = _name(key, env)
            names[key] = name
            env[name] = _said(key, value)
        out.append(f"${{{name}}}" if quote else f'"${{{name}}}"')
        at = hole.end()
    return "".join((*out, text[at:])), env


def _quote_after(text: str, quote: str) -> str:
    """Which quote is open at the end of the text. A wrong guess in an odd command costs a word
    split in two, never a command: the value is in a variable either way."""
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


def _name(key: str, taken: Mapping[str, str]) -> str:
    plain = "CONTEXT_" + _NOT_IN_NAME.sub("_", key).strip("_").upper()
    name, number = plain, 1
    while name in taken:
        number += 1
        name = f"{plain}_{number}"
    return name


def _said(key: str, value: Json) -> str:
    text = as_text(value)
    if "\0" in text:
        raise ConfigError(f"the value of {{{{{key}}}}} holds a NUL character: no command takes it")
    if len(text.encode("utf-8", "replace")) > LONGEST_VALUE:
        raise ConfigError(
            f"the value of {{{{{key}}}}} is over {LONGEST_VALUE:,} bytes: no command takes it",
            hint="Put it into a file with a write_file node, and name the file.",
        )
    return text


def stage_env(work: NodeContext) -> dict[str, str]:
    """What agents and commands of a node are told about where they are."""
    return {
        "ATTRACTOR_STAGE_DIR": str(work.folder.absolute()),
        "ATTRACTOR_NODE_ID": work.node.id,
        "ATTRACTOR_LOGS_ROOT": str(work.run_folder.absolute()),
    }


async def run_command(
    command: str,
    *,
    cwd: Path,
    env: Mapping[str, str],
    pass_env: tuple[str, ...],
    timeout: float,
    stdin: bytes | None = None,
) -> Ran:
    """In the shell, to its end or its timeout; nothing that it started is left, and where we are
    killed, whoever goes on finds it in the process registry and ends it. It sees the variables that
    programs need, those that ``pass_env`` names, and ``env``. Raises ``CorralError`` where it
    cannot be started."""
    kept = bytearray()
    cut = 0

    def hear(chunk: bytes) -> None:
        nonlocal cut
        kept.extend(chunk)
        if len(kept) > 2 * KEPT:
            cut += len(kept) - KEPT
            del kept[: len(kept) - KEPT]

    workspace = Workspace(cwd, env=env, pass_env=pass_env)
    shell = ("cmd", "/c") if WINDOWS else ("sh", "-c")
    ran = await run_program(
        workspace,
        [*shell, command],
        workspace.root,
        timeout,
        hear,
        stdin=stdin,
        owner="command",
    )
    if len(kept) > KEPT:
        cut += len(kept) - KEPT
        del kept[: len(kept) - KEPT]
    return Ran(ran.exit.code, ran.late, bytes(kept), cut, ran.stderr, ran.stderr_is_cut)


def shortened(text: str, most: int = IN_CONTEXT) -> str:
    """At most so many bytes of it, the end: that is where a command says how it went."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most:
        return text
    return raw[-most:].decode("utf-8", "ignore")
