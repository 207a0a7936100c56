"""A command that must exit with 0.

The exit code alone says little. Code under test runs in the process of the runner: it may end that
process with 0 before any test, or skip the test that would fail. So a command that is known to run
tests must also report that some have passed, and no more skipped tests than before the run. Only
runners are known whose last lines have the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from corral._core import durations
from corral._system.environment import SecretRedactor, named_secrets, variables
from corral._system.process.command import CommandResult, registry_for, run_command
from corral._system.process.process import ProcessSpec
from corral._verification.check import CheckContext
from corral.errors import ConfigError
from corral.receipt import CheckKind, Evidence, Outcome
from corral.values import JsonObject

TIMEOUT = 300.0
TAIL = 4_000
"""Characters of a command's output that evidence has, and the agent gets: the end has the
summary."""
NOT_RUN = (126, 127)
"""Exit codes of a shell that cannot start the command."""


class CommandCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Made by ``command_succeeds``."""

    argv: tuple[str, ...]
    command: str
    """As a person writes it."""
    timeout: float = TIMEOUT
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()
    tail: int = TAIL
    """Characters of the output that the evidence has."""

    def __repr__(self) -> str:
        return f"command_succeeds({self.command!r})"

    @property
    def kind(self) -> CheckKind:
        return "command"

    @property
    def name(self) -> str:
        return self.command

    @property
    def reads_files(self) -> bool:
        return True

    def describe(self) -> JsonObject:
        return {
            "argv": [*self.argv],
            "command": self.command,
            "timeout": self.timeout,
            "variables": [*sorted({*self.env, *self.pass_env})],
        }

    async def run(self, context: CheckContext) -> Evidence:
        """Raises ``CorralError`` if the program of a list cannot be started."""
        given = self.env
        if context.scratch is not None:
            # Caches of test runners that lie in the common folder may be the agent's.
            given = {**given, "TMPDIR": str(context.scratch)}
        argv = self.argv
        if context.places is not None:
            argv = tuple(context.places.in_text(word) for word in argv)
        spec = ProcessSpec(
            argv,
            cwd=context.folder,
            env=context.environment(given, self.pass_env),
            stderr_tail=self.tail,
            registry=registry_for("check"),
            sandbox=context.sandbox,
        )
        limit = min(self.timeout, context.timeout)
        done = await run_command(
            spec, limit, keep=4 * self.tail
        )  # a character has at most four bytes
        redactor = SecretRedactor(named_secrets(variables(self.env)), context.secrets)
        output = shown_output(done.redacted(redactor), self.tail)
        outcome, reason = outcome_of(done), "" if done.ok else done.end(limit)
        if not done.ok and context.has_no_network:
            reason += " (it ran in a sandbox without a network)"
        details: JsonObject = {}
        runner = runner_of(self.command)
        if runner is not None:
            counts = read_counts(runner, output)
            details = {"runner": runner, "passed": counts.passed, "skipped": counts.skipped}
            if done.ok and not counts.passed and not context.is_session:
                outcome = "missing"
                reason = f"{runner} exited with 0 and reported no test that passed"
        return Evidence(
            kind="command",
            name=self.command,
            outcome=outcome,
            reason=reason,
            exit_code=None if done.timed_out else done.code,
            seconds=done.seconds,
            output_hash=done.output_hash,
            errors_hash=done.errors_hash,
            output_bytes=done.output_bytes,
            output=output,
            details=details,
        )


def outcome_of(done: CommandResult) -> Outcome:
    """``missing`` if a shell did not find the command, or a signal ended it."""
    if done.ok:
        return "passed"
    if not done.timed_out and (done.code is None or done.code in NOT_RUN):
        return "missing"
    return "failed"


def shown_output(done: CommandResult, tail: int = TAIL) -> str:
    """The end of both streams."""
    out = done.stdout.decode("utf-8", "replace").strip()
    return "\n".join(filter(None, (out, done.stderr.strip())))[-tail:]


def command_succeeds(
    command: str | Sequence[str],
    *,
    timeout: float | str = TIMEOUT,
    env: Mapping[str, str] | None = None,
    pass_env: Sequence[str] = (),
) -> CommandCheck:
    """A check for ``verify`` and ``until`` that passes if the command exits with 0. If not, the end
    of its output is the complaint.

    A text is run by the shell, a list is run directly: with ``until`` in the session's folder,
    with ``verify`` in a clean tree of what the agent left. The command may
    run code that the agent wrote. So it sees only the variables that programs need, those that
    ``pass_env`` names, and ``env``; and secrets are redacted in the complaint, which a model
    reads. The command and everything it started are ended afterwards. A command that takes longer
    than ``timeout`` (seconds, or ``"5m"``) has failed. One that cannot be started raises
    ``NotInstalled``; with ``verify`` it is missing evidence.

    ::

        corral.run_sync(
            "gemini-cli",
            "Fix the tests",
            policy="edits",
            until=corral.command_succeeds("pytest -q"),
        )
    """
    argv = ["sh", "-c", command] if isinstance(command, str) else [*command]
    shown = command if isinstance(command, str) else " ".join(argv)
    if not shown.strip():
        raise ConfigError("a check is an empty command")
    try:
        limit = durations.seconds(timeout)
    except ValueError as error:
        raise ConfigError(f"the timeout of {shown!r}: {error}") from error
    if not limit > 0:
        raise ConfigError(f"the timeout of {shown!r} must be more than 0, got: {timeout}")
    if "\0" in shown:
        raise ConfigError("a command cannot contain a NUL character")
    return CommandCheck(
        argv=tuple(argv),
        command=shown,
        timeout=limit,
        env=dict(env or {}),
        pass_env=tuple(pass_env),
    )


class TestCounts(msgspec.Struct, frozen=True):
    __test__ = False  # for pytest

    passed: int
    skipped: int = 0


_WORDS = {
    "pytest": re.compile(r"(?:^|[\s/])(?:pytest|py\.test)(?:\s|$)"),
    "unittest": re.compile(r"\s-m\s?unittest(?:\s|$)"),
    "cargo": re.compile(r"(?:^|[\s/])cargo (?:test|t)(?:\s|$)"),
}
"""How a command names its runner."""
_NUMBERS = {
    "pytest": (
        re.compile(r"\b(\d{1,9}) passed\b"),
        re.compile(r"\b(\d{1,9}) (?:skipped|deselected|xfailed)\b"),
    ),
    "unittest": (
        re.compile(r"^Ran (\d{1,9}) tests? in ", re.MULTILINE),
        re.compile(r"\b(?:skipped|expected failures)=(\d{1,9})\b"),
    ),
    "cargo": (
        re.compile(r"^test result: ok\. (\d{1,9}) passed", re.MULTILINE),
        re.compile(r"; (\d{1,9}) ignored;"),
    ),
}
_ONLY_LOOKS = re.compile(
    r"--(?:collect-only|co|version|help|fixtures|markers|list|no-run)\b|\s-h\b"
)


def runner_of(command: str) -> str | None:
    """The known test runner that a command starts."""
    if _ONLY_LOOKS.search(command):
        return None
    return next((name for name, words in _WORDS.items() if words.search(command)), None)


def read_counts(runner: str, output: str) -> TestCounts:
    passed, skipped = (sum(map(int, numbers.findall(output))) for numbers in _NUMBERS[runner])
    if runner == "unittest":
        passed = max(0, passed - skipped)
    return TestCounts(passed, skipped)
