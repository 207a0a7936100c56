"""The policy of the built-in agent: a denied call has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builtin_agent import BuiltinAgent, events_of, last_tool_result, tool_outcomes
from support.shell_attacks import EVASIONS, RULES

import corral
from corral.events import Decision, PermissionDecision, PermissionRequest, ToolResult
from corral.options import PermissionMode
from corral.policy import Policy
from corral.result import result_from_events
from corral.testing import Call, Turn, call, say

pytest_plugins = ("support.builtin_agent_fixture",)

PATCH = "*** Begin Patch\n*** Add File: patched.txt\n+x\n*** End Patch\n"
ALL = Turn(
    calls=[
        Call("read_file", {"file_path": "a.txt"}),
        Call("write_file", {"file_path": "new.txt", "content": "x"}),
        Call("edit_file", {"file_path": "a.txt", "old_string": "one", "new_string": "two"}),
        Call("shell", {"command": "touch ran"}),
        Call("web_fetch", {"url": "http://127.0.0.1:9/"}),
        Call("mine", {}),
    ]
)
"""One call for each capability."""


def snapshot(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def mine() -> str:
    return "called"


ALLOWED = {"success", "error"}  # the page is not there: allowed, and failed


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        (Policy.reads(), {"write_file", "edit_file", "shell", "web_fetch", "mine"}),
        (Policy.edits(), {"shell", "web_fetch"}),
        (Policy.all(), set[str]()),
        (Policy.plan(), {"write_file", "edit_file", "shell", "web_fetch", "mine"}),
        (Policy.native(), {"write_file", "edit_file", "shell", "web_fetch"}),
        (Policy(), {"write_file", "edit_file", "shell", "web_fetch"}),
        (Policy(read="deny", write="allow"), {"read_file", "shell", "web_fetch"}),
        (
            Policy(write="allow", deny_tools=("write_file",)),
            {"write_file", "shell", "web_fetch"},
        ),
        (
            Policy(allow_tools=("read_file", "shell")),
            {"write_file", "edit_file", "web_fetch", "mine"},
        ),
        (
            Policy(allow_tools=()),
            {"read_file", "write_file", "edit_file", "shell", "web_fetch", "mine"},
        ),
        (
            Policy(allow_tools=("shell",), deny_tools=("shell",)),
            {"read_file", "write_file", "edit_file", "shell", "web_fetch", "mine"},
        ),
    ],
)
async def test_a_denied_call_is_not_made(
    ours: BuiltinAgent, policy: Policy, refused: set[str]
) -> None:
    (ours.workspace / "a.txt").write_text("one")
    turns = iter([ALL, say("ok")])  # as a function: the policy may hide one of the run's own tools
    events = await ours.events(lambda _request: next(turns), policy=policy, tools=[mine])
    statuses = dict(tool_outcomes(events))
    assert {name for name, status in statuses.items() if status == "denied"} == refused
    assert all(status in ALLOWED for name, status in statuses.items() if name not in refused)
    result = result_from_events(events)
    assert result.ok
    assert {refusal.name for refusal in result.denied} == refused
    expected = {"a.txt": "one" if "edit_file" in refused else "two"}
    if "write_file" not in refused:
        expected["new.txt"] = "x"
    if "shell" not in refused:
        expected["ran"] = ""
    assert snapshot(ours.workspace) == expected


async def test_tools_that_are_denied_by_name_are_not_offered(ours: BuiltinAgent) -> None:
    policy = Policy(deny_tools=("shell", "spawn_agent", "mine"))
    await ours.events([say("ok")], policy=policy, tools=[mine])
    assert not {"shell", "spawn_agent", "mine"} & set(ours.requests[0].tools)
    await ours.events([say("ok")], policy=Policy(allow_tools=("grep", "mine")), tools=[mine])
    assert ours.requests[0].tools == ("grep", "mine")


async def test_shell_rules_decide_commands(ours: BuiltinAgent) -> None:
    policy = Policy(shell="deny", shell_rules=("deny echo no*", "allow echo *"))
    commands = ["echo yes", "echo no", "echo yes; touch hidden", "echo $(touch hidden)", "ls"]
    calls = [Call("shell", {"command": command}) for command in commands]
    events = await ours.events([Turn(calls=calls), say("ok")], policy=policy)
    assert [status for _, status in tool_outcomes(events)] == ["success", *["denied"] * 4]
    assert not (ours.workspace / "hidden").exists()


async def test_allow_rules_run_the_named_programs_and_no_others(ours: BuiltinAgent) -> None:
    commands = [*EVASIONS, "test -d . && printf '%s' x; cp /dev/null 'a copy'"]
    calls = [Call("shell", {"command": command}) for command in commands]
    policy = Policy(shell="deny", shell_rules=RULES)
    events = await ours.events([Turn(calls=calls), say("ok")], policy=policy)
    assert [status for _, status in tool_outcomes(events)] == [
        *["denied"] * len(EVASIONS),
        "success",
    ]
    assert list(snapshot(ours.workspace)) == ["a copy"]


async def test_the_answer_to_a_permission_request_is_obeyed(ours: BuiltinAgent) -> None:
    asked: list[PermissionRequest] = []
    answers: dict[str, Decision] = {"touch a": "allow_once", "touch b": "deny"}

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request)
        assert isinstance(request.input, dict)
        return answers[str(request.input["command"])]

    calls = [Call("shell", {"command": command}) for command in ("touch a", "touch b", "touch a")]
    events = await ours.events([Turn(calls=calls), say("ok")], ask=ask)
    assert [status for _, status in tool_outcomes(events)] == ["success", "denied", "success"]
    assert (len(asked), asked[0].kind, asked[0].title) == (3, "execute", "Run touch a")
    assert sorted(snapshot(ours.workspace)) == ["a"]
    decisions = events_of(events, PermissionDecision)
    assert [(d.decision, d.by) for d in decisions] == [
        ("allow_once", "person"), ("deny", "person"), ("allow_once", "person"),
    ]  # fmt: skip
    requests = events_of(events, PermissionRequest)
    assert [r.request_id for r in requests] == [d.request_id for d in decisions]
    assert [r.call_id for r in requests] == [e.call_id for e in events_of(events, ToolResult)]


async def test_permission_for_the_session_is_only_for_the_same_command(ours: BuiltinAgent) -> None:
    asked: list[str] = []

    def ask(request: PermissionRequest) -> Decision:
        asked.append(request.title or "")
        return "allow_session"

    script = [
        Turn(calls=[Call("shell", {"command": c}) for c in ("touch a", "touch a", "touch b")]),
        say("ok"),
        call("shell", command="touch a"),
        say("ok"),
    ]
    async with ours.session(script, ask=ask) as session:
        await session.run("one")
        await session.run("two")
    assert asked == ["Run touch a", "Run touch b"]


async def test_a_person_who_cancels_ends_the_run_and_concurrent_calls(
    ours: BuiltinAgent,
) -> None:
    def ask(_: PermissionRequest) -> Decision:
        return "cancel"

    calls = [
        Call("shell", {"command": "touch first"}),
        Call("write_file", {"file_path": "second", "content": ""}),
        Call("shell", {"command": "touch third"}),
    ]
    policy = Policy(write="allow")
    events = await ours.events([Turn(calls=calls), say("never")], ask=ask, policy=policy)
    assert result_from_events(events).status == "interrupted"
    assert [status for _, status in tool_outcomes(events)] == ["cancelled"] * 3
    assert len(events_of(events, PermissionRequest)) == 1
    assert len(ours.requests) == 1
    assert snapshot(ours.workspace) == {}


async def test_a_person_can_end_the_run_from_a_request_of_a_sub_agent(ours: BuiltinAgent) -> None:
    def ask(_: PermissionRequest) -> Decision:
        return "cancel"

    script = [
        Turn(calls=[Call("spawn_agent", {"task": "under"})], match="do it"),
        Turn(calls=[Call("shell", {"command": "touch ran"})], match="under"),
        Turn(calls=[Call("wait", {})], match="do it"),
        Turn(text="never", match="do it", repeat="forever"),
    ]
    events = await ours.events(script, ask=ask)
    assert result_from_events(events).status == "interrupted"
    assert snapshot(ours.workspace) == {}


@pytest.mark.parametrize(("mode", "status"), [("auto", "success"), ("deny", "denied")])
async def test_a_permission_mode_decides_instead_of_a_person(
    ours: BuiltinAgent, mode: PermissionMode, status: str
) -> None:
    def ask(_: PermissionRequest) -> Decision:
        raise AssertionError("no one is asked")

    events = await ours.events(
        [call("shell", command="touch ran"), say("ok")], ask=ask, permission_mode=mode
    )
    assert tool_outcomes(events) == [("shell", status)]
    assert (ours.workspace / "ran").exists() == (mode == "auto")


async def test_denied_calls_stay_denied_in_every_mode(ours: BuiltinAgent) -> None:
    script = [call("shell", command="touch ran"), say("ok")]
    events = await ours.events(script, policy=Policy.edits(), permission_mode="auto")
    assert tool_outcomes(events) == [("shell", "denied")]


async def test_an_ask_function_that_raises_denies_the_call(ours: BuiltinAgent) -> None:
    async def ask(_: PermissionRequest) -> Decision:
        raise RuntimeError("no terminal")

    events = await ours.events([call("shell", command="touch ran"), say("ok")], ask=ask)
    assert tool_outcomes(events) == [("shell", "denied")]
    assert snapshot(ours.workspace) == {}


@pytest.mark.parametrize(
    ("policy", "mode"),
    [
        (Policy(shell="allow", network="deny"), "prompt"),
        (Policy(allow_tools=("shell",), network="deny"), "prompt"),
        (Policy(network="deny"), "auto"),
    ],
)
async def test_denied_network_with_an_allowed_shell_is_an_early_error(
    ours: BuiltinAgent, policy: Policy, mode: PermissionMode
) -> None:
    with pytest.raises(corral.errors.PolicyNotEnforceable, match="network=deny"):
        await ours.events([say("never")], policy=policy, permission_mode=mode, sandbox="off")
    assert ours.requests == []
    result = await ours.run([say("ok")], policy=policy, permission_mode=mode, strict=False)
    assert result.ok


async def test_an_unknown_tool_name_in_a_policy_is_an_error(ours: BuiltinAgent) -> None:
    with pytest.raises(corral.errors.PolicyError, match="did you mean 'write_file'"):
        await ours.events([say("never")], policy=Policy(deny_tools=("write_fil",)))
    assert ours.requests == []


@pytest.mark.parametrize("where", ["allow_tools", "deny_tools"])
async def test_an_unknown_tool_name_is_an_early_error(ours: BuiltinAgent, where: str) -> None:
    policy = Policy(**{where: ("mine", "run_shell_command")})  # type: ignore[arg-type]
    with pytest.raises(corral.errors.PolicyError, match=r"'run_shell_command'.*'shell'"):
        await ours.events([say("never")], policy=policy, tools=[mine])
    assert ours.requests == []
    with pytest.raises(corral.errors.PolicyError, match="no tool 'mine'"):
        await ours.events([say("never")], policy=Policy(**{where: ("mine",)}))  # type: ignore[arg-type]
    assert ours.requests == []


async def test_a_function_may_have_almost_the_name_of_a_built_in_tool(
    ours: BuiltinAgent,
) -> None:
    def read_files() -> str:
        """Reads."""
        return "read"

    async with ours.session(
        [say("ok"), say("ok")],
        policy=Policy(allow_tools=("read_files", "grep")),
        tools=[read_files],
    ) as session:
        assert (await session.run("go")).ok
        assert (await session.run("go", policy=Policy(allow_tools=("read_files",)))).ok
    assert [request.tools for request in ours.requests] == [("grep", "read_files"), ("read_files",)]


ESCAPES = ["../out.txt", "/etc/passwd", "link/out.txt", "../workspace-evil/out.txt", "~/out.txt"]


@pytest.mark.parametrize("path", ESCAPES)
async def test_no_tool_reaches_outside_the_workspace(ours: BuiltinAgent, path: str) -> None:
    outside = ours.workspace.parent
    evil = outside / "workspace-evil"
    evil.mkdir()
    for folder in (outside, evil, outside / "user-home"):
        (folder / "out.txt").write_text("secret")
    (ours.workspace / "link").symlink_to(outside)
    patch = f"*** Begin Patch\n*** Delete File: {path}\n*** End Patch\n"
    move = (
        f"*** Begin Patch\n*** Update File: in.txt\n*** Move to: {path}\n@@\n-x\n+y\n*** End Patch"
    )
    (ours.workspace / "in.txt").write_text("x\n")
    calls = [
        Call("read_file", {"file_path": path}),
        Call("read_many_files", {"paths": [path]}),
        Call("list_dir", {"path": str(Path(path).parent) + "/x/.."}),
        Call("glob", {"pattern": path}),
        Call("grep", {"pattern": "secret", "path": path}),
        Call("write_file", {"file_path": path, "content": "gone"}),
        Call("edit_file", {"file_path": path, "old_string": "secret", "new_string": "gone"}),
        Call("apply_patch", {"patch": patch}),
        Call("apply_patch", {"patch": move}),
    ]
    names = tuple(dict.fromkeys(made.name for made in calls))
    events = await ours.events([Turn(calls=calls), say("ok")], policy=Policy(allow_tools=names))
    results = events_of(events, ToolResult)
    assert "secret" not in "".join(str(output) for _, output in ours.requests[1].tool_results)
    for result in results:
        if result.name not in ("glob", "read_many_files", "list_dir"):
            assert result.status == "error", result
    assert (evil / "out.txt").read_text() == (outside / "out.txt").read_text() == "secret"
    assert (ours.workspace / "in.txt").read_text() == "x\n"
    assert result_from_events(events).files == ()


async def test_further_folders_can_be_read_and_only_writable_ones_written(
    ours: BuiltinAgent,
) -> None:
    read, write = ours.workspace.parent / "read", ours.workspace.parent / "write"
    for folder in (read, write):
        folder.mkdir()
        (folder / "a.txt").write_text("one")
    calls = [
        Call("read_file", {"file_path": str(read / "a.txt")}),
        Call("read_file", {"file_path": str(write / "a.txt")}),
        Call("write_file", {"file_path": str(read / "b.txt"), "content": "x"}),
        Call("write_file", {"file_path": str(write / "b.txt"), "content": "x"}),
    ]
    policy = Policy(write="allow", writable=(str(write),))
    events = await ours.events(
        [Turn(calls=calls), say("ok")], policy=policy, include_directories=[str(read)]
    )
    assert [s for _, s in tool_outcomes(events)] == ["success", "success", "error", "success"]
    assert (
        "may be read but not written" in last_tool_result(ours.requests[1], "write_file")
        or not (read / "b.txt").exists()
    )
    assert (write / "b.txt").read_text() == "x"
    assert not (read / "b.txt").exists()
