"""``corral agents``: list, show, install, check and attack agents."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click
import msgspec

from corral._agents.spec import (
    AgentSpec,
    HookSupport,
    StreamTransport,
)
from corral._cli.command_types import examples, plain_option
from corral._cli.options import JSON, PRESET_NAMES, completing
from corral._cli.ui.tables import policy_table, sandbox_table, table
from corral._cli.ui.terminal import echo, echo_json
from corral._sessions import credentials, enforcement, proof
from corral._system import config, install, programs
from corral.errors import ConfigError, CorralError, NotInstalled
from corral.options import SANDBOX_MODES, RunOptions, SandboxMode
from corral.policy import PRESETS, Policy, SandboxRow
from corral.values import JsonObject, as_texts

if TYPE_CHECKING:
    from corral._cli.agent_checks import CheckFlags


@click.group("agents")
def command() -> None:
    """List, install, inspect and test agents."""


@command.command("list")
@JSON
def list_agents(as_json: bool) -> None:
    """List the known agents.

    Shows the installed and the tested version, what is known about the installed program, the key
    or sign-in that was found, whether one process serves many prompts, and whether commands run in
    a sandbox."""
    found = [_state(agent) for agent in config.all_agents()]
    if as_json:
        echo_json(json.dumps(found))
        return
    head = ("agent", "installed", "tested", "proof", "key", "persistent", "sandbox", "aliases")
    rows: list[tuple[str, ...]] = []
    for state in found:
        version = str(state["version"] or "–")
        if not state["installed"]:  # why not, unless the program is just missing
            missing = state["code"] == NotInstalled.code
            version = "–" if missing else str(state["code"]).replace("_", " ")
        keys = ", ".join(as_texts(state["credentials"]))
        rows.append(
            (
                str(state["name"]),
                version,
                str(state["tested_version"] or "–"),
                str(state["proof"] or "–"),
                keys or ("none" if state["needs_credentials"] else "–"),
                "yes" if state["persistent"] else "no",
                str(state["sandbox"] or "–"),
                ", ".join(as_texts(state["aliases"])),
            )
        )
    echo(table(head, rows))
    if any(not state["installed"] for state in found):
        echo("corral agents install NAME installs the tested version.", err=True)
    echo("corral agents doctor NAME says what is missing to use an agent.", err=True)


@command.command("show")
@click.argument("name", shell_complete=completing("agents"))
@JSON
def show(name: str, as_json: bool) -> None:
    """Show everything known about one agent."""
    agent = config.find_agent(name)
    shown: JsonObject = {
        **_state(agent),
        "transport": agent.transport.kind,
        "package": agent.package.name,
        "minimum_version": agent.package.minimum,
        "newest_tested_version": agent.package.newest or agent.package.tested,
        "options": [*sorted(agent.supports)],
        "capabilities": list(agent.capabilities),
        "asks": agent.asks,
        "on_tool_call": agent.tool_call_hook,
        "environment": list(agent.env_names),
        "tools": {**agent.tools},
        "notes": agent.notes,
    }
    if as_json:
        echo_json(json.dumps(shown))
        return
    rows: list[tuple[str, str]] = []
    for key, value in shown.items():
        if value is None or value in ("", []):
            continue
        if isinstance(value, bool):
            rows.append((key, "yes" if value else "no"))
        elif isinstance(value, dict):
            rows.append((key, ", ".join(f"{name} ({kind})" for name, kind in value.items())))
        elif isinstance(value, list):
            rows.append((key, ", ".join(map(str, value))))
        else:
            rows.append((key, str(value)))
    echo(table(("", ""), rows).lstrip("\n"))


@command.command(
    "install", epilog=examples("corral agents install claude", "corral agents install claude codex")
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=completing("agents"))
@plain_option("-q --quiet", "Print only the program's path.")
def install_agent(names: tuple[str, ...], quiet: bool) -> None:
    """Install agents from npm or PyPI, in their tested versions.

    Without a NAME it is gemini. They are installed into corral's own folder. With Node 22.1 or
    newer, each agent is run once with a scripted model, to fill Node's compile cache."""
    agents = {name: config.find_agent(name) for name in names or ("gemini",)}
    for agent in agents.values():
        if not agent.programs:
            raise ConfigError(f"{agent.name} is part of corral: there is nothing to install")
    for name, agent in agents.items():
        _install(name, agent, quiet=quiet)


def _install(name: str, agent: AgentSpec, *, quiet: bool) -> None:
    if not quiet and not programs.managed_program(agent).exists():
        echo(f"installing {agent.package.name} {agent.package.tested} …", err=True)
    found = install.install(agent)
    cache = install.find_compile_cache(found)
    if cache is not None and cache.state == "not filled":
        from corral._cli.agent_checks import fill_compile_cache

        if not quiet:
            echo("filling Node's compile cache: a run with a scripted model …", err=True)
        try:
            asyncio.run(fill_compile_cache(agent, found))
        except CorralError as error:
            echo(
                f"the agent is installed; its compile cache is not used: {error.message}", err=True
            )
    echo(found.path if quiet else f"{agent.title} {found.version}: {found.path}")
    if not quiet:
        echo(f"corral agents doctor {name} says what is missing to use it.", err=True)


@command.command("policy")
@click.argument("name", required=False, shell_complete=completing("agents"))
@plain_option("--approve", "One preset.  [default: all]", type=click.Choice(PRESET_NAMES))
@plain_option("--policy policy_file", "A policy file (TOML).", type=click.Path())
@plain_option(
    "--sandbox",
    "As for a run: when corral's sandbox is used.",
    type=click.Choice(SANDBOX_MODES),
    default="needed",
)
@JSON
def policy(
    name: str | None,
    approve: str | None,
    policy_file: str | None,
    sandbox: SandboxMode,
    as_json: bool,
) -> None:
    """Show how a policy is enforced.

    Each line has what happens to a call by default, and in brackets who enforces it: native,
    brokered, wire, sandbox, or not enforced. Exceptions follow. What the agent cannot let
    through is not offered. A run gets a sandbox if the agent alone is not enough."""
    agent = config.find_agent(name or config.default_agent())
    wanted = {"nothing approved": Policy(), **{str(name): value for name, value in PRESETS.items()}}
    if approve is not None:
        wanted = {approve: wanted[approve]}
    if policy_file is not None:
        wanted = {policy_file: config.read_policy(Path(policy_file))}
    decided = {
        label: enforcement.decide(
            agent,
            msgspec.structs.replace(
                RunOptions.build(agent.name),
                interactive=agent.asks,
                policy=value,
                sandbox=sandbox,
            ),
            os.getcwd(),
        )
        for label, value in wanted.items()
    }
    if as_json:
        reports = {
            label: {"report": each.compiled.report, "sandbox": _sandbox_rows(agent, each)}
            for label, each in decided.items()
        }
        echo_json(json.dumps(msgspec.to_builtins(reports)))
        return
    for label, each in decided.items():
        hook = _HOOK_SUPPORT[agent.tool_call_hook]
        unhooked = each.compiled.controls.unhooked
        if agent.tool_call_hook != "none" and unhooked:
            hook = f"refused with this policy: {'; '.join(unhooked)}"
        reason = "none"
        if each.sandbox is not None:
            reason = f"{each.sandbox.method}: {each.reason}"
        elif each.obstacle is not None:
            reason = f"none, though it is needed: {each.obstacle.message}"
        echo(f"{agent.name}, {label}:\n{policy_table(each.compiled.report)}")
        echo(f"on_tool_call: {hook}\nsandbox: {reason}")
        if rows := _sandbox_rows(agent, each):
            echo(sandbox_table(rows))
        echo("")


_HOOK_SUPPORT: dict[HookSupport, str] = {
    "none": "not available: it does not ask before each call",
    "decide": "allows or denies each call",
    "edit": "allows, denies or edits each call",
}


def _sandbox_rows(agent: AgentSpec, decision: enforcement.Decision) -> tuple[SandboxRow, ...]:
    if decision.sandbox is None:
        return ()
    from corral._sessions.sandbox import rows_before_a_run

    return rows_before_a_run(
        agent, decision.run, decision.compiled.report, os.getcwd(), decision.sandbox
    )


@command.command("doctor", epilog=examples("corral agents doctor", "corral agents doctor claude"))
@click.argument("name", required=False, shell_complete=completing("agents"))
@plain_option("--reap", "End processes that killed runs left behind.")
@JSON
def doctor(name: str | None, reap: bool, as_json: bool) -> int:
    """Check that an agent works here, and what is missing.

    What is missing to use it may be a key, a sign-in or the network. The agent is run with a
    scripted model: a tool call must work, and a shell command must be denied. No key is used and
    nothing is spent. NAME may be vendor:model. The exit code is 6 without credentials."""
    from corral._cli import agent_checks

    if reap:
        return agent_checks.end_leftovers(as_json=as_json)
    report = asyncio.run(agent_checks.examine(name or config.default_agent()))
    if as_json:
        echo_json(msgspec.json.encode(report))
    else:
        echo(agent_checks.format_report(report))
    return 0 if report["works"] and report.get("usable") else report["exit_code"]


@command.command("probe")
@click.argument("name", required=False, shell_complete=completing("agents"))
@plain_option("--program TEXT", "The agent's program.  [default: searched]")
@JSON
def probe(name: str | None, program: str | None, as_json: bool) -> int:
    """Probe an agent's program, and store what was found out.

    It is run with a scripted model, in a temporary home: an edit, a denied command, a call of an
    MCP server, a resumed conversation, a typed value, token usage, and attempts to break the
    policy. No key is used and nothing is spent. A run does this by itself, once for a program
    that was not tested with corral (--probe). The exit code is 1 if a check failed."""
    from corral._cli import agent_checks

    return agent_checks.probe(name or config.default_agent(), program, as_json=as_json)


@command.command(
    "check",
    epilog=examples("corral agents check claude", "corral agents check claude --attack --sandbox"),
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completing("agents"))
@plain_option("--all every", "All installed agents.")
@plain_option("--only TIER...", "Only scenarios of this tier.")
@plain_option("--program TEXT", "The agent's program.  [default: searched]")
@plain_option("--env NAME...", "Pass this variable to the agent; NAME=VALUE sets it.")
@plain_option("--attack", "Run the attack kit: does the policy hold?")
@plain_option("--approve POLICY...", "With --attack, only this policy.")
@plain_option("--sandbox", "With --attack, in corral's sandbox, which the model tries to leave.")
@plain_option(
    "--concurrency",
    "With --attack, the number of concurrent agents.",
    show_default=False,
    type=click.IntRange(1),
    default=1,
)
@plain_option("--markdown", "Print Markdown tables.")
@plain_option("--json as_json", "Print JSON, one line per agent.")
def check(names: tuple[str, ...], **flags: Unpack[CheckFlags]) -> int:
    """Run the conformance kit with an agent.

    It consists of scenarios with a scripted model, whose effects are checked. NAME is an agent,
    vendor:model for the built-in agent, or any command that speaks ACP, which is then run with its
    own model. What an agent does not claim is skipped. The exit code is 1 if something failed.

    With --attack the scripted model plays an injected agent and tries to break each policy:
    commands, paths, links, web tools, MCP servers, the environment. The exit code is 1 if a
    cell that the agent reports as enforced was broken."""
    if not names and not flags["every"]:
        raise click.UsageError("name an agent, or use --all")
    if flags["program"] and (flags["every"] or len(names) > 1):
        raise click.UsageError("--program is for one agent")
    if (flags["approve"] or flags["sandbox"] or flags["concurrency"] > 1) and not flags["attack"]:
        raise click.UsageError("--approve, --sandbox and --concurrency are for --attack")
    from corral._cli import agent_checks

    return (
        agent_checks.attack(names, flags) if flags["attack"] else agent_checks.check(names, flags)
    )


def _state(agent: AgentSpec) -> JsonObject:
    """What is known about an agent here, without starting it."""
    shown: JsonObject = {
        "name": agent.name,
        "title": agent.title,
        "description": agent.description,
        "aliases": list(agent.aliases),
        "persistent": not isinstance(agent.transport, StreamTransport),
        # The agent's own sandbox: always used, or with ``--sandbox agent``. Corral's is for all.
        "sandbox": "always"
        if agent.own_sandbox
        else ("agent" if "sandbox" in agent.supports else None),
        "tested_version": agent.package.tested or None,
        "needs_credentials": credentials.needed(agent),
        "credentials": [*credentials.found(agent)],
        "installed": False,
        "version": None,
        "program": None,
        "source": None,
        "version_warning": None,
        "proof": None,
        "problem": None,
        "code": None,
    }
    try:
        program = RunOptions.build(agent.name, {}, config.load(agent.name)).program
        found = programs.locate(agent, program)
    except CorralError as error:
        problem = {"problem": error.message, "hint": error.hint, "code": error.code}
        return {**shown, **problem}
    return {
        **shown,
        "installed": True,
        "version": found.version,
        "program": found.path,
        "source": found.source,
        "version_warning": agent.version_warning(found.version),
        "proof": proof.describe(agent, found),
    }
