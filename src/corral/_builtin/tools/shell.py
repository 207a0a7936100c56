"""shell: runs a command, and everything it starts, to its end or its timeout.

Nothing that a command started runs after the call, in whatever session or process group it is.
Memory stays bounded: after ``STORED`` bytes of output the middle is dropped, and a marker shows
where. Other tools run their programs with ``run_program`` too.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from corral._builtin.tools.tool import (
    SHELL_LIMITS,
    Arguments,
    BuiltinTool,
    Output,
    OutputLimits,
    ToolOutcome,
    truncate,
)
from corral._builtin.tools.workspace import ToolError, Workspace
from corral._system import fs
from corral._system.process import command
from corral._system.process.command import Completed
from corral._system.process.process import Exit, ProcessSpec

TIMEOUT = 120_000
LONGEST = 600_000
STORED = 1_000_000
"""Bytes of output that are stored: the first half and the last half. Also the limit for live
output."""


class Shell(Arguments, frozen=True):
    command: Annotated[str, Meta(description="The command line, for bash.", min_length=1)]
    timeout_ms: Annotated[
        int,
        Meta(description=f"Milliseconds it may take, {LONGEST} at most.", ge=1, le=LONGEST),
    ] = TIMEOUT


_DROPPED = " bytes of output were dropped here …]"
GAP = re.compile(rf"\n\[… [0-9,]+{re.escape(_DROPPED)}\n")
"""The marker in a text of ``OutputBuffer`` where bytes were dropped."""


class OutputBuffer:
    """The first and the last bytes of a stream, and how many were between."""

    def __init__(self, most: int = STORED) -> None:
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._half:
            self._drop()

    def _drop(self) -> None:
        over = max(0, len(self._tail) - self._half)
        del self._tail[:over]
        self._dropped += over

    @property
    def text(self) -> str:
        self._drop()
        if not self._dropped:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        # A character that was cut is left out.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        tail = bytes(self._tail)
        begin = next((at for at, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 4)
        output_text = f"[… {self._dropped:,}{_DROPPED}"
        return f"{head}\n{output_text}\n{tail[begin:].decode('utf-8', 'replace')}"


class Live:
    """Emits output as it comes, in complete characters, up to a limit."""

    def __init__(self, emit: Output) -> None:
        self._emit = emit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._room = STORED

    def add(self, chunk: bytes) -> None:
        if self._room <= 0:
            return
        self._room -= len(chunk)
        if text := self._decoder.decode(chunk):
            self._emit(text)
        if self._room <= 0:
            self._emit("\n[… further output is not shown live …]\n")


async def run_program(
    workspace: Workspace,
    argv: Sequence[str],
    cwd: Path,
    seconds: float,
    on_output: Callable[[bytes], bool | None],
    *,
    stdin: bytes | None = None,
) -> Completed:
    """Run a program of a tool, as the workspace allows it."""
    spec = ProcessSpec(
        argv,
        cwd=cwd,
        env=workspace.child_env(),
        stdin=stdin,
        scratch=workspace.scratch,
        registry=command.registry_for("corral"),
        sandbox=workspace.sandbox,
    )
    return await command.run_program(spec, seconds, on_output)


async def shell(workspace: Workspace, args: Shell, output: Output) -> ToolOutcome:
    if "\0" in args.command:
        raise ToolError("a command cannot contain a NUL")
    buffer, live = OutputBuffer(), Live(output)

    def on_output(chunk: bytes) -> None:
        buffer.add(chunk)
        live.add(chunk)

    seconds = args.timeout_ms / 1000
    program = fs.find_program("bash") or "sh"
    # The first shell only joins the two streams, and then executes the requested one.
    argv = ["sh", "-c", 'exec "$0" -c "$1" 2>&1', program, args.command]
    ran = await run_program(workspace, argv, workspace.root, seconds, on_output)
    exited = None if ran.late else ran.exit
    match exited:
        case None:
            how = f"did not end within {seconds:g} s and was killed, with everything it started"
        case Exit(code=None, signal=None):
            how = "ended in an unknown way"
        case Exit(code=None, signal=number):
            how = f"was killed by signal {number}"
        case Exit(code=code):
            how = f"exited with {code}"
    output_text = buffer.text
    text = output_text if output_text.endswith("\n") or not output_text else f"{output_text}\n"
    last = f"[the command {how}{'' if output_text else ', without output'}]"
    failed = exited is None or exited.code != 0
    room = OutputLimits(SHELL_LIMITS.chars - len(last), (SHELL_LIMITS.lines or 0) - 1)
    shown = truncate(text, room)
    return ToolOutcome(text + last, is_error=failed, shown=shown + last)


TOOLS = (
    BuiltinTool(
        arguments=Shell,
        run=shell,
        name="shell",
        kind="execute",
        description=(
            "Run a command in the root of the workspace. It gets no input. Its output and its"
            " errors come together. Everything it started is ended when it returns, also what"
            " it put in the background. Set timeout_ms for a command that takes long."
        ),
        limits=SHELL_LIMITS,
        title_form="Run command",
        command_argument="command",
    ),
)
