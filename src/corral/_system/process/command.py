"""Run a program to its end or its timeout, with everything that it starts.

``run_program`` passes its output on as it comes: tools use it. ``run_command`` keeps the end of the
output, its size and its hash: the commands of pipelines and every check of an agent's work use it.
Memory is bounded, however much a program writes, and nothing that it started is left afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from corral._core import durations
from corral._system import paths
from corral._system.clock import Stopwatch
from corral._system.environment import SecretRedactor
from corral._system.process.process import Exit, Process, ProcessSpec
from corral._system.process.tree import ProcessRegistry

GRACE = 2.0
"""Seconds between TERM and KILL."""
MAX_OUTPUT = 16 * 1024 * 1024
"""Bytes of a command's output that are kept. Of a longer output, the end is."""
MAX_IN_REASON = 2_000
"""Characters of an output in an error message."""


class Completed(msgspec.Struct, frozen=True):
    exit: Exit
    late: bool
    """Whether it was ended because its time was over."""
    stderr: str
    stderr_is_cut: bool
    """Whether there was more text before ``stderr``."""


def registry_for(owner: str) -> ProcessRegistry:
    """The registry of processes, for a program of this owner: if corral is killed, another corral
    process ends the program."""
    return ProcessRegistry(paths.process_registry(), owner)


async def run_program(
    spec: ProcessSpec, seconds: float, on_output: Callable[[bytes], bool | None]
) -> Completed:
    """Run a program and pass its stdout to ``on_output``, until it ends, its time is over, or
    ``on_output`` returns True because it needs no more. When this returns or raises, nothing that
    the program started is left.

    Output of processes that the program left running is read for a moment after its own exit.
    Raises ``CorralError`` if it cannot be started.
    """
    process = await Process.start(spec)

    async def read_output() -> None:
        while chunk := await process.read():
            if on_output(chunk):
                return
            # If output is always available, ``read`` never waits, and no timeout would ever fire.
            await asyncio.sleep(0)

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await read_output()
    except TimeoutError:
        if not limit.expired():
            raise
        # What it writes after TERM is part of its output.
        async with asyncio.TaskGroup() as group:
            group.create_task(read_output())
            await process.end(GRACE)
    finally:
        exited = await process.end(GRACE)
    return Completed(exited, limit.expired(), process.stderr, process.stderr_is_cut)


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    exit: Exit
    timed_out: bool
    stdout: bytes
    """The end of the output."""
    cut: int
    """Bytes of stdout that were dropped before that."""
    stderr: str
    stderr_is_cut: bool = False
    output_hash: str = ""
    """``sha256:…`` of all of stdout."""
    errors_hash: str = ""
    """The same of stderr."""
    output_bytes: int = 0
    """Bytes of both together."""
    seconds: float = 0.0

    @property
    def code(self) -> int | None:
        """None: a signal ended it."""
        return self.exit.code

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
            return f"did not end within {durations.text(timeout)}"
        if self.code is not None:
            return f"exited with {self.code}"
        number = self.exit.signal
        return "ended in an unknown way" if number is None else f"was killed by signal {number}"

    def output_tail(self) -> str:
        """The end of stderr, or of stdout if stderr is empty."""
        output = self.stderr.strip() or self.stdout.decode("utf-8", "replace").strip()
        return output[-MAX_IN_REASON:]


async def run_command(
    spec: ProcessSpec, timeout: float, *, keep: int = MAX_OUTPUT
) -> CommandResult:
    """Run a program to its end or its timeout. The last ``keep`` bytes of its stdout are kept. The
    rest is as for ``run_program``."""
    import hashlib  # slow to load

    output = bytearray()
    all_output, all_errors = hashlib.sha256(), hashlib.sha256()
    size = errors_size = 0

    def on_output(chunk: bytes) -> None:
        nonlocal size
        size += len(chunk)
        all_output.update(chunk)
        output.extend(chunk)
        if len(output) > 2 * keep:
            del output[:-keep]

    def on_errors(chunk: bytes) -> None:
        nonlocal errors_size
        errors_size += len(chunk)
        all_errors.update(chunk)

    stopwatch = Stopwatch()
    spec = msgspec.structs.replace(spec, on_stderr=on_errors)
    done = await run_program(spec, timeout, on_output)
    del output[:-keep]
    return CommandResult(
        exit=done.exit,
        timed_out=done.late,
        stdout=bytes(output),
        cut=size - len(output),
        stderr=done.stderr,
        stderr_is_cut=done.stderr_is_cut,
        output_hash=f"sha256:{all_output.hexdigest()}",
        errors_hash=f"sha256:{all_errors.hexdigest()}",
        output_bytes=size + errors_size,
        seconds=round(stopwatch.seconds, 3),
    )
