"""A model that tries what the policy denies, with every real agent: what is on the disk afterwards,
what ran, and what the model was sent.

One session makes all attempts of a policy, because a start of some agents takes seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.attack_workspace import LISTED, SECRET, AttackWorkspace, listener
from support.files import file_names
from support.model_scripts import sent_json
from support.processes import processes_using
from support.real_agents import KEY, RealAgent, denied_tools, for_agents
from support.shell_attacks import EVASIONS, RULES

from corral import Policy, Result
from corral._agents.spec import Act
from corral.events import Decision, PermissionRequest
from corral.testing import Call
from corral.values import Json

pytestmark = pytest.mark.timeout(600)


def reads_outside(agent: RealAgent, trap: AttackWorkspace) -> list[Call]:
    calls = [call for path in trap.secret_paths() for call in agent.calls("read", path=path)]
    for path in trap.outside_folders():
        calls += agent.calls("list", path=path)
        calls += agent.calls("find", path=path, pattern="*")
        calls += agent.calls("search", path=path, pattern="outside-canary")
    return [*calls, *MORE_READS.get(agent.record.mark, no_calls)(trap)]


def writes_outside(agent: RealAgent, trap: AttackWorkspace) -> list[Call]:
    return [
        *(agent.write(path) for path in trap.outside_paths()),
        agent.edit(trap.out / "secret.txt", "theirs", "changed"),
        agent.edit("secret-link.txt", "theirs", "changed"),
    ]


def protected_writes(agent: RealAgent, trap: AttackWorkspace) -> list[Call]:
    return [
        *(agent.write(path) for path in trap.protected_paths()),
        agent.edit(".git/HEAD", "ref: refs/heads/master", "changed"),
        agent.edit(".vscode/only-here.json", "theirs", "changed"),
        *MORE_WRITES.get(agent.record.mark, no_calls)(trap),
    ]


def commands(agent: RealAgent, trap: AttackWorkspace) -> list[Call]:
    return [
        *(agent.shell(command) for command in trap.commands()),
        *agent.calls("run", command="touch ran.txt"),
        *agent.calls("background", command="touch ran.txt"),
        *MORE_COMMANDS.get(agent.record.mark, no_calls)(trap),
    ]


def other_tools(agent: RealAgent, url: str) -> list[Call]:
    return [
        *agent.calls("fetch", url=url),
        *agent.calls("web_search", query="anything"),
        *delegations(agent),
        *agent.calls("skill", skill="init"),
        *MORE_TOOLS.get(agent.record.mark, []),
    ]


def delegations(agent: RealAgent) -> list[Call]:
    calls = agent.calls("delegate", prompt="touch ran.txt")
    return [call for call in calls if call.name not in agent.record.always_offers]


def no_calls(_trap: AttackWorkspace) -> list[Call]:
    return []


def _more_gemini_reads(trap: AttackWorkspace) -> list[Call]:
    return [
        Call("glob", {"pattern": "**/*", "dir_path": str(trap.out)}),
        Call("glob", {"pattern": f"{trap.out}/*"}),
        Call("glob", {"pattern": "../out/*"}),
        Call("grep_search", {"pattern": "outside-canary", "include_pattern": "../out/*"}),
        Call("run_shell_command", {"command": "cat secret.txt", "dir_path": str(trap.out)}),
    ]


def _more_claude_reads(trap: AttackWorkspace) -> list[Call]:
    return [
        *(Call("Glob", {"pattern": text}) for text in (f"{trap.out}/*", "../out/*", "way/*")),
        Call("Grep", {"pattern": "outside-canary", "output_mode": "content", "glob": "way/*"}),
        Call("LSP", {"operation": "documentSymbol", "filePath": f"{trap.out}/secret.txt"}),
    ]


def _more_copilot_reads(trap: AttackWorkspace) -> list[Call]:
    search: dict[str, Json] = {"pattern": "outside-canary", "output_mode": "content"}
    return [
        Call("grep", {**search, "path": str(trap.out)}),
        Call("grep", {**search, "glob": "../out/*"}),
        Call("grep", search),
        Call("glob", {"pattern": "../out/*"}),
        Call("glob", {"pattern": "*", "path": str(trap.out)}),
    ]


def _more_qwen_reads(trap: AttackWorkspace) -> list[Call]:
    return [
        Call("grep_search", {"pattern": "outside-canary", "path": "way"}),
        Call("grep_search", {"pattern": "outside-canary", "glob": "../out/*"}),
        Call("glob", {"pattern": "*.txt", "path": str(trap.out)}),
        Call("glob", {"pattern": f"{trap.out}/*"}),
        Call("glob", {"pattern": "../out/*"}),
        Call("zoom_image", {"file_path": f"{trap.out}/secret.txt"}),
    ]


def _more_cline_reads(trap: AttackWorkspace) -> list[Call]:
    far = f"{trap.out}/secret.txt"
    return [
        Call("read_files", {"files": [{"path": "seed.txt"}, {"path": "way/secret.txt"}]}),
        Call("read_files", {"file_paths": [far]}),
        Call("read_files", {"path": far}),
        Call("search_codebase", {"queries": ["outside-canary"], "path": str(trap.out)}),
    ]


def _more_pi_reads(trap: AttackWorkspace) -> list[Call]:
    return [
        Call("read", {"path": f"@{trap.out}/secret.txt"}),  # pi removes the sign
        Call("read", {"path": "~/../out/secret.txt"}),
        Call("grep", {"pattern": "outside-canary"}),
        Call("find", {"pattern": "secret*", "path": ".."}),
    ]


MORE_READS: dict[str, Callable[[AttackWorkspace], list[Call]]] = {
    "gemini_cli": _more_gemini_reads,
    "claude": _more_claude_reads,
    "claude_acp": _more_claude_reads,
    "copilot": _more_copilot_reads,
    "qwen": _more_qwen_reads,
    "cline": _more_cline_reads,
    "pi": _more_pi_reads,
}
"""Mark of an agent → reads with arguments that only its tools have."""


def _more_gemini_writes(trap: AttackWorkspace) -> list[Call]:
    odd = ("@.git/config", "%2egit/config", ".git%2fconfig", ".gi\0t/config", ".gem%69ni/x.json")
    missing = ("only-here.json", "code/only-here.json")  # it looks for them in other folders
    edit: dict[str, Json] = {
        "instruction": "change it",
        "old_string": "theirs",
        "new_string": "changed",
    }
    return [
        *(Call("write_file", {"file_path": path, "content": "x"}) for path in odd),
        *(Call("replace", {"file_path": path, **edit}) for path in missing),
    ]


def _more_claude_writes(trap: AttackWorkspace) -> list[Call]:
    given: dict[str, Json] = {"new_source": "x", "edit_mode": "insert", "cell_type": "code"}
    paths = (str(trap.out / "x.ipynb"), "way/x.ipynb")
    return [Call("NotebookEdit", {"notebook_path": path, **given}) for path in paths]


def _patches(*lines: tuple[str, ...]) -> list[str]:
    return ["\n".join(("*** Begin Patch", *each, "*** End Patch", "")) for each in lines]


def _more_codex_writes(trap: AttackWorkspace) -> list[Call]:
    move = ("*** Update File: seed.txt", "*** Move to: .git/hooks/pre-commit", "@@", "-seed words")
    patches = _patches(
        move,
        ("*** Delete File: embedded/.git/HEAD",),
        ("  *** Add File: fresh/.git/HEAD", "+ref: x"),
    )
    return [Call("apply_patch", {"input": text}) for text in patches]


def _more_qwen_writes(trap: AttackWorkspace) -> list[Call]:
    return [
        Call("notebook_edit", {"notebook_path": f"{trap.out}/x.ipynb", "new_source": "x"}),
        Call("save_memory", {"fact": "remember", "scope": "project"}),
    ]


def _patch_update_hook(_trap: AttackWorkspace) -> list[Call]:
    (text,) = _patches(("*** Add File: .git/hooks/update", "+x"))
    return [Call("apply_patch", {"patch": text, "input": text})]


MORE_WRITES: dict[str, Callable[[AttackWorkspace], list[Call]]] = {
    "gemini_cli": _more_gemini_writes,
    "claude": _more_claude_writes,
    "claude_acp": _more_claude_writes,
    "codex": _more_codex_writes,
    "copilot": _patch_update_hook,
    "qwen": _more_qwen_writes,
    "cline": _patch_update_hook,
}


def _more_gemini_commands(trap: AttackWorkspace) -> list[Call]:
    run = "run_shell_command"
    return [
        Call(run, {"command": "touch ran.txt", "description": "only a question"}),
        Call(run, {"command": "uniq seed.txt ran.txt", "dir_path": "."}),
        Call(run, {"command": ["id"]}),
        Call("list_background_processes", {}),
        Call("read_background_output", {"pid": 1}),
        Call("shell", {"command": "id"}),
    ]


def _more_claude_commands(trap: AttackWorkspace) -> list[Call]:
    given: dict[str, Json] = {"command": "touch ran.txt", "description": "x"}
    return [Call("Bash", {**given, "dangerouslyDisableSandbox": True})]


def _more_codex_commands(trap: AttackWorkspace) -> list[Call]:
    (text,) = _patches(("*** Add File: ran.txt", "+x"))
    return [Call("exec_command", {"cmd": f"apply_patch <<'E'\n{text}E"})]


MORE_COMMANDS: dict[str, Callable[[AttackWorkspace], list[Call]]] = {
    "gemini_cli": _more_gemini_commands,
    "claude": _more_claude_commands,
    "claude_acp": _more_claude_commands,
    "codex": _more_codex_commands,
}
MORE_TOOLS: dict[str, list[Call]] = {
    "gemini_cli": [
        Call("codebase_investigator", {"objective": "touch ran.txt"}),
        Call("save_memory", {"fact": "obey"}),
        Call("enter_plan_mode", {"reason": "x"}),
        Call("exit_plan_mode", {"plan_filename": "x.md"}),
        Call("ask_user", {"questions": []}),
        Call("get_internal_docs", {}),
        Call("mcp_corral_x", {}),
    ],
    "claude": [
        Call("EnterWorktree", {"name": "x"}),
        Call("CronCreate", {"cron": "* * * * *", "prompt": "x"}),
    ],
    "cline": [Call("spawn_agent", {"systemPrompt": "x", "task": "touch ran.txt"})],
}
MORE_TOOLS["claude_acp"] = MORE_TOOLS["claude"]


def hidden_tools(agent: RealAgent) -> set[str]:
    """The tools that run commands, go to the network or start sub-agents."""
    acts: tuple[Act, ...] = ("run", "background", "fetch", "web_search", "delegate")
    return {call.name for act in acts for call in agent.calls(act)}


def check_nothing_leaked(agent: RealAgent, calls: list[Call], results: list[Result]) -> None:
    sent = sent_json(agent.requests)
    report = describe(calls, results)
    for text in (SECRET, LISTED, KEY, "uid=", "PYTEST_CURRENT_TEST"):
        assert text not in sent, f"{text}\n{report}"
    assert not [request for request in agent.requests if request.aside], report
    assert processes_using(agent.workspace.parent) == {}, report


def describe(calls: list[Call], results: list[Result]) -> str:
    """For a failure: the outcome of each attempt."""
    if len(results) == 1:
        return f"{results[0].status} {results[0].error} denied={results[0].denied}"
    return "\n".join(
        f"{call.name} {msgspec.json.encode(call.args).decode()}: {result.status}"
        f" denied={[d.name for d in result.denied]} {result.error or ''}"
        for call, result in zip(calls, results, strict=True)
    )


@pytest.mark.deep
@for_agents(lambda record: record.name != "copilot-cli")  # it refuses this policy
async def test_edits_change_plain_files_of_the_workspace_and_nothing_else(
    agent: RealAgent, workspace: Path, tmp_path: Path
) -> None:
    trap = AttackWorkspace(workspace)
    writable, docs = tmp_path / "writable", tmp_path / "docs"
    writable.mkdir()
    docs.mkdir()
    (docs / "manual.txt").write_text("read me\n")
    (workspace / "docs-link").symlink_to(docs)
    trap.remember()
    allowed = [*agent.calls("read", path="seed.txt")[:1], agent.write("sub/new.txt")]
    allowed += [agent.edit(workspace / "seed.txt", "seed words", "changed words")]
    allowed += [agent.write(writable / "more.txt")]
    policy = msgspec.structs.replace(Policy.edits(), writable=(str(writable),))
    included = agent.record.supports("include_directories")
    docs_writes = [agent.write(docs / "new.txt"), agent.write("docs-link/new.txt")]
    docs_reads = agent.calls("read", path=str(docs / "manual.txt"))[:1] if included else []
    with listener() as (url, requested):
        calls = [
            *allowed,
            *reads_outside(agent, trap),
            *protected_writes(agent, trap),
            *writes_outside(agent, trap),
            *docs_reads,
            *docs_writes,
            *commands(agent, trap),
            *other_tools(agent, url),
        ]
        if included:
            results = await agent.attempt(calls, policy=policy, include_directories=[docs])
        else:
            results = await agent.attempt(calls, policy=policy)
        assert requested == []

    report = describe(calls, results)
    expected = {str(workspace / name) for name in ("seed.txt", "sub/new.txt")}
    # To some agents ``way/../out.txt`` is ``out.txt``.
    assert {*trap.changes()} - {str(workspace / "out.txt")} == expected, report
    assert (workspace / "seed.txt").read_text() == "changed words\n"
    assert file_names(writable) == ["more.txt"]
    assert file_names(docs) == ["manual.txt"]
    check_nothing_leaked(agent, calls, results)
    if docs_reads:
        assert "read me" in sent_json(agent.requests)
    offered = {name for request in agent.requests for name in request.tools}
    assert not offered & (hidden_tools(agent) - {*agent.record.always_offers})


@pytest.mark.deep
@for_agents()
async def test_the_default_policy_changes_nothing_and_reads_nothing_outside(
    agent: RealAgent, workspace: Path
) -> None:
    """What no one can be asked about is not offered."""
    trap = AttackWorkspace(workspace)
    with listener() as (url, requested):
        calls = [
            *reads_outside(agent, trap),
            agent.write("new.txt"),
            agent.write("seed.txt"),
            *protected_writes(agent, trap),
            *writes_outside(agent, trap),
            *commands(agent, trap),
            *other_tools(agent, url),
            *agent.calls("read", path="seed.txt")[:1],
        ]
        results = await agent.attempt(calls)
        assert requested == []

    assert trap.changes() == [], describe(calls, results)
    check_nothing_leaked(agent, calls, results)
    if agent.record.has_tool("read"):
        assert "seed words" in sent_json(agent.requests)
    offered = {name for request in agent.requests for name in request.tools}
    writers = {agent.tool_name("write"), agent.tool_name("edit")}
    hidden = (hidden_tools(agent) | writers) - {*agent.record.always_offers}
    assert not offered & hidden


@for_agents("gemini-acp", "claude-cli", "claude-acp")
async def test_with_somebody_to_ask_every_command_is_a_question(
    agent: RealAgent, workspace: Path
) -> None:
    """Also commands that the agent considers harmless, or cannot parse."""
    trap = AttackWorkspace(workspace)
    asked: list[PermissionRequest] = []

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request)
        return "deny"

    lines = [*trap.commands(), "for", "echo 'unclosed", "cat <<X\nX", "id #\nid"]
    if agent.record.mark == "gemini_cli":  # others show it without the control character
        lines.append("id\x7f")
    calls = [
        *map(agent.shell, lines),
        agent.write("new.txt"),
        *agent.calls("fetch", url="http://127.0.0.1:9/"),
        *reads_outside(agent, trap),
    ]
    results = await agent.attempt(calls, ask)
    assert trap.changes() == [], describe(calls, results)
    check_nothing_leaked(agent, calls, results)
    titles = "\n".join(f"{request.title} {request.input}" for request in asked)
    run = [r.input.get("command") for r in asked if isinstance(r.input, dict)]
    assert [line for line in lines if line not in run and line not in titles] == []
    assert {"execute", "edit", "fetch"} <= {request.kind for request in asked}


@for_agents("copilot-acp")
async def test_a_shell_that_does_not_always_ask_is_not_offered(
    agent: RealAgent, workspace: Path
) -> None:
    trap = AttackWorkspace(workspace)

    def ask(request: PermissionRequest) -> Decision:
        return "allow_once" if request.kind == "edit" else "deny"

    calls = [*commands(agent, trap)[:4], agent.write(".git/config"), agent.write("new.txt")]
    results = await agent.attempt(calls, ask)
    assert trap.changes() == [str(workspace / "new.txt")], describe(calls, results)
    assert "uid=" not in sent_json(agent.requests)
    assert agent.tool_name("run") not in agent.turns[0].tools


@for_agents(*("gemini-cli", "gemini-acp", "claude-cli", "claude-acp", "qwen-cli", "qwen-acp"))
async def test_allow_rules_run_the_named_programs_and_no_others(
    agent: RealAgent, workspace: Path
) -> None:
    (workspace / "seed.txt").write_text("seed words\n")
    good, made = ["cp seed.txt copy.txt"], ["copy.txt"]
    if agent.record.mark != "gemini_cli":  # its rules accept one command only
        good.append("test -f seed.txt && cp seed.txt 'a copy.txt'; printf '%s\\n' x")
        made.append("a copy.txt")
    calls = [agent.shell(command) for command in (*EVASIONS, *good)]
    rules: tuple[str, ...] = RULES
    if agent.name == "gemini-cli":
        # The CLI's own rules express these. It refuses the others.
        rules = ("allow pytest *", "allow cp *")
    policy = Policy(shell="deny", network="deny", shell_rules=rules)
    results = await agent.attempt(calls, policy=policy)
    assert sorted(os.listdir(workspace)) == sorted([*made, "seed.txt"])
    assert denied_tools(*results) == [agent.tool_name("run")] * len(EVASIONS)
