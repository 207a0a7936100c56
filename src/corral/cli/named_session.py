"""``corral run --session``: a prompt to a named session, whose agent runs in the background."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from corral.cli.garbage import enable_gc
from corral.cli.run_options import read_options
from corral.cli.ui.turn_output import print_turn, report_end, terminal_asker
from corral.errors import ConfigError, PromptError
from corral.option_definitions import of_kind
from corral.sessions.warm.client import IDLE_SECONDS, Request, WarmTurn
from corral.sessions.warm.names import WarmFiles
from corral.system import threads
from corral.system.terminal import is_interactive
from corral.values import Json, as_object

if TYPE_CHECKING:
    from corral.cli.run_options import RunFlags
    from corral.cli.run_result import TypedFlags
    from corral.cli.ui.progress import Progress
    from corral.cli.ui.stdout import Printer

NOT_WITH_SESSION = ("resume", "fork", "replay", "record_to", "dry_run", "via")
"""Options that have no meaning for a session that runs already."""


class NamedPrompt(NamedTuple):
    """A prompt to the named session of a folder."""

    name: str
    agent: str | None
    """None: the session's agent."""
    text: str | None
    typed: TypedFlags | None
    """``--schema`` and ``--result``."""

    def run(self, flags: RunFlags, printer: Printer, progress: Progress) -> int:
        """Send it to the session's background process, which is started if needed, and print the
        answer. Returns the exit code."""
        turn = self._turn(flags, progress)
        enable_gc()
        if self.typed is not None and not flags["as_json"]:
            return self.typed.run_named(turn, progress)
        done = threads.run_event_loop(print_turn(turn, printer, progress))
        code = report_end(done, progress)
        if code or done is None or self.typed is None:
            return code
        return self.typed.exit_code(done.output)

    def _turn(self, flags: RunFlags, progress: Progress) -> WarmTurn:
        for flag in NOT_WITH_SESSION:
            if flags.get(flag):
                raise ConfigError(f"--session and --{flag.replace('_', '-')} are both given")
        if flags.get("keep") is False:
            raise ConfigError("--session and --no-keep are both given")
        if not (self.text or "").strip():
            raise PromptError("the prompt is empty", hint="Pass it as text, as a file or on stdin.")
        cwd = os.path.realpath(flags.get("cwd") or ".")
        given = os.environ.get("CORRAL_CONFIG")
        request = Request(
            name=self.name,
            agent=self.agent,
            text=self.text,
            options=_json_options({**read_options(flags), "cwd": cwd}),
            interactive=is_interactive(),
            schema=None if self.typed is None else self.typed.schema,
            wants_result=self.typed is not None and not flags["as_json"],
            config=os.path.abspath(given) if given else given,
        )
        return WarmTurn(
            WarmFiles.of(self.name, cwd),
            request,
            ask=terminal_asker(progress, cwd),
            idle=flags["session_idle"] or IDLE_SECONDS,
            on_accepted=lambda accepted: progress.show_denied(
                accepted.agent, accepted.denied_without_asking, agent_asks=accepted.agent_asks
            ),
            on_waiting=progress.waiting,
        )


def _json_options(options: Mapping[str, object]) -> dict[str, Json]:
    """The options for another process. Paths are relative to the folder of this one."""
    given = dict(options)
    for key in of_kind("paths"):
        if isinstance(paths := given.get(key), list):
            given[key] = [os.path.abspath(str(path)) for path in cast("list[object]", paths)]
    return as_object(msgspec.to_builtins(given))
