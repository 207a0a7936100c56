"""``corral compare``: the same prompt for several agents at once, and what each of them did."""

from __future__ import annotations

import asyncio
import gc
import json
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from corral.cli.exit_codes import exit_code
from corral.cli.options import (
    PolicyFlags,
    completing,
    policy_options,
    read_prompt_and_stdin,
)
from corral.cli.run_options import EVERYWHERE, read_options, run_options
from corral.cli.run_result import read_schema, result_table
from corral.cli.sections import SectionedCommand, option
from corral.cli.ui.compare_progress import Progress
from corral.cli.ui.terminal import answer_markdown, echo_err, echo_json
from corral.errors import ConfigError, CorralError, PromptError, StorageFailed
from corral.result import Result
from corral.run_kwargs import RunKwargs
from corral.system import threads
from corral.values import JsonObject

if TYPE_CHECKING:
    from corral.system.git.worktree import Change

INTERRUPTED = 130
SHARED = tuple(name for name in EVERYWHERE if name != "program")
"""The options of agents. Each agent has its own program: corral.toml can name it."""
WRITING = {"write", "shell"}
"""Capabilities with which two agents would change the same files."""


class CompareFlags(PolicyFlags, RunKwargs):
    """The options of the command."""

    file: str | None
    agent: tuple[str, ...]
    worktree: bool
    schema: str | None
    as_json: bool
    quiet: bool


class Answer(msgspec.Struct, frozen=True):
    """What one agent did."""

    agent: str
    """As it was named."""
    result: Result
    change: Change | None = None
    """Of its worktree."""


@click.command("compare", cls=SectionedCommand)
@click.argument("prompt", required=False)
@option(
    "Prompt",
    "-f",
    "--file",
    type=click.Path(),
    metavar="FILE",
    help="Read the prompt from this file; - is stdin.",
)
@option(
    "Agent",
    "-a",
    "--agent",
    multiple=True,
    metavar="NAME",
    shell_complete=completing("agents"),
    help="An agent, or vendor:model for the built-in agent on that model; give two or more.",
)
@policy_options
@run_options((*SHARED, "images", "attachments", "keep"))
@option(
    "Execution",
    "--worktree",
    is_flag=True,
    help="Run each agent in its own git worktree at HEAD; its work becomes a branch.",
)
@option(
    "Output",
    "--schema",
    metavar="FILE",
    help="Answers that fit this JSON Schema: a file, - for stdin, or the schema itself.",
)
@option("Output", "--json", "as_json", is_flag=True, help="Print one JSON object per agent.")
@option("Output", "-q", "--quiet", is_flag=True, help="Print only the answers.")
def command(prompt: str | None, **flags: Unpack[CompareFlags]) -> int:
    """Run several agents with the same PROMPT at once.

    Each answer is printed when it is complete; a table at the end compares status, time, tokens and
    cost. No one is asked: what the policy does not allow is denied.

    \b
    Exit codes: 0 all succeeded · 2 bad input, nothing was started · else that of the first
    agent that failed · 130 interrupted
    """
    agents = flags["agent"]
    if len(agents) < 2 or len(set(agents)) < len(agents):
        raise ConfigError(
            "compare needs two or more different agents",
            hint="Repeat --agent: corral compare -a AGENT -a AGENT PROMPT.",
        )
    if flags["as_json"] and flags["quiet"]:
        raise ConfigError("--json and --quiet are both given")
    schema = read_schema(flags["schema"]) if flags["schema"] is not None else None
    text = read_prompt_and_stdin(prompt, flags["file"])
    if not (text or "").strip():
        raise PromptError("the prompt is empty", hint="Pass it as text, as a file or on stdin.")
    comparison = Comparison(agents, text or "", read_options(flags), schema, flags)
    comparison.check()
    gc.enable()  # loading is done; the run may be long
    return threads.run_event_loop(comparison.run())


class Comparison:
    """Runs the agents and prints their answers."""

    def __init__(
        self,
        agents: Sequence[str],
        text: str,
        options: RunKwargs,
        schema: JsonObject | None,
        flags: CompareFlags,
    ) -> None:
        self._agents, self._text, self._schema = agents, text, schema
        self._options = options
        self._flags = flags
        self._cwd = Path(options.get("cwd") or ".").absolute()
        self._name = f"compare-{secrets.token_hex(3)}"
        self._answers: list[Answer] = []
        self._progress = Progress(agents, enabled=not flags["quiet"])

    def check(self) -> None:
        """Make every check of a real run, for each agent. Nothing is started. Raises
        ``CorralError``."""
        from corral.sessions.credentials import check_model_key
        from corral.sessions.prepare import prepare

        for agent in self._agents:
            prepared = prepare(agent, {**self._options})
            check_model_key(prepared.agent, prepared.run)
            allowed = {row.capability for row in prepared.compiled.report if row.verdict == "allow"}
            if allowed & WRITING and not self._flags["worktree"]:
                raise ConfigError(
                    f"the agents may change files, all in {prepared.cwd}",
                    hint="Add --worktree: each agent then works in its own git worktree.",
                )
        if self._flags["worktree"]:
            from corral.system.git.worktree import repository_root

            repository_root(self._cwd)

    async def run(self) -> int:
        """Run all agents; return the exit code."""
        from corral.cli.ui.signals import signals

        work = asyncio.ensure_future(asyncio.gather(*map(self._run_one, self._agents)))

        def cancel() -> None:
            work.cancel()

        with signals(cancel), self._progress:
            try:
                await work
            except asyncio.CancelledError:
                echo_err("corral: interrupted")
                return INTERRUPTED
        if not self._flags["quiet"]:
            self._print_table()
        by_name = {each.agent: each.result for each in self._answers}
        return next((code for each in self._agents if (code := exit_code(by_name[each]))), 0)

    async def _run_one(self, agent: str) -> None:
        if self._flags["worktree"]:
            found = await self._run_in_worktree(agent)
        else:
            found = Answer(agent, await self._send(agent, self._cwd))
        self._answers.append(found)
        self._print(found)

    async def _send(self, agent: str, cwd: Path) -> Result:
        from corral.sessions import api

        options = self._options.copy()
        options["cwd"] = str(cwd)
        try:
            show = partial(self._progress.show, agent)
            return await api.run(agent, self._text, output=self._schema, on_event=show, **options)
        except CorralError as error:  # the others continue
            return Result(status=error.status, agent=agent, error=error.event())

    async def _run_in_worktree(self, agent: str) -> Answer:
        from corral.system.git import worktree

        root, commit = await asyncio.to_thread(worktree.repository_root, self._cwd)
        place = worktree.task_folder(root, self._name, agent, "compare")
        tree = await worktree.TaskWorktree.make(root, commit, place)
        try:
            inside = self._cwd.resolve().relative_to(root.resolve())
            result = await self._send(agent, place / inside)
            branch = worktree.branch_name(self._name, agent)
            change = await tree.commit_to(branch, f"{agent}: {self._text.strip()[:200]}")
        except StorageFailed:  # its work is nowhere else
            raise
        except BaseException:
            await tree.remove()
            raise
        await tree.remove()
        return Answer(agent, result, change)

    def _print(self, found: Answer) -> None:
        result = found.result
        if self._flags["as_json"]:
            branch = found.change.branch if found.change else None
            line = {"agent": found.agent, **result_table(result), "branch": branch}
            echo_json(json.dumps({**line, "agent": found.agent}, ensure_ascii=False))
            return
        shown = result.text
        if self._schema is not None and result.ok:
            shown = json.dumps(result.output, ensure_ascii=False)
        model = f" ({result.model})" if result.model else ""
        answer_markdown(f"## {found.agent}{model}\n\n{shown.rstrip() or f'({result.status})'}\n\n")
        if result.error is not None:
            echo_err(f"corral: {found.agent}: {result.error.message}")

    def _print_table(self) -> None:
        from corral.cli.ui.tables import table

        found = {each.agent: each for each in self._answers}
        rows = [_row(found[agent]) for agent in self._agents]
        head = ("agent", "status", "time", "tokens in", "out", "cost", "files", "branch")
        echo_err(table(head, rows))


def _row(found: Answer) -> tuple[str, ...]:
    result, change = found.result, found.change
    cost = result.cost.usd
    return (
        found.agent,
        result.status,
        f"{result.duration:.1f} s",
        f"{result.usage.input or 0:,}",
        f"{result.usage.output or 0:,}",
        "–" if cost is None else f"${cost:.4f}",
        f"{len(change.files if change else result.files)}",
        change.branch if change else "–",
    )
