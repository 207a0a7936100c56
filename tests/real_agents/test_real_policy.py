"""The permission policy with every real agent: checked on the disk, in the model requests and in
the result. Attacks are in ``test_real_attacks.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.files import file_names
from support.mcp_servers import notes_server
from support.model_scripts import sent_json, steps, tool_results_json
from support.real_agents import EVERY_DAY, RealAgent, denied_tools, for_agents
from support.repositories import git

import corral
from corral import Policy, errors, result_from_events
from corral._agents.registry import find
from corral._agents.report import compile_for
from corral.events import Decision, PermissionRequest
from corral.options import RunOptions
from corral.run_kwargs import RunKwargs
from corral.testing import Call, Request, Turn, say

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("seed")]

TOKEN = "canary-of-the-notes"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """The folder of an MCP server; it writes ``started`` there, and ``note.txt`` when called."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def with_notes(agent: RealAgent, notes: Path, options: RunKwargs) -> RunKwargs:
    """The options with the MCP server, where the agent takes MCP servers."""
    if agent.record.supports("mcp_servers"):
        options["mcp_servers"] = [notes_server(notes, NOTES_TOKEN=TOKEN)]
        if agent.record.mcp_model is not None:
            options["model"] = agent.record.mcp_model
    return options


def note_calls(agent: RealAgent) -> list[Call]:
    if not agent.record.supports("mcp_servers"):
        return []
    return [agent.mcp_tool("notes", "keep", text="remember")]


def has_all_tools_with_notes(agent: RealAgent) -> bool:
    return agent.record.supports("mcp_servers") and agent.record.mcp_model is None


NOT_PARSED = "a command that its parser does not understand"
REFUSED_COMMANDS = {
    "plain.txt": ("touch plain.txt", ()),
    "opened.txt": ("bash -c '(exec 3<>opened.txt)'", (NOT_PARSED,)),
    "substituted.txt": ("touch $(echo substituted.txt)", ("command substitution",)),
    "expanded.txt": ("echo ${HOME@P} > expanded.txt", (NOT_PARSED, "parameter transformation")),
    "forced.txt": ("rm -f nothing; touch forced.txt", ("rm with -f",)),
}
"""Commands that an agent may refuse although all is allowed: the file that each makes, and the
words of the report of an agent that refuses it."""


def offered_tools(agent: RealAgent) -> set[str]:
    return {name for request in agent.requests for name in request.tools}


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(Policy(), id="default"),
        pytest.param(Policy.reads(), id="reads", marks=pytest.mark.deep),
    ],
)
@for_agents()
async def test_without_permission_nothing_is_written_run_or_called(
    agent: RealAgent, workspace: Path, notes: Path, policy: Policy
) -> None:
    allowed = [agent.read("seed.txt")] if agent.record.has_tool("read") else []
    denied = [
        agent.write("new.txt"),
        agent.edit("seed.txt", "seed words", "changed words"),
        agent.shell("touch ran.txt"),
        agent.shell("> seed.txt"),
        agent.shell("ls"),  # some agents run commands that only read without asking
        *agent.calls("fetch", url="http://127.0.0.1:9/")[:1],
        *note_calls(agent),
    ]
    delegate = agent.calls("delegate", prompt="touch ran.txt")
    denied += [call for call in delegate if call.name not in agent.record.always_offers]
    options = with_notes(agent, notes, {"policy": policy})
    results = await agent.attempt([*allowed, *denied], **options)

    assert results[-1].final_text == "done" or agent.record.ends_turn_at_denial
    assert file_names(workspace) == ["seed.txt"]
    assert (workspace / "seed.txt").read_text() == "seed words\n"
    assert not (notes / "note.txt").exists()
    hidden = {call.name for call in denied} - {*agent.record.always_offers}
    assert not offered_tools(agent) & hidden
    if agent.record.reports_hidden_calls:
        names = [c.name for c in denied if c.name not in agent.record.unreported_tools]
        assert sorted(denied_tools(*results)) == sorted(names)
    complete = agent.record.spec.reports_all_denials
    assert {result.denied_complete for result in results} == {complete}
    if allowed:
        assert "seed words" in tool_results_json(agent.turns[-1])
    assert [file for result in results for file in result.files] == []


@for_agents(lambda record: record.name != "copilot-cli")  # it refuses this policy
async def test_edits_are_made_in_the_workspace_and_writable_folders_only(
    agent: RealAgent, workspace: Path, tmp_path: Path, notes: Path
) -> None:
    more, secret = tmp_path / "more", tmp_path / "secret.txt"
    more.mkdir()
    secret.write_text("secret words\n")
    reads = agent.record.has_tool("read")
    keeps_notes = has_all_tools_with_notes(agent)
    allowed = [
        agent.write("new.txt", "words\n"),
        *([agent.read("seed.txt")] if reads else []),  # some agents edit only what they have read
        agent.edit(workspace / "seed.txt", "seed words", "changed words"),
        agent.write(more / "also.txt"),
        *(note_calls(agent) if keeps_notes else []),
    ]
    denied = [
        agent.shell("touch ran.txt"),
        agent.shell("> seed.txt"),
        agent.write(tmp_path / "up.txt"),
        agent.write("../up.txt"),
        *([agent.read(secret)] if reads else []),
    ]
    policy = Policy(write="allow", shell="deny", network="deny", writable=(str(more),))
    options: RunKwargs = {"policy": policy}
    if keeps_notes:
        options = with_notes(agent, notes, {"policy": replace(policy, mcp="allow")})
    results = await agent.attempt([*allowed, *denied], **options)

    assert results[-1].error is None or agent.record.ends_turn_at_denial
    assert file_names(workspace) == ["new.txt", "seed.txt"]
    assert (workspace / "new.txt").read_text() == "words\n"
    assert (workspace / "seed.txt").read_text() == "changed words\n"
    assert file_names(more) == ["also.txt"]
    assert not (tmp_path / "up.txt").exists()
    assert "secret words" not in sent_json(agent.requests)
    if keeps_notes:
        assert (notes / "note.txt").read_text() == "remember"
        assert TOKEN in sent_json(agent.requests)  # the server got it, and says so
    assert agent.tool_name("run") not in offered_tools(agent)
    assert denied_tools(*results)
    if agent.record.reports_hidden_calls:
        assert sorted(denied_tools(*results)) == sorted(call.name for call in denied)
    changed = {file.path: file.kind for result in results for file in result.files}
    assert changed[str(workspace / "new.txt")] == "created"
    assert changed[str(workspace / "seed.txt")] == "modified"


@for_agents()
async def test_the_policy_all_allows_everything_without_a_question(
    agent: RealAgent, workspace: Path, tmp_path: Path, notes: Path
) -> None:
    """Also commands that an agent considers dangerous, and also as root."""
    (workspace / "doomed" / "deep").mkdir(parents=True)
    (workspace / "doomed" / "deep" / "file.txt").touch()
    git(workspace, "init", "-q")
    calls = [
        agent.write("new.txt"),
        *([agent.write(tmp_path / "far.txt")] if agent.record.writes_outside else []),
        agent.shell(f"touch ran.txt {tmp_path}/up.txt"),
        # Codex itself refuses `rm -rf`, whatever the policy is.
        agent.shell("rm -r doomed" if agent.record.mark == "codex" else "rm -rf doomed"),
        agent.shell("echo redirected > out.txt 2>&1"),
        agent.shell("printf 'b\\na\\n' | sort | tee sorted.txt"),
        agent.shell("git add new.txt && git -c user.name=A -c user.email=a@b commit -q -m 'made'"),
        agent.shell("find . -name new.txt -exec touch found.txt \\;"),
    ]
    options: RunKwargs = {"policy": "all"}
    if keeps_notes := has_all_tools_with_notes(agent):
        calls += note_calls(agent)
        options = with_notes(agent, notes, options)
    events = await agent.events(steps(*calls), **options)
    asked = [event for event in events if isinstance(event, PermissionRequest)]

    assert not asked or agent.record.asks_always
    names = ["found.txt", "new.txt", "out.txt", "ran.txt", "seed.txt", "sorted.txt"]
    assert [n for n in file_names(workspace) if not n.startswith(".git/")] == names
    assert (workspace / "out.txt").read_text() == "redirected\n"
    assert (workspace / "sorted.txt").read_text() == "a\nb\n"
    assert git(workspace, "log", "--format=%s") == "made"
    assert (tmp_path / "far.txt").exists() == agent.record.writes_outside
    assert (tmp_path / "up.txt").exists()
    if keeps_notes:
        assert (notes / "note.txt").exists()
    result = result_from_events(events)
    assert result.ok
    assert result.denied == ()
    assert result.denied_complete


@for_agents(lambda record: record.asks, spine=("codex-acp",))
async def test_the_caller_decides_and_shell_rules_need_no_question(
    agent: RealAgent, workspace: Path
) -> None:
    asked: list[tuple[str | None, str]] = []

    async def ask(request: PermissionRequest) -> Decision:
        asked.append((request.kind, json.dumps([request.title, request.input])))
        return "allow_once" if "wanted" in asked[-1][1] else "deny"

    options: RunKwargs = {"strict": agent.record.asks_strictly}
    calls, names, kinds = [agent.write("wanted.txt")], ["wanted.txt"], ["edit"]
    if agent.record.asks_about_shell:
        calls += [agent.shell("touch wanted-too.txt"), agent.shell("touch unwelcome.txt")]
        names.append("wanted-too.txt")
        kinds += ["execute", "execute"]
    else:
        calls.append(agent.write("unwelcome.txt"))
        kinds.append("edit")
    denied = 1
    if agent.record.has_rules and not agent.record.ends_turn_at_denial:
        rules = ("allow touch ruled.txt", "deny touch forbidden.txt")
        options["policy"] = Policy(shell_rules=rules)
        smuggled = agent.shell("touch ruled.txt && touch smuggled.txt")
        ruled = [agent.shell("touch ruled.txt"), smuggled, agent.shell("touch forbidden.txt")]
        calls = [*ruled, *calls]
        names.append("ruled.txt")
        kinds.insert(0, "execute")  # about the smuggled command
        denied = 3
    script = [*(Turn(calls=[call]) for call in calls), Turn(text="done", repeat="forever")]
    async with agent.session(script, ask, **options) as session:
        result = await session.run("do it")
        second = await session.run("and now?")

    assert file_names(workspace) == sorted(["seed.txt", *names])
    assert [kind for kind, _ in asked] == kinds
    assert "unwelcome.txt" in asked[-1][1]
    assert len(denied_tools(result)) == denied
    if agent.record.reports_denied_turn:
        assert result.status == "denied"
        with pytest.raises(errors.PermissionRefused):
            result.raise_for_status()
    else:
        assert result.ok
    assert second.final_text == "done"


@for_agents("gemini-acp", "claude-cli")
async def test_permission_for_the_session_covers_one_command_or_tool(
    agent: RealAgent, workspace: Path
) -> None:
    """It lasts for all prompts of the session and no longer; protected files stay protected."""
    git(workspace, "init", "-q")
    before = file_names(workspace / ".git")
    asked: list[str | None] = []

    async def ask(request: PermissionRequest) -> Decision:
        asked.append(request.title)
        return "allow_session"

    calls = [
        agent.shell("touch one.txt"),
        agent.write("new.txt"),
        agent.shell("touch one.txt"),
        agent.write("more.txt"),
        agent.shell("touch two.txt"),
    ]
    protected = [agent.write(path) for path in (".git/hooks/pre-commit", "sub/.git/config")]
    prompts = [calls[:2], calls[2:], protected]
    script = [turn for made in (*prompts, calls[:1]) for turn in steps(*made)]
    options = agent.options(script)
    async with corral.session(agent.name, ask=ask, **options) as session:
        results = [await session.run("do it") for _ in prompts]
    assert len(asked) == 3  # one for each command, one for all writes
    assert [len(result.denied) for result in results] == [0, 0, 2]
    names = ["more.txt", "new.txt", "one.txt", "seed.txt", "two.txt"]
    assert [n for n in file_names(workspace) if not n.startswith(".git/")] == names
    assert file_names(workspace / ".git") == before
    async with corral.session(agent.name, ask=ask, **options) as other:
        await other.run("do it")
    assert len(asked) == 4


@for_agents(  # The others cannot enforce deny rules over a free shell, and refuse the policy.
    "gemini-cli", "claude-cli", "opencode-cli"
)
async def test_rules_hold_over_an_allowed_shell(agent: RealAgent, workspace: Path) -> None:
    denied = ["touch bad.txt", "touch  bad.txt", "ls && touch bad.txt", "ls; touch   bad.txt"]
    # One call per turn: the calls of one response are decided together. Not more than two denied
    # in a row: a third ends the response.
    commands = ("touch good.txt", *denied[:2], "echo x > out.txt", *denied[2:])
    script = [Turn(calls=[agent.shell(command)]) for command in commands]
    script.append(Turn(text="done", repeat="forever"))
    rules = ("allow touch good.txt", "deny touch *")
    policy = Policy(shell="allow", network="allow", shell_rules=rules)
    result = await agent.run(script, policy=policy)
    assert file_names(workspace) == ["good.txt", "out.txt", "seed.txt"]
    assert denied_tools(result) == [agent.tool_name("run")] * len(denied)


@for_agents("copilot-cli", "copilot-acp", "qwen-cli", "qwen-acp")
async def test_a_denied_tool_is_not_offered_even_if_it_is_listed(
    agent: RealAgent, workspace: Path
) -> None:
    read, shell = agent.tool_name("read"), agent.tool_name("run")
    policy = Policy(allow_tools=(read, shell), deny_tools=(shell,))
    await agent.attempt([agent.read("seed.txt"), agent.shell("touch ran.txt")], policy=policy)
    assert file_names(workspace) == ["seed.txt"]
    assert read in agent.turns[0].tools
    assert shell not in agent.turns[0].tools


# Not for Copilot: alone it cannot enforce writes, and its permission requests do not name the tool.
# Not for Qwen Code: without a tool for reading its edit fails before it asks.
@for_agents(*("gemini-cli", "claude-cli", "opencode-cli", "pi-cli"))
async def test_only_listed_tools_may_be_used(
    agent: RealAgent, workspace: Path, notes: Path
) -> None:
    read, writers = agent.tool_name("read"), [agent.tool_name("write")]
    denied = [agent.read("seed.txt"), agent.shell("touch ran.txt"), *note_calls(agent)]
    if agent.record.mark == "opencode":  # its rules do not tell them apart
        writers.append(agent.tool_name("edit"))
    else:
        denied.append(agent.edit("seed.txt", "seed words", "changed words"))
    policy = Policy(allow_tools=(*writers, read), deny_tools=(read,))
    options = with_notes(agent, notes, {"policy": policy})
    results = await agent.attempt([agent.write("new.txt"), *denied], **options)
    assert file_names(workspace) == ["new.txt", "seed.txt"]
    assert (workspace / "seed.txt").read_text() == "seed words\n"
    assert not (notes / "note.txt").exists()
    assert "seed words" not in tool_results_json(agent.turns[-1])
    if agent.record.reports_hidden_calls:
        assert denied_tools(*results) == [call.name for call in denied]
    assert {*agent.turns[0].tools} - {call.name for call in note_calls(agent)} == {*writers}


@for_agents(
    lambda record: record.name not in ("codex-acp",),
    spine=EVERY_DAY - {"codex-acp", "opencode-cli"},
)
async def test_what_is_denied_is_not_offered_and_not_done(
    agent: RealAgent, workspace: Path, notes: Path
) -> None:
    calls = [
        *agent.calls("read", path="seed.txt")[:1],
        *agent.calls("search", path=".", pattern="seed")[:1],
        agent.write("new.txt"),
        agent.shell("touch ran.txt"),
        *note_calls(agent),
    ]
    policy = Policy(read="deny", write="deny", shell="deny", network="deny", mcp="deny")
    options = with_notes(agent, notes, {"policy": policy})
    results = await agent.attempt(calls, **options)
    assert file_names(workspace) == ["seed.txt"]
    assert not (notes / "note.txt").exists()
    assert not (notes / "started").exists()
    assert "seed words" not in sent_json(agent.requests)
    assert not offered_tools(agent) & {call.name for call in calls} - {*agent.record.always_offers}
    if agent.record.reports_hidden_calls:
        assert denied_tools(*results) == [call.name for call in calls]


@for_agents("gemini-cli", "claude-cli")
async def test_planning_changes_nothing(agent: RealAgent, workspace: Path) -> None:
    calls = [agent.read("seed.txt"), agent.write("new.txt"), agent.shell("touch ran.txt")]
    result = await agent.run(steps(*calls), policy=Policy.plan())
    assert result.ok
    assert file_names(workspace) == ["seed.txt"]
    assert "seed words" in sent_json(agent.requests)
    assert denied_tools(result) == [call.name for call in calls[1:]]


UNENFORCEABLE_NETWORK = Policy(shell="allow", network="deny")
REFUSED: dict[str, list[tuple[RunKwargs, type[Exception], str]]] = {
    "claude-cli": [
        ({"sandbox": "agent"}, errors.ConfigError, "sandbox"),
        ({"reasoning_effort": "minimal"}, errors.ConfigError, "effort"),
        (
            {"policy": UNENFORCEABLE_NETWORK, "sandbox": "off"},
            errors.PolicyNotEnforceable,
            "network",
        ),
    ],
    # The model would have no tool that writes, and the run would end as a success.
    "cline-acp": [
        ({"policy": Policy.edits(), "model": None}, errors.ConfigError, "depends on the model"),
        ({"policy": Policy.edits(), "model": "gpt-5"}, errors.PolicyNotEnforceable, "apply_patch"),
    ],
    "codex-cli": [
        ({"max_turns": 3}, errors.ConfigError, "max_turns"),
        ({"sandbox": "agent"}, errors.ConfigError, "sandbox"),
        (
            {"policy": Policy(read="deny", shell="allow")},
            errors.PolicyNotEnforceable,
            "read=deny",
        ),
    ],
    "codex-acp": [
        (
            {"policy": Policy(shell="allow"), "sandbox": "off"},
            errors.PolicyNotEnforceable,
            "codex-cli can",
        ),
        (
            {"policy": Policy(allow_tools=("exec_command",)), "sandbox": "off"},
            errors.PolicyNotEnforceable,
            "codex-cli can",
        ),
        ({"policy": Policy.native()}, errors.PolicyNotEnforceable, "codex-cli can"),
    ],
    "copilot-cli": [
        # Nothing would protect .git there.
        ({"policy": Policy.edits()}, errors.PolicyNotEnforceable, "copilot-acp"),
    ],
    "pi-cli": [
        ({"policy": Policy.plan()}, errors.PolicyError, "planning mode"),
        ({"policy": Policy(shell_rules=("allow git *",))}, errors.PolicyNotEnforceable, "shell"),
        (
            {"policy": UNENFORCEABLE_NETWORK, "sandbox": "off"},
            errors.PolicyNotEnforceable,
            "network",
        ),
        ({"images": ("a.png",)}, errors.ConfigError, "images"),
        ({"max_turns": 3}, errors.ConfigError, "max_turns"),
        ({"inherit": "user"}, errors.ConfigError, "inherit"),
    ],
}
"""Agent → options that it cannot honor, the error, and a part of its message."""


@for_agents(lambda record: record.name in REFUSED)
async def test_what_an_agent_cannot_do_is_refused_before_it_starts(agent: RealAgent) -> None:
    for options, kind, message in REFUSED[agent.name]:
        with pytest.raises(kind, match=message):
            await agent.run([say("never")], **options)
        assert agent.requests == []


@for_agents()
async def test_under_all_every_command_runs_unless_the_report_says_that_it_is_refused(
    agent: RealAgent, workspace: Path
) -> None:
    commands = [agent.shell(command) for command, _words in REFUSED_COMMANDS.values()]
    await agent.run(steps(*commands), policy="all")

    compiled = compile_for(find(agent.name), RunOptions(agent=agent.name, policy=Policy.all()))
    (note,) = [row.note for row in compiled.report if row.capability == "shell"]
    reported = {
        name
        for name, (_command, words) in REFUSED_COMMANDS.items()
        if any(text in note for text in words)
    }
    assert {*REFUSED_COMMANDS} - {*file_names(workspace)} == reported


@pytest.mark.deep
@for_agents("gemini-acp", "gemini-cli", "claude-cli", "opencode-acp")
async def test_a_refused_call_stands_between_the_messages(
    agent: RealAgent, workspace: Path
) -> None:
    def speak(request: Request) -> Turn:
        if not request.tools or request.tool_results:
            return Turn(text="I could not.")
        return Turn(text="Writing.", calls=[agent.write("new.txt")], delay=0.2)

    async with agent.session(speak, policy="reads") as session:
        events = [event async for event in session.prompt("do it")]
    order = [event.type for event in events if event.type in ("text", "tool_use")]
    assert order == ["text", "tool_use", "text"]
    assert result_from_events(events).final_text == "I could not."
