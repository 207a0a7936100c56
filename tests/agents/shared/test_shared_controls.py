"""Lists of tools in a policy: a coherent policy for every agent, and errors for wrong names."""

from __future__ import annotations

import pytest
from support.agent_launch import compile_policy

from corral import Policy
from corral._agents import cline, registry
from corral._agents.shared.controls import similar_tools
from corral.errors import PolicyError
from corral.events import ToolKind
from corral.options import RunOptions
from corral.policy import policy_from_table

NAMES = [agent.name for agent in registry.all_agents() if agent.name != "manual"]
SHELLS = [name for name in NAMES if name != "codex-acp"]
"""``codex-acp`` has a shell with ``full`` only."""
MODEL = "gemini:gemini-2.5-flash"


def compiled(name: str, **options: object) -> list[str]:
    """The parts of the report that ``strict`` refuses."""
    agent = registry.find(name)
    if agent.transport.kind == "builtin":
        options["model"] = MODEL
    run = RunOptions.build(name, options)
    report = compile_policy(agent, run.policy, run).report
    return [part for row in report for part in row.unenforced]


def of_kind(name: str, kind: ToolKind) -> list[str]:
    tools = cline.KINDS if name == "cline-acp" else registry.find(name).tools
    return [tool for tool, does in tools.items() if does == kind]


@pytest.mark.parametrize("mode", [None, "default", "auto_edit", "yolo"])
@pytest.mark.parametrize("name", SHELLS)
def test_a_list_with_the_shell_or_web_tools_is_a_coherent_policy(
    name: str, mode: str | None
) -> None:
    shell, web = of_kind(name, "execute")[:1], of_kind(name, "fetch")
    for tools in (shell, web, [*shell, *web]):
        assert compiled(name, allowed_tools=tools, approval_mode=mode) == []


@pytest.mark.parametrize("name", SHELLS)
def test_a_denied_network_with_a_listed_shell_is_refused_only_if_it_is_explicit(name: str) -> None:
    shell = of_kind(name, "execute")[:1]
    policy = Policy(network="deny", allow_tools=tuple(shell))
    found = compiled(name, policy=policy)
    walled = name == "codex-cli"  # has a sandbox for it
    assert found == ([] if walled else ["network=deny for commands"])


def test_codex_acp_takes_a_list_without_the_shell_and_refuses_the_shell_alone() -> None:
    assert compiled("codex-acp", allowed_tools=["web_search", "apply_patch"]) == []
    assert compiled("codex-acp", allowed_tools=["exec_command"]) == ["shell=allow"]


def test_a_preset_in_a_file_does_not_forbid_the_shell_that_it_lists() -> None:
    policy = policy_from_table({"preset": "edits", "allow_tools": ["Bash"]}, "policy.toml")
    assert (policy.network, policy.allow_tools) == (None, ("Bash",))
    reported: dict[str, object] = {"preset": "edits", "allow_tools": ["Bash"], "network": "deny"}
    assert policy_from_table(reported, "policy.toml").network == "deny"


@pytest.mark.parametrize("where", ["allow_tools", "deny_tools"])
@pytest.mark.parametrize("name", NAMES)
def test_another_agents_tool_is_an_error_with_the_agents_own_names(name: str, where: str) -> None:
    shell = of_kind(name, "execute")
    other = next(n for n in ("run_shell_command", "Bash", "exec_command") if n not in shell)
    policy = Policy(**{where: (other,)})  # type: ignore[arg-type]
    with pytest.raises(PolicyError) as raised:
        compiled(name, policy=policy)
    assert other in str(raised.value)
    assert any(repr(tool) in str(raised.value) for tool in shell), raised.value


def test_strict_false_ignores_names_of_other_agents_but_not_misspellings() -> None:
    assert compiled("claude-cli", policy=Policy(allow_tools=("web_fetch_x",)), strict=False) == []
    with pytest.raises(PolicyError, match="'WebFetch'"):
        compiled("claude-cli", policy=Policy(allow_tools=("WebFetsh",)), strict=False)


def test_tools_of_mcp_servers_are_recognized_by_the_server_name() -> None:
    server = {"name": "notes", "command": ["notes"]}
    for name, tool in (("opencode-acp", "notes_keep"), ("copilot-acp", "notes-keep")):
        policy = Policy(allow_tools=(tool, tool.replace("notes", "corral")))
        assert compiled(name, policy=policy, mcp_servers=[server]) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [("bahs", ["Bash"]), ("READ", ["Read"]), ("run_shell_command", ["Bash"]), ("xyz", [])],
)
def test_the_nearest_names(name: str, found: list[str]) -> None:
    assert similar_tools(name, {"Bash": "execute", "Read": "read", "Write": "edit"}) == found
