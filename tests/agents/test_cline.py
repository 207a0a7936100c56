"""Cline: what is refused before it is started."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from support.agent_launch import NOT_COMPILED, compile_policy, decisions, launch_of

from corral import Policy, errors
from corral._agents import registry
from corral._agents.spec import AcpTransport, LaunchContext
from corral._protocol.acp.client import AcpClient
from corral._protocol.acp.frames import TextBlock
from corral.options import RunOptions

AGENT = registry.find("cline")
PLACE = LaunchContext(
    program=("cline",),
    version=None,
    **NOT_COMPILED,
    cwd="/repo",
    home="/home",
    tmp="/tmp",
    env={"CLINE_API_KEY": "a-key-of-a-service", "OPENAI_BASE_URL": "http://there/v1"},
    project_files=("/repo/.cline",),
)


def hidden(files: Mapping[str, str]) -> set[str]:
    return {*json.loads(files[".cline/data/settings/global-settings.json"])["disabledTools"]}


SHELL, WRITE = {"run_commands", "apply_patch"}, {"editor", "apply_patch"}
READ, NEVER, WEB = {"read_files", "search_codebase"}, {"spawn_agent"}, {"fetch_web_content"}


@pytest.mark.parametrize(
    ("policy", "interactive", "wanted"),
    [
        (Policy(), False, NEVER | SHELL | WRITE | WEB),
        (Policy(), True, NEVER),
        (Policy.edits(), False, NEVER | SHELL | WEB),
        (Policy.reads(), True, NEVER | SHELL | WRITE | WEB),
        (Policy(read="deny", write="allow", shell="allow"), True, NEVER | READ),
        (Policy(shell="deny", shell_rules=("allow ls",)), False, NEVER | WRITE | WEB),
        (Policy(allow_tools=("editor",)), True, NEVER | READ | SHELL | WEB),
        (Policy(deny_tools=("editor",)), True, NEVER | {"editor"}),
        (Policy.all(), False, NEVER),
        (Policy.native(), False, NEVER),
    ],
)
def test_denied_tools_are_not_offered(policy: Policy, interactive: bool, wanted: set[str]) -> None:
    run = replace(RunOptions.build("cline", {"policy": policy}), interactive=interactive)
    compiled = compile_policy(AGENT, policy, run)
    assert hidden(compiled.controls.files) == wanted
    if policy != Policy.native():
        *rows, servers = compiled.report
        denied = {row.capability for row in rows if row.is_denied}
        by = {row.capability: row.enforcer for row in rows}
        assert by == {name: "native" if name in denied else "brokered" for name in by}
        assert servers.is_denied


def test_it_has_a_private_home_and_the_key_is_in_no_file() -> None:
    trusted = RunOptions.build("cline", {"inherit": "project"})
    launch = launch_of(AGENT, trusted, PLACE, "hi", None)
    assert launch.argv == ("cline", "--acp")
    assert launch.env["HOME"] == "/home"
    assert launch.env["CLINE_PROVIDER"] == "openai-compatible"
    assert "spawn_agent" in hidden(launch.files)
    assert "a-key-of-a-service" not in str(launch)


def test_a_policy_that_it_cannot_enforce_is_refused_before_the_start() -> None:
    with pytest.raises(errors.UntrustedFolder, match="Cline would obey"):
        launch_of(AGENT, RunOptions.build("cline", {}), PLACE, "hi", None)
    bare = RunOptions.build("cline", {"inherit": "user"})
    with pytest.raises(errors.ConfigError, match="cannot inherit the user's"):
        launch_of(AGENT, bare, PLACE, "hi", None)
    assert not {"images", "attachments", "mcp_servers", "thinking"} & AGENT.supports


@pytest.mark.parametrize(
    ("model", "policy", "refused"),
    [
        ("gpt-5", Policy.edits(), True),
        ("gpt-5-codex", Policy(write="allow", deny_tools=("apply_patch",)), True),
        ("gpt-5", Policy(write="allow", shell="allow", network="allow"), False),
        ("gpt-5", Policy.reads(), False),
        ("claude-sonnet-5", Policy.edits(), False),
    ],
)
def test_a_model_without_a_tool_that_writes_is_refused_if_it_may_write(
    model: str, policy: Policy, refused: bool
) -> None:
    run = RunOptions.build("cline", {"policy": policy, "model": model, "inherit": "project"})
    rows = compile_policy(AGENT, policy, run).unenforced
    assert ("write=allow" in [part for row in rows for part in row.unenforced]) is refused
    unnamed = replace(run, model=None)
    if not refused and policy != Policy.edits():
        launch_of(AGENT, unnamed, PLACE, "hi", None)
        return
    with pytest.raises(errors.ConfigError, match="depends on the model"):
        launch_of(AGENT, unnamed, PLACE, "hi", None)


def test_a_permitted_shell_reaches_the_network() -> None:
    policy = Policy(shell="allow", network="deny")
    network = decisions(compile_policy(AGENT, policy))["network"]
    assert network == "deny (native) · commands: deny (not enforced)"


def test_the_file_after_an_at_sign_is_not_added_to_the_prompt() -> None:
    """Cline looks for ``@`` at the start of a word, as JavaScript understands words."""
    assert isinstance(AGENT.transport, AcpTransport)
    text = "@a.txt me@b.txt\n@/etc/passwd \ufeff@c"
    _, line = AcpClient(AGENT.transport.quirks).prompt("s", [TextBlock(text)])
    (sent,) = json.loads(line)["params"]["prompt"]
    assert sent["text"] == "\u2060@a.txt me@b.txt\n\u2060@/etc/passwd \ufeff\u2060@c"
