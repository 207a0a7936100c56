"""``corral run``, also with a prompt to a named session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack, cast

import click
import msgspec

from corral._agents.spec import InProcess, Launch
from corral._cli.command_types import SectionedCommand, enable_gc, examples, option
from corral._cli.options import (
    ALL,
    FAKE,
    FAKE_FILE,
    agent_option,
    check_output_flags,
    check_prompt_is_given,
    choose_agent,
    choose_channel,
    completing,
    policy_options,
    read_options,
    read_prompt_and_stdin,
    run_options,
)
from corral._cli.ui.progress import TurnProgress
from corral._cli.ui.terminal import echo, echo_json
from corral._cli.ui.turn_output import (
    EventPrinter,
    Printer,
    answer_printer,
    print_turn,
    report_end,
    terminal_asker,
)
from corral._cli.verdict import VerdictFlags, VerdictRule, verdict_options
from corral._system import threads
from corral._system.terminal import is_interactive
from corral.errors import AuthenticationFailed, ConfigError, PromptError
from corral.values import as_object

if TYPE_CHECKING:
    from corral._cli.options import PolicyFlags
    from corral._cli.run_result import TypedFlags
    from corral.events import Done
    from corral.result import Result
    from corral.run_kwargs import RunKwargs

    class RunFlags(PolicyFlags, VerdictFlags, RunKwargs):
        """The options of ``corral run``."""

        session: str | None
        session_idle: float | None
        schema: str | None
        fail_on: tuple[str, ...]
        full_result: bool
        as_json: bool
        quiet: bool
        dry_run: bool

    class _LaunchReport(TypedDict):
        """What ``--dry-run`` prints. Of variables and files only the names."""

        agent: str
        version: str | None
        model: str | None
        program: str
        cwd: str
        argv: list[str]
        stdin_bytes: int
        env: list[str]
        files: list[str]
        sandbox: str
        sandbox_report: object
        policy: object
        notes: list[str]


NOT_WITH_SESSION = (
    "resume",
    "fork",
    "replay",
    "record_to",
    "dry_run",
    "via",
)
"""Options that have no meaning for a session that runs already."""


@click.command(
    "run",
    cls=SectionedCommand,
    epilog=examples(
        'corral run --approve edits --verify "pytest -q" "Fix the failing test"',
        'git diff | corral run --agent codex "Review this"',
    ),
)
@click.argument("prompt", required=False)
@option("Prompt", "-f --file file FILE", "Read the prompt from this file; - is stdin.")
@agent_option
@policy_options
@run_options(ALL)
@verdict_options()
@option(
    "Session",
    "--session NAME",
    "Use the named session of this folder. Its agent keeps running in the background.",
    shell_complete=completing("names"),
)
@option(
    "Session",
    "--session-idle TIME",
    "Time without a prompt after which that agent ends.  [default: 30m]",
    is_rare=True,
)
@option(
    "Output",
    "--schema FILE",
    "Print an answer that fits this JSON Schema: a file, - for stdin, or the schema itself.",
)
@option(
    "Output",
    "--fail-on FIELD=VALUE",
    "Exit with 13 if a field of the --schema answer, at any depth, has this value (or"
    " one of VALUE,VALUE; repeatable).",
    multiple=True,
    is_rare=True,
)
@option(
    "Output",
    "--result full_result",
    "Print the result as one JSON object: status, text, output, files, usage, cost.",
)
@option("Output", "--json as_json", "Print events, one JSON object per line.")
@option("Output", "-q --quiet", "Print only the last message of the answer.")
@FAKE
@option("Tests", "--dry-run", "Show what would be started.", is_rare=True)
def command(
    prompt: str | None, file: str | None, agent: str | None, **flags: Unpack[RunFlags]
) -> int:
    """Run an agent with PROMPT.

    The prompt is the argument, --file, or stdin. If there is a prompt and
    something is piped to stdin, both are sent. The answer goes to stdout,
    progress to stderr.

    \b
    Exit codes: 0 ok · 1 error · 2 usage · 3 timeout · 4 no such session ·
    5 permission denied · 6 authentication · 7 rate or usage limit · 8 turn or
    budget limit · 9 schema not met · 10 waiting for a person · 11 incomplete ·
    12 agent not installed · 13 a value of --fail-on · 14 not verified (--require) ·
    130 interrupted
    """
    check_output_flags(as_json=flags["as_json"], quiet=flags["quiet"])
    if flags["as_json"] and flags["full_result"]:
        raise ConfigError("--json prints events: leave out --result")
    if flags["fail_on"] and flags["schema"] is None:
        raise ConfigError("--fail-on needs --schema: the schema defines the field")
    if flags["session_idle"] is not None and flags["session"] is None:
        raise ConfigError("--session-idle is for --session")
    typed: TypedFlags | None = None
    if flags["schema"] is not None or flags["full_result"]:
        from corral._cli.run_result import read_flags

        typed = read_flags(flags["schema"], flags["fail_on"], full=flags["full_result"])
    rule = VerdictRule.read(flags, flags)
    text = read_prompt_and_stdin(prompt, file)
    progress = TurnProgress(enabled=not flags["quiet"])
    printer = EventPrinter() if flags["as_json"] else answer_printer(quiet=flags["quiet"])
    if flags["session"] is not None:
        return _run_named(agent, text, flags, RunEnd(typed, rule), printer, progress)
    options = read_options(flags)
    agent = choose_agent(agent, options)
    check_prompt_is_given(text, agent, options)
    choose_channel(agent, options)
    if "resume" in options and not (text or "").strip():
        text = None  # the question that is still open, if there is one
    if flags["dry_run"]:
        return _dry_run(agent, options, text, as_json=flags["as_json"])
    progress.announce_probes()
    if typed is not None and not flags["as_json"]:
        enable_gc()
        return typed.run(agent, text, options, progress, rule)
    end = RunEnd(typed, rule)
    return threads.run_event_loop(run_session(agent, text, options, printer, progress, end))


class RunEnd(NamedTuple):
    """What is done at the end of a run."""

    typed: TypedFlags | None = None
    rule: VerdictRule = VerdictRule()


async def run_session(
    agent: str,
    text: str | None,
    options: RunKwargs,
    printer: Printer,
    progress: TurnProgress,
    end: RunEnd,
) -> int:
    """Run an agent, also in a session that is resumed, and print it; returns the exit code."""
    from corral._sessions.credentials import check_ready
    from corral._sessions.fallback import Given, run_in_agents
    from corral._sessions.session import Session
    from corral._sessions.turn import Turn

    typed, rule = end.typed, end.rule
    asker = terminal_asker(progress, options.get("cwd"))
    ends: list[Done | None] = []

    async def collect(turn: Turn) -> Result:
        ends.append(await print_turn(turn, printer, progress))
        return await turn.collect()

    async def work(session: Session, prompt: Given) -> Result:
        check_ready(session.prepared, session.id)
        if ends and (before := ends[-1]) is not None and before.error is not None:
            progress.print_line(f"! {before.agent}: {before.error.message}")
        remote = session.prepared.run.is_answered_remotely
        can_ask = session.prepared.agent.asks and (asker is not None or remote)
        progress.begin(session.prepared, asks=can_ask)
        if asker is None and can_ask:
            progress.answer_with = f"corral runs answer {session.id} --allow"
        enable_gc()
        if typed is None and not rule.until_verified:
            return await collect(session.prompt(prompt))
        from corral._cli.run_goal import make_goal
        from corral._sessions.goals import run_goal

        limit = session.prepared.run.max_total_tokens
        goal = make_goal(None if typed is None else typed.schema, rule, limit, progress)
        return await run_goal(goal, session, prompt, collect)

    result = await run_in_agents(Session(agent, {**options}, asker), text, work)
    done = ends[-1]
    if done is not None and len(ends) > 1:
        from corral._cli.run_goal import end_of_turns

        done = end_of_turns(done, result)
    code = report_end(done, progress)
    if typed is not None:
        code = code or typed.exit_code(done.output if done else None)
    return rule.finish(code, done.receipt if done else None)


def _dry_run(agent: str, options: RunKwargs, text: str | None, *, as_json: bool) -> int:
    """Make all checks of a real run and print what would be started, also if only credentials are
    missing. Nothing is written or started."""
    from corral._cli.ui.tables import policy_table, sandbox_table
    from corral._sessions.handover import split_resume
    from corral._sessions.prepare import prepare
    from corral._sessions.prepared_run import resolve_prompt
    from corral._sessions.sandbox import sandbox_report
    from corral._system.paths import sessions

    source, own = split_resume(agent, {**options})
    prepared = prepare(agent, own, has_asker=is_interactive())
    prompt = resolve_prompt(prepared, text)
    if source is not None:
        from corral._sessions.handover import begin, first_prompt

        record = begin(prepared, source, has_cwd=own.get("cwd") is not None)
        if record.handover is not None:
            prompt = first_prompt(record.handover, prompt, prepared)
    rows = sandbox_report(prepared)
    launch = Launch(argv=(), env={}, stdin=b"")
    missing: AuthenticationFailed | None = None
    if not isinstance(prepared.agent.transport, InProcess):
        try:
            launch = prepared.launch(
                prepared.launch_context(sessions() / "SESSION", prepared.links()), prompt
            )
        except AuthenticationFailed as error:
            if as_json:
                raise
            missing = error
    shown: _LaunchReport = {
        "agent": prepared.agent.name,
        "version": prepared.program.version,
        "model": prepared.run.model,
        "program": prepared.program.path,
        "cwd": prepared.cwd,
        "argv": list(launch.argv),
        "stdin_bytes": len(launch.stdin),
        "env": sorted(prepared.env(launch)),
        "files": sorted(launch.files),
        "sandbox": "none"
        if prepared.sandbox is None
        else f"{prepared.sandbox.method}: {prepared.sandbox_reason}",
        "sandbox_report": msgspec.to_builtins(rows),
        "policy": msgspec.to_builtins(prepared.compiled.report),
        "notes": list(launch.notes),
    }
    if as_json:
        echo_json(msgspec.json.encode(shown).decode())
        return 0
    for name in ("agent", "version", "model", "program", "cwd", "stdin_bytes", "sandbox"):
        unset = "the agent's own" if name == "model" else "–"
        echo(f"{name:12} {unset if shown[name] in (None, '') else shown[name]}")
    if missing is None:
        echo(f"{'argv':12} {' '.join(shown['argv']) or '–'}")
        echo(f"{'env names':12} {' '.join(shown['env'])}")
        echo(f"{'files':12} {' '.join(shown['files']) or '–'}")
    for note in shown["notes"]:
        echo(f"{'note':12} {note}")
    echo(policy_table(prepared.compiled.report))
    if rows:
        echo(sandbox_table(rows))
    if missing is not None:
        raise missing
    return 0


def _run_named(
    agent: str | None,
    text: str | None,
    flags: RunFlags,
    end: RunEnd,
    printer: Printer,
    progress: TurnProgress,
) -> int:
    """``--session``: send the prompt to the background process of the named session, which is
    started if needed, and print the answer. Without ``agent``, the session's agent answers."""
    # Named sessions are for speed: a further prompt loads only what it needs.
    from corral._option_definitions import of_kind
    from corral._sessions.warm.client import IDLE_SECONDS, WarmRequest, WarmTurn
    from corral._sessions.warm.names import WarmFiles

    name = flags["session"] or ""
    for flag in NOT_WITH_SESSION:
        if flags.get(flag):
            raise ConfigError(f"--session and --{flag.replace('_', '-')} are both given")
    if flags.get("keep") is False:
        raise ConfigError("--session and --no-keep are both given")
    if FAKE_FILE in click.get_current_context().meta:
        raise ConfigError("--session and --fake are both given: its agent outlives the model")
    if text is None or not text.strip():
        raise PromptError("the prompt is empty", hint="Pass it as text, as a file or on stdin.")
    cwd = os.path.realpath(flags.get("cwd") or ".")
    config = os.environ.get("CORRAL_CONFIG")
    options: dict[str, object] = {**read_options(flags), "cwd": cwd}
    for key in of_kind("path", "paths"):  # they are relative to the folder of this process
        if isinstance(paths := options.get(key), list):
            options[key] = [os.path.abspath(str(path)) for path in cast("list[object]", paths)]
        elif isinstance(paths, str) and key != "program":
            options[key] = os.path.abspath(os.path.expanduser(paths))
    typed, rule = end
    wants_result = (typed is not None and not flags["as_json"]) or rule.until_verified
    turn = WarmTurn(
        WarmFiles.of(name, cwd),
        WarmRequest(
            name=name,
            agent=agent,
            text=text,
            options=as_object(msgspec.to_builtins(options)),
            interactive=is_interactive(),
            schema=None if typed is None or typed.schema is None else typed.schema.json,
            wants_result=wants_result,
            until_verified=rule.until_verified,
            rounds=rule.rounds,
            config=os.path.abspath(config) if config else config,
        ),
        ask=terminal_asker(progress, cwd),
        idle=flags["session_idle"] or IDLE_SECONDS,
        on_accepted=lambda accepted: progress.show_denied(
            accepted.agent, accepted.denied_without_asking, agent_asks=accepted.agent_asks
        ),
        on_waiting=progress.waiting,
    )
    enable_gc()
    if typed is not None and not flags["as_json"]:
        return typed.run_named(turn, progress, rule)
    done = threads.run_event_loop(print_turn(turn, printer, progress))
    if rule.until_verified and done is not None and turn.result is not None:
        from corral._cli.run_goal import end_of_turns

        done = end_of_turns(done, turn.result)
    code = report_end(done, progress)
    if typed is not None and done is not None:
        code = code or typed.exit_code(done.output)
    return rule.finish(code, None if done is None else done.receipt)
