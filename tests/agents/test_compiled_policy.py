"""The policy is compiled once per run, and the report describes the rules that the agent gets."""

from __future__ import annotations

import ast
import json
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent_launch import NOT_COMPILED

import corral
from corral import McpServer, agents
from corral.agents import acp_command, registry
from corral.agents.spec import (
    AgentSpec,
    CompiledPolicy,
    Launch,
    LaunchContext,
    PolicyRow,
    compile_for,
)
from corral.errors import PolicyError
from corral.options import RunOptions
from corral.policy import CAPABILITY_OF, Capability, Policy, Verdict
from corral.values import Json

MARK = "the-mark-of-the-compiled-policy"
PROGRAMS = [agent for agent in registry.all_agents() if agent.programs and agent.probe]


MCP_SERVER = McpServer("notes", command=("notes",))


def options_of(agent: AgentSpec, policy: Policy, **more: object) -> RunOptions:
    assert agent.probe is not None
    return RunOptions.build(agent.name, {"model": agent.probe.model, "policy": policy, **more})


def place_for(agent: AgentSpec, compiled: CompiledPolicy) -> LaunchContext:
    assert agent.probe is not None
    return LaunchContext(
        program=("/opt/agent",),
        version=agent.package.tested,
        compiled=compiled,
        cwd="/work/repo",
        home="/state/home",
        tmp="/state/tmp",
        env={agent.probe.key_env: "a-long-enough-key", agent.probe.url_env: "http://host/v1"},
        helpers={"rg": "/opt/tools/rg"},
    )


def launch(agent: AgentSpec, run: RunOptions, compiled: CompiledPolicy) -> Launch:
    return agent.launch(run, place_for(agent, compiled), "hello", None)


def marked(compiled: CompiledPolicy) -> CompiledPolicy:
    """The same policy with a mark in each field that has rules."""

    def mark(text: str) -> str:
        return f'{{"{MARK}": 1, {text[1:]}' if text.startswith("{") else f"{text}# {MARK}\n"

    def for_folders(place: LaunchContext) -> dict[str, Json]:
        assert compiled.for_folders is not None
        rules = compiled.for_folders(place)
        is_file = "policy.toml" in rules
        return {name: mark(str(text)) for name, text in rules.items()} if is_file else {
            **rules, f"{MARK}-for-folders": json.dumps("deny")
        }  # fmt: skip

    return replace(
        compiled,
        flags=(*compiled.flags, f'{MARK}="flag"') if compiled.flags else (),
        files={name: mark(text) for name, text in compiled.files.items()},
        settings={**compiled.settings, MARK: 1} if compiled.settings else {},
        for_folders=for_folders if compiled.for_folders else None,
    )


@pytest.mark.parametrize("agent", PROGRAMS, ids=lambda agent: agent.name)
def test_a_launch_passes_the_compiled_policy_on_and_makes_no_rules(agent: AgentSpec) -> None:
    run = options_of(agent, Policy.read_only())
    compiled = compile_for(agent, run)
    assert compiled.flags or compiled.files or compiled.settings or compiled.for_folders
    started = launch(agent, run, marked(compiled))
    text = str((started.argv, started.files, started.env, started.session_meta))
    forms = [compiled.flags, compiled.files, compiled.settings, compiled.for_folders]
    assert text.count(MARK) >= len([form for form in forms if form])
    plain = launch(agent, run, compiled)
    assert MARK not in str((plain.argv, plain.files, plain.env, plain.session_meta))


class Unreadable(Policy, frozen=True, kw_only=True):
    """A policy that fails the test that reads it."""

    def __post_init__(self) -> None: ...

    def __getattribute__(self, name: str) -> object:
        if name in Policy.__struct_fields__ or hasattr(Policy, name):
            raise AssertionError(f"a launch reads the policy: {name}")
        return super().__getattribute__(name)


LAUNCH_POLICIES = {
    "default": Policy(),
    "edits": replace(Policy.edits(), writable=("more",), shell_rules=("allow git status",)),
    "listed": Policy(allow_tools=()),
    "plan": Policy.plan(),
    "full": Policy.full(),
    "native": Policy.native(),
}


@pytest.mark.parametrize("name", LAUNCH_POLICIES)
@pytest.mark.parametrize("agent", PROGRAMS, ids=lambda agent: agent.name)
def test_no_launch_reads_the_policy(agent: AgentSpec, name: str) -> None:
    """Every decision is made when the policy is compiled, so that the report can describe it."""
    more = {"mcp_servers": [MCP_SERVER], "include_directories": ["/other"], "session_mode": "plan"}
    supported = {key: value for key, value in more.items() if key in agent.supports}
    run = options_of(agent, LAUNCH_POLICIES[name], **supported)
    try:
        compiled = compile_for(agent, run)
    except PolicyError:
        assert name == "plan"  # an agent without a planning mode
        return
    started = launch(agent, run, compiled)
    assert launch(agent, replace(run, policy=Unreadable()), compiled) == started


def test_a_launch_that_reads_the_policy_is_noticed() -> None:
    with pytest.raises(AssertionError, match="a launch reads the policy: writable"):
        print(Unreadable().writable)
    with pytest.raises(AssertionError, match="a launch reads the policy: is_unlimited"):
        print(Unreadable().is_unlimited)


def test_no_function_that_launches_names_the_policy() -> None:
    """Also in branches that the options above do not reach."""
    functions = 0
    for path in Path(agents.__path__[0]).rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            if path.name != "launch.py" and not node.name.startswith("launch"):
                continue
            functions += 1
            named = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
            assert "policy" not in {each.attr for each in named}, f"{path.name}: {node.name}"
    assert functions > 50


async def test_the_policy_is_compiled_once_per_run(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Policy] = []
    make = acp_command.agent_for

    def counting(name: str) -> AgentSpec:
        agent = make(name)

        def compile_policy(policy: Policy, run: RunOptions) -> CompiledPolicy:
            compiled.append(policy)
            return agent.compile(policy, run)

        return replace(agent, compile=compile_policy)

    monkeypatch.setattr(acp_command, "agent_for", counting)
    program = Path(__file__).parents[1] / "programs" / "scripted_acp.py"
    command = shlex.join([sys.executable, "-S", "-E", str(program), "--acp"])
    result = await corral.run(command, "text hello", cwd=workspace, timeout=30)
    assert result.text == "hello"
    assert len(compiled) == 1


def tools_of_gemini(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    files = dict(compiled.files)
    if compiled.for_folders is not None:
        bound = compiled.for_folders(place_for(agent, NOT_COMPILED))
        files |= {name: str(text) for name, text in bound.items()}
    rules: list[dict[str, Any]] = tomllib.loads(files["policy.toml"])["rule"]
    granted: set[str] = set()
    for rule in rules:
        named: Any = rule["toolName"]
        names: set[str] = {named} if isinstance(named, str) else {*named}
        if rule["decision"] != "deny":
            granted |= names
        elif "argsPattern" not in rule and rule["toolName"] != "*":
            granted -= names
    return granted


def value_of(flags: tuple[str, ...], name: str) -> set[str]:
    """The names in ``--flag a,b`` or ``--flag=a,b``."""
    found: set[str] = set()
    for place, flag in enumerate(flags):
        if flag == name:
            found |= {*flags[place + 1].split(",")}
        elif flag.startswith(f"{name}="):
            found |= {*flag.partition("=")[2].split(",")}
    return found - {""}


def tools_of_claude(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    if compiled.settings:
        settings: dict[str, Any] = dict(compiled.settings)
        return {*settings["tools"]} - {*settings["disallowedTools"]}
    return value_of(compiled.flags, "--tools") - value_of(compiled.flags, "--disallowedTools")


def tools_of_codex(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    text = " ".join(compiled.flags)

    def is_off(name: str) -> bool:
        return f"--disable {name}" in text or f"features.{name}=false" in text

    tools = {*agent.tools}
    if is_off("shell_tool"):
        tools -= {name for name, kind in agent.tools.items() if kind == "execute"}
    if is_off("view_image"):
        tools -= {"view_image"}
    if 'web_search="disabled"' in text:
        tools -= {"web_search"}
    if agent.transport.kind == "stream" and "--sandbox read-only" in text:
        tools -= {"apply_patch"}
    return tools


def tools_of_copilot(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    """It offers each tool in its list of available ones, excluded or not."""
    available = value_of(compiled.flags, "--available-tools")
    return available or {*agent.tools} - value_of(compiled.flags, "--excluded-tools")


def tools_of_qwen(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    return {*agent.tools} - value_of(compiled.flags, "--exclude-tools")


def tools_of_opencode(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    assert compiled.for_folders is not None
    rules = compiled.for_folders(place_for(agent, NOT_COMPILED))
    key = {"write": "edit", "apply_patch": "edit"}
    return {
        name
        for name in agent.tools
        if rules.get(key.get(name, name), rules.get("*", "allow")) != "deny"
    }


def tools_of_pi(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    return value_of(compiled.flags, "--tools")


def tools_of_cline(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    [text] = compiled.files.values()
    return {*agent.tools} - {*json.loads(text)["disabledTools"]}


READERS: dict[str, Callable[[CompiledPolicy, AgentSpec], set[str]]] = {
    "gemini": tools_of_gemini,
    "claude": tools_of_claude,
    "codex": tools_of_codex,
    "copilot": tools_of_copilot,
    "qwen": tools_of_qwen,
    "opencode": tools_of_opencode,
    "pi": tools_of_pi,
    "cline": tools_of_cline,
}
"""The tools that the compiled rules leave to the model, read from the rules themselves."""

POLICIES = {
    "default": Policy(),
    "reads": Policy.read_only(),
    "edits": Policy.edits(),
    "no network": Policy(read="allow", write="allow", shell="deny", network="deny"),
    "network": Policy(read="allow", write="deny", shell="deny", network="allow"),
    "nothing": Policy(read="deny", write="deny", shell="deny", network="deny", mcp="deny"),
}
OTHER_TOOLS = {"think", "other", "mcp"}
"""Kinds of tools without a separate row in the report."""


def check_report(agent: AgentSpec, run: RunOptions) -> dict[Capability, PolicyRow]:
    """A capability whose row says *deny* has no tool left; one whose row says *allow* has."""
    compiled = compile_for(agent, run)
    offered = READERS[agent.name.split("-")[0]](compiled, agent)
    rows: dict[Capability, PolicyRow] = {row.capability: row for row in compiled.report}
    capabilities: set[Capability] = {"read", "write", "shell", "network"}
    for capability in capabilities:
        tools = tools_of(agent, capability)
        row = rows[capability]
        if row.enforcement in ("advisory", "impossible") or not tools:
            continue
        if row.verdict == "allow":
            assert tools & offered, f"{capability}: the report allows it, the rules offer no tool"
        elif row.enforcement == "native":  # else each call is denied when the agent asks
            assert not tools & offered, f"{capability}: the report denies it, the rules offer tools"
    return rows


def tools_of(agent: AgentSpec, capability: Capability) -> set[str]:
    return {
        tool
        for tool, kind in agent.tools.items()
        if kind not in OTHER_TOOLS and CAPABILITY_OF[kind] == capability
    }


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("agent", PROGRAMS, ids=lambda agent: agent.name)
def test_the_report_says_what_the_compiled_rules_do(agent: AgentSpec, name: str) -> None:
    check_report(agent, options_of(agent, POLICIES[name]))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("agent", PROGRAMS, ids=lambda agent: agent.name)
def test_the_report_denies_what_deny_tools_names(agent: AgentSpec, listed: bool) -> None:
    """``deny_tools`` wins over ``allow_tools``, in the rules and in the report."""
    reads, writes = tools_of(agent, "read"), tools_of(agent, "write")
    allowed = tuple(sorted(reads | writes)) if listed else None
    policy = Policy(write="allow", allow_tools=allowed, deny_tools=tuple(sorted(writes)))
    rows = check_report(agent, options_of(agent, policy))
    assert rows["write"].verdict == "deny"
    assert rows["read"].verdict == "allow"


@pytest.mark.parametrize("verdict", ["allow", "deny"])
@pytest.mark.parametrize("name", ["claude-cli", "qwen-cli", "qwen-acp", "codex-cli"])
def test_the_report_says_which_servers_start(name: str, verdict: Verdict) -> None:
    """The server of the caller's own functions has a separate verdict."""
    agent = registry.find(name)
    own = McpServer("corral", command=("own",), own=True)
    run = options_of(agent, Policy(mcp=verdict, own_mcp="allow"))
    run = replace(run, mcp_servers=(own, MCP_SERVER))
    compiled = compile_for(agent, run)
    [row] = [row for row in compiled.report if row.capability == "mcp"]
    assert row.verdict == verdict
    assert {*compiled.servers} == ({"corral", "notes"} if verdict == "allow" else {"corral"})
    assert ("own functions: allow" in row.note) == (verdict == "deny")


ODD_AND_NORMAL = {
    "deny rule": ((" deny rm *",), ("deny rm *",)),
    "allow rule": (("\tallow  git  status ",), ("allow git status",)),
    "both": ((" deny git push *", "allow git *\n"), ("deny git push *", "allow git *")),
}


@pytest.mark.parametrize("name", ODD_AND_NORMAL)
@pytest.mark.parametrize("shell", ["allow", "ask", "deny"])
@pytest.mark.parametrize("agent", PROGRAMS, ids=lambda agent: agent.name)
def test_blanks_around_a_shell_rule_change_nothing(
    agent: AgentSpec, shell: Verdict, name: str
) -> None:
    odd, normal = ODD_AND_NORMAL[name]
    found = [
        compile_for(agent, options_of(agent, Policy(shell=shell, shell_rules=rules)))
        for rules in (odd, normal)
    ]
    place = place_for(agent, NOT_COMPILED)
    assert found[0].folder_rules(place) == found[1].folder_rules(place)
    assert replace(found[0], for_folders=None) == replace(found[1], for_folders=None)
