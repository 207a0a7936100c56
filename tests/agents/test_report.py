"""The report has one meaning for all agents, and describes the controls that the agent gets."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.agent_launch import compile_policy, decisions
from support.odd_policies import ODD_POLICIES, PRESETS

from corral import McpServer
from corral._agents import registry
from corral._agents.report import (
    CompiledPolicy,
    PolicyRow,
    RowException,
    SandboxLimits,
    compile_for,
    for_sandbox,
)
from corral._agents.spec import AgentControls, AgentSpec, Launch, LaunchContext
from corral.errors import PolicyError
from corral.options import RunOptions
from corral.policy import CAPABILITY_OF, Capability, Enforcer, Policy, Verdict
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
        grants=compiled.grants,
        controls=compiled.controls,
        cwd="/work/repo",
        home="/state/home",
        tmp="/state/tmp",
        env={agent.probe.key_env: "a-long-enough-key", agent.probe.url_env: "http://host/v1"},
        helpers={"rg": "/opt/tools/rg"},
    )


def launch(agent: AgentSpec, run: RunOptions, compiled: CompiledPolicy) -> Launch:
    return agent.launch(run, place_for(agent, compiled), "hello", None)


def marked(compiled: CompiledPolicy) -> CompiledPolicy:
    """The same policy with a mark in each field of the controls that has rules."""
    controls = compiled.controls

    def mark(text: str) -> str:
        return f'{{"{MARK}": 1, {text[1:]}' if text.startswith("{") else f"{text}# {MARK}\n"

    def for_folders(place: LaunchContext) -> dict[str, Json]:
        assert controls.for_folders is not None
        rules = controls.for_folders(place)
        is_file = "policy.toml" in rules
        return {name: mark(str(text)) for name, text in rules.items()} if is_file else {
            **rules, f"{MARK}-for-folders": json.dumps("deny")
        }  # fmt: skip

    marked_controls = replace(
        controls,
        flags=(*controls.flags, f'{MARK}="flag"') if controls.flags else (),
        files={name: mark(text) for name, text in controls.files.items()},
        settings={**controls.settings, MARK: 1} if controls.settings else {},
        for_folders=for_folders if controls.for_folders else None,
    )
    return replace(compiled, controls=marked_controls)


@pytest.mark.parametrize("agent", PROGRAMS, ids=lambda agent: agent.name)
def test_a_launch_passes_the_controls_on_and_makes_no_rules(agent: AgentSpec) -> None:
    run = options_of(agent, Policy.reads())
    compiled = compile_for(agent, run)
    made = compiled.controls
    forms = [form for form in (made.flags, made.files, made.settings, made.for_folders) if form]
    assert forms
    started = launch(agent, run, marked(compiled))
    text = str((started.argv, started.files, started.env, started.session_meta))
    assert text.count(MARK) >= len(forms)
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
    "full": Policy.all(),
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
    for path in Path(registry.__file__).parent.rglob("*.py"):
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


def test_only_the_grants_say_what_a_policy_means() -> None:
    """No agent reads the policy of a run, has a second verdict, or makes rows of the report."""
    home = {"grants.py", "report.py"}
    modules = 0
    for path in Path(registry.__file__).parent.rglob("*.py"):
        if path.name in home:
            continue
        modules += 1
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                second = {"_row", "_rows", "_effective", "_verdict", "_verdicts", "verdict_of"}
                assert node.name not in second, f"{path}: {node.name}"
            if isinstance(node, ast.Attribute):
                assert node.attr != "policy", f"{path}:{node.lineno}"
            if isinstance(node, ast.Name):
                assert node.id != "PolicyRow", f"{path}:{node.lineno}"
    assert modules > 30


def tools_of_gemini(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    bound = compiled.controls.folder_rules(place_for(agent, compiled))
    files = {**compiled.controls.files, **{name: str(text) for name, text in bound.items()}}
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
    if compiled.controls.settings:
        settings: dict[str, Any] = dict(compiled.controls.settings)
        return {*settings["tools"]} - {*settings["disallowedTools"]}
    return value_of(compiled.controls.flags, "--tools") - value_of(
        compiled.controls.flags, "--disallowedTools"
    )


def tools_of_codex(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    text = " ".join(compiled.controls.flags)

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
    available = value_of(compiled.controls.flags, "--available-tools")
    return available or {*agent.tools} - value_of(compiled.controls.flags, "--excluded-tools")


def tools_of_qwen(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    return {*agent.tools} - value_of(compiled.controls.flags, "--exclude-tools")


def tools_of_opencode(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    rules = compiled.controls.folder_rules(place_for(agent, compiled))
    key = {"write": "edit", "apply_patch": "edit"}
    return {
        name
        for name in agent.tools
        if rules.get(key.get(name, name), rules.get("*", "allow")) != "deny"
    }


def tools_of_pi(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    return value_of(compiled.controls.flags, "--tools")


def tools_of_cline(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    [text] = compiled.controls.files.values()
    return {*agent.tools} - {*json.loads(text)["disabledTools"]}


def tools_of_goose(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    [text] = compiled.controls.files.values()
    developer = json.loads(text)["extensions"]["developer"]
    return {*developer["available_tools"]} if developer["enabled"] else set()


def tools_of_antigravity(compiled: CompiledPolicy, agent: AgentSpec) -> set[str]:
    tools = compiled.controls.settings["tools"]
    assert isinstance(tools, list)
    return {str(name) for name in tools}


READERS: dict[str, Callable[[CompiledPolicy, AgentSpec], set[str]]] = {
    "gemini": tools_of_gemini,
    "claude": tools_of_claude,
    "codex": tools_of_codex,
    "copilot": tools_of_copilot,
    "qwen": tools_of_qwen,
    "opencode": tools_of_opencode,
    "pi": tools_of_pi,
    "cline": tools_of_cline,
    "goose": tools_of_goose,
    "antigravity": tools_of_antigravity,
}
"""The tools that the compiled rules leave to the model, read from the rules themselves."""

POLICIES = {
    "default": Policy(),
    "reads": Policy.reads(),
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
        if row.unenforced or not tools:
            continue
        if not row.is_denied:
            assert tools & offered, f"{capability}: the report allows it, the rules offer no tool"
        elif row.enforcer == "native":  # else each call is denied when the agent asks
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
    assert rows["write"].is_denied
    assert not rows["read"].is_denied


@pytest.mark.parametrize("verdict", ["allow", "deny"])
@pytest.mark.parametrize("name", [a.name for a in PROGRAMS if "mcp_servers" in a.supports])
def test_a_server_whose_tools_are_all_denied_is_not_started(name: str, verdict: Verdict) -> None:
    """The server of the caller's own functions has a separate verdict."""
    agent = registry.find(name)
    own = McpServer("corral", command=("start-own",), own=True)
    notes = McpServer("notes", command=("start-notes",), env={"N": "secret-of-notes"})
    run = options_of(agent, Policy(mcp=verdict, own_mcp="allow"))
    run = replace(run, mcp_servers=(notes, own))
    compiled = compile_for(agent, run)
    [row] = [row for row in compiled.report if row.capability == "mcp"]
    assert row.verdict == verdict
    assert ("own functions: allow" in row.decision) == (verdict == "deny")
    started = [server.name for server in compiled.grants.started(run.mcp_servers)]
    assert started == (["corral"] if verdict == "deny" else ["notes", "corral"])
    launched = launch(agent, run, compiled)
    text = str((launched.argv, launched.files, launched.env, launched.session_meta))
    if "start-own" in text:  # else the servers are sent by the protocol
        assert ("start-notes" in text) == (verdict == "allow")
    assert verdict == "allow" or "secret-of-notes" not in text


@pytest.mark.parametrize("variable", ["the key", "the base URL", "PATH", "HOME"])
@pytest.mark.parametrize("name", [a.name for a in PROGRAMS if "mcp_servers" in a.supports])
def test_no_agent_sees_a_variable_of_an_mcp_server(name: str, variable: str) -> None:
    agent = registry.find(name)
    assert agent.probe is not None
    names = {"the key": agent.probe.key_env, "the base URL": agent.probe.url_env}
    own_name = names.get(variable, variable)
    server = McpServer("notes", command=("start-notes",), env={own_name: "canary-of-the-server"})
    run = replace(options_of(agent, Policy.all()), mcp_servers=(server,))
    launched = launch(agent, run, compile_for(agent, run))
    assert "canary-of-the-server" not in str((launched.env, launched.argv, launched.files))


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
    found, usual = (
        compile_for(agent, options_of(agent, Policy(shell=shell, shell_rules=rules)))
        for rules in (odd, normal)
    )
    place = place_for(agent, found)
    assert found.controls.folder_rules(place) == usual.controls.folder_rules(place)
    assert (found.grants, found.report) == (usual.grants, usual.report)
    assert without_functions(found.controls) == without_functions(usual.controls)


def without_functions(controls: AgentControls) -> AgentControls:
    boxed = controls.in_sandbox
    return replace(
        controls, for_folders=None, in_sandbox=None if boxed is None else without_functions(boxed)
    )


# One meaning for all agents.

EVERY = [*registry.all_agents()]
ASKING = [agent for agent in EVERY if agent.asks or agent.name == "manual"]
SILENT = [agent for agent in EVERY if agent.name != "manual"]
"""``manual`` is a person, who can always answer."""


def meaning(report: Iterable[PolicyRow]) -> list[object]:
    """The report without enforcers and notes."""
    return [
        (row.capability, row.verdict, [(e.kind, e.subject, e.verdict) for e in row.exceptions])
        for row in report
    ]


def compiled_in(agent: AgentSpec, policy: Policy, situation: str) -> CompiledPolicy:
    options = {"policy": policy, **({"model": agent.probe.model} if agent.probe else {})}
    run = RunOptions.build(agent.name, options)
    if situation != "nobody":
        run = replace(run, interactive=True)
    compiled = compile_policy(agent, run.policy, run)
    if situation != "sandbox":
        return compiled
    limits = SandboxLimits(is_complete=True, has_network=policy.network == "allow")
    return for_sandbox(agent, compiled, limits)


@pytest.mark.parametrize("situation", ["nobody", "person", "sandbox"])
@pytest.mark.parametrize("name", [*PRESETS, *ODD_POLICIES])
def test_the_same_policy_has_the_same_rows_with_every_agent(name: str, situation: str) -> None:
    """But for who enforces them, and what is not offered."""
    policy = {**PRESETS, **ODD_POLICIES}[name]
    found: dict[str, list[object]] = {}
    for agent in SILENT if situation == "nobody" else ASKING:
        if name == "no tool" and agent.name == "codex-acp":
            continue  # it has no lists: they become capabilities
        try:
            found[agent.name] = meaning(compiled_in(agent, policy, situation).report)
        except PolicyError:
            assert name.startswith("plan")  # an agent without a planning mode
    usual = found["claude-cli"]
    assert {name: rows for name, rows in found.items() if rows != usual} == {}


@pytest.mark.parametrize(
    ("agent", "decision"),
    [
        ("claude-cli", "deny (brokered) · git status: allow (brokered)"),
        ("claude-acp", "deny (brokered) · git status: allow (brokered)"),
        ("cline-acp", "deny (brokered) · git status: allow (brokered)"),
        ("antigravity-acp", "deny (brokered) · git status: allow (brokered)"),
        ("goose-acp", "deny (brokered) · git status: allow (brokered)"),
        ("qwen-acp", "deny (brokered) · git status: allow (brokered)"),
        ("gemini-acp", "deny (brokered) · git status: allow (brokered)"),
        ("gemini-cli", "deny (native) · git status: allow (native)"),
        ("corral", "deny (native) · git status: allow (native)"),
        ("codex-cli", "deny (native) · git status: not offered"),
        ("codex-acp", "deny (native) · git status: not offered"),
        ("pi-cli", "deny (native) · git status: not offered"),
        ("opencode-acp", "deny (not enforced) · git status: allow (not enforced)"),
        ("opencode-cli", "deny (not enforced) · git status: allow (not enforced)"),
        ("copilot-acp", "deny (not enforced) · git status: allow (not enforced)"),
    ],
)
def test_one_allowed_command_is_reported_in_the_same_words(agent: str, decision: str) -> None:
    policy = Policy(shell="deny", shell_rules=("allow git status",))
    compiled = compiled_in(registry.find(agent), policy, "nobody")
    assert decisions(compiled)["shell"] == decision
    is_refused = "not enforced" in decision or "not offered" in decision
    assert bool(compiled.unenforced) is is_refused


def test_strict_refuses_what_nothing_holds_and_what_was_allowed_by_name() -> None:
    def row(enforcer: Enforcer, *exceptions: RowException) -> tuple[str, ...]:
        return PolicyRow("shell", "deny", enforcer, exceptions).unenforced

    assert row("native") == row("brokered") == row("sandbox") == ()
    assert row("advisory") == row("impossible") == ("shell=deny",)
    assert PolicyRow("shell", "ask", "not offered").unenforced == ()  # narrower than asked for
    allowed = RowException("rule", "git status", "allow", "not offered")
    assert row("native", allowed) == ("shell=allow for git status",)
    assert row("native", replace(allowed, kind="own")) == ()
    denied = RowException("rule", "rm *", "deny", "advisory")
    assert row("native", denied) == ("shell=deny for rm *",)


def test_equal_parts_of_a_row_are_named_together() -> None:
    exceptions = (
        RowException("rule", "git push *", "deny", "brokered"),
        RowException("rule", "git log", "allow", "brokered"),
        RowException("rule", "git status", "allow", "brokered"),
    )
    row = PolicyRow("shell", "deny", "brokered", exceptions)
    assert row.decision == (
        "deny (brokered) · git push *: deny (brokered) · git log, git status: allow (brokered)"
    )
