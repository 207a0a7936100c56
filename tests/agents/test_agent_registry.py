"""Agents are found by name."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace
from support.agents_page import with_agents
from support.goldens import check_golden

from corral._agents import registry
from corral._agents.report import RACES, compile_for
from corral._agents.spec import (
    AcpTransport,
    AgentSpec,
    InProcess,
    StreamTransport,
)
from corral.errors import ConfigError, UnknownAgent
from corral.events import ToolKind
from corral.options import KNOWN, RunOptions
from corral.policy import Policy

ROOT = Path(__file__).parents[2]
EVERY = list(registry.all_agents())


def test_at_least_one_agent_is_tested() -> None:
    assert "gemini-cli" in {agent.name for agent in EVERY}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gemini-cli", "gemini-cli"),
        ("Gemini-CLI", "gemini-cli"),
        ("gemini_cli", "gemini-cli"),
        ("gemini", "gemini-acp"),
        (" gemini ", "gemini-acp"),
        ("gemini_acp", "gemini-acp"),
    ],
)
def test_an_agent_is_found_by_its_name_or_alias_in_any_spelling(name: str, meant: str) -> None:
    assert registry.find(name).name == meant


@pytest.mark.parametrize("command", ["some-agent --acp", "/opt/agent", "'a b' --x"])
def test_a_command_line_is_an_agent(command: str) -> None:
    agent = registry.find(command)
    assert (agent.name, agent.transport.kind) == (command, "acp")


@pytest.mark.parametrize("command", ["'unclosed --acp", "  /  'x"])
def test_an_invalid_command_line_is_an_error(command: str) -> None:
    with pytest.raises(ConfigError, match="not a command line"):
        registry.find(command)


@pytest.mark.parametrize("name", ["gemni", "gemini-clii", "gemini.cli", "gemini_cly"])
def test_an_unknown_agent_is_refused_with_the_nearest(name: str) -> None:
    with pytest.raises(UnknownAgent, match="no agent is called") as raised:
        registry.find(name)
    assert "Did you mean 'gemini" in (raised.value.hint or "")


@pytest.mark.parametrize("name", ["", "profile", "__init__", "zzz", "os"])
def test_an_unknown_name_is_refused_with_the_known_agents(name: str) -> None:
    with pytest.raises(UnknownAgent) as raised:
        registry.find(name)
    names = ", ".join(sorted(agent.name for agent in EVERY))
    assert f"Known: {names}." in (raised.value.hint or "")


@pytest.mark.parametrize("agent", EVERY, ids=lambda agent: agent.name)
def test_the_spec_of_an_agent_is_complete(agent: AgentSpec) -> None:
    assert registry.find(agent.name) is agent
    for alias in agent.aliases:
        assert registry.find(alias) is agent
    assert not re.search(r"\w- \w", agent.notes), "a word is cut at its hyphen"
    assert agent.supports <= set(KNOWN)
    for name in agent.secret_env:
        patterns = (
            *agent.env_names,
            *(more for names in agent.conditional_env.values() for more in names),
        )
        assert any(fnmatchcase(name, pattern) for pattern in patterns), name
    assert set(agent.tools.values()) <= set(get_args(ToolKind))
    assert agent.package.minimum <= agent.package.tested
    assert agent.package.place(agent.package.minimum) == "tested"
    assert not agent.package.newest or agent.package.place(agent.package.newest) == "tested"
    if isinstance(agent.transport, StreamTransport):
        assert agent.transport.translator() is not agent.transport.translator()


ONE_TRANSPORT_TODAY = {
    "for_run": "any agent's spec may depend on the options of a run",
    "open_turns": "any agent may keep a prompt open",
    "own_sandbox": "any agent may run its commands in a sandbox",
    "default_limits": "any agent may have its own timeouts and limits",
    "native_schema": "any agent may enforce a schema itself",
    "cumulative_usage": "any agent may count the tokens of the whole session",
    "normalize_policy": "any agent may have one tool for each capability",
}
"""Fields of the spec that agents of one transport set today, and why they are not nested in it."""


def test_fields_that_only_one_transport_needs_are_in_that_transport() -> None:
    transports = (StreamTransport, AcpTransport, InProcess)
    assert {type(agent.transport) for agent in EVERY} == {*transports}
    fields = [name for each in (AgentSpec, *transports) for name in each.__struct_fields__]
    assert len(fields) == len({*fields}), "a field stands in two of the records"
    defaults = AgentSpec(
        name="", title="", description="", transport=InProcess(driver=""), tools={},
        controls=EVERY[0].controls,
    )  # fmt: skip
    users = {
        name: {
            agent.transport.kind
            for agent in EVERY
            if getattr(agent, name) != getattr(defaults, name)
        }
        for name in AgentSpec.__struct_fields__
    }
    of_one = {name for name, kinds in users.items() if len(kinds) == 1}
    assert of_one == {*ONE_TRANSPORT_TODAY}


def test_no_two_agents_share_a_name() -> None:
    names = [name for agent in EVERY for name in (agent.name, *agent.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("agent", [a for a in EVERY if a.probe], ids=lambda agent: agent.name)
def test_a_report_says_that_races_are_open_where_a_program_writes(agent: AgentSpec) -> None:
    """Only in rows that allow or ask for writing in the workspace."""
    assert agent.probe is not None
    run = RunOptions.build(agent.name, {"model": agent.probe.model})
    reported = {
        name: {
            row.capability: row for row in compile_for(agent, replace(run, policy=policy)).report
        }
        for name, policy in {
            "edits": Policy.edits(),
            "reads": Policy.reads(),
            "all": Policy.all(),
        }.items()
    }
    edits = reported["edits"]["write"]
    is_open = bool(agent.programs) and not edits.unenforced
    assert (edits.races == "open", RACES in edits.note) == (is_open, is_open)
    others = [row for rows in reported.values() for row in rows.values() if row is not edits]
    assert [row for row in others if row.races == "open" or RACES in row.note] == []


PROGRAMS = [each for each in EVERY if each.programs and each.probe is not None]


@pytest.mark.parametrize("agent", PROGRAMS, ids=lambda agent: agent.name)
def test_the_base_url_of_an_agent_reaches_it_and_is_documented(agent: AgentSpec) -> None:
    assert agent.probe is not None
    variable = agent.probe.url_env
    assert any(fnmatchcase(variable, pattern) for pattern in agent.env_names)
    page = (ROOT / "docs" / "agents.md").read_text("utf-8")
    table = page.partition("## Base URLs")[2].partition("## Notes")[0]
    rows = [row for row in table.splitlines() if re.search(rf"\b{agent.title}\b", row)]
    assert len(rows) == 1, agent.title
    assert f"`{variable}`" in rows[0]


def test_the_table_of_agents_has_what_their_records_say() -> None:
    page = ROOT / "docs" / "agents.md"
    check_golden(page, with_agents(page.read_text("utf-8")))


def test_a_short_name_is_the_agent_that_asks_for_permission() -> None:
    short = {"gemini": "gemini-acp", "claude": "claude-cli", "codex": "codex-acp"}
    short |= {"opencode": "opencode-acp", "copilot": "copilot-acp", "qwen": "qwen-acp"}
    for name, full in short.items():
        agent = registry.find(name)
        assert (agent.name, agent.asks) == (full, True)


def test_an_agent_that_cannot_ask_has_a_twin_that_asks_if_the_product_has_one() -> None:
    twins = {each.name: registry.twin_that_asks(each.name) for each in registry.all_agents()}
    assert {name: twin.name for name, twin in twins.items() if twin is not None} == {
        "codex-cli": "codex-acp",
        "copilot-cli": "copilot-acp",
        "gemini-cli": "gemini-acp",
        "opencode-cli": "opencode-acp",
    }
