"""``corral acp`` as an editor sees it: a real process, driven over its standard streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.acp_editor import Editor, RpcFailed, allow, blocks, deny, editor, silent
from support.scripted_acp import agent

from corral._sessions import store
from corral.testing import Call, ModelServer, Turn, hang
from corral.values import Json

MODEL = ("-m", "gemini:gemini-2.5-flash")
WRITE = Call("write_file", {"file_path": "a.txt", "content": "new\n"})


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


def writes(request: Any) -> Turn:
    if request.tool_results:
        return Turn(text="Done.", usage={"input": 100, "output": 20})
    return Turn(text="I write. ", calls=[WRITE])


def kinds(client: Editor) -> list[str]:
    return [each["sessionUpdate"] for each in client.updates]


async def test_a_prompt_is_answered_with_updates_and_a_permission(
    model: ModelServer, workspace: Path
) -> None:
    lane = model.lane("a", writes)
    async with editor(*MODEL, env=lane.env) as client:
        session = await client.session(workspace)
        result = await client.prompt(session, "Write it")
        assert result["stopReason"] == "end_turn"
        assert result["usage"]["outputTokens"] > 0
        assert client.text == "I write. Done."
        assert (workspace / "a.txt").read_text() == "new\n"
        [request] = client.requests
        assert request["method"] == "session/request_permission"
        call = request["params"]["toolCall"]
        opened = next(u for u in client.updates if u["sessionUpdate"] == "tool_call")
        closed = next(u for u in client.updates if u["sessionUpdate"] == "tool_call_update")
        assert {opened["toolCallId"], closed["toolCallId"]} == {call["toolCallId"]}
        assert (opened["kind"], closed["status"]) == ("edit", "completed")
        diff = {"type": "diff", "path": str(workspace / "a.txt"), "newText": "new\n"}
        assert call["content"] == opened["content"] == [diff]
        usage = next(u for u in client.updates if u["sessionUpdate"] == "usage_update")
        assert usage["size"] == 1_048_576
        assert usage["used"] > 0
    # Without a policy corral asks; an editor may narrow that.
    assert store.find(session).meta.turns == 1


async def test_a_denied_call_is_not_made(model: ModelServer, workspace: Path) -> None:
    lane = model.lane("a", writes)
    async with editor(*MODEL, env=lane.env, answer=deny) as client:
        session = await client.session(workspace)
        await client.prompt(session, "Write it")
        assert not (workspace / "a.txt").exists()
        closed = next(u for u in client.updates if u["sessionUpdate"] == "tool_call_update")
        assert closed["status"] == "failed"


async def test_a_permission_that_is_never_answered_is_rejected_and_withdrawn(
    model: ModelServer, workspace: Path
) -> None:
    lane = model.lane("a", writes)
    async with editor(*MODEL, "--answer-timeout", "1", env=lane.env, answer=silent) as client:
        session = await client.session(workspace)
        result = await client.prompt(session, "Write it")
        assert result["stopReason"] in ("end_turn", "cancelled")
        assert not (workspace / "a.txt").exists()
        [notice] = client.notices
        assert notice["method"] == "$/cancel_request"
        assert notice["params"] == {"requestId": client.requests[0]["id"]}


async def test_a_mode_narrows_what_the_command_was_started_with(
    model: ModelServer, workspace: Path
) -> None:
    steps = [Turn(calls=[WRITE]), Turn(text="tried")]
    lane = model.lane("a", [*steps, *steps])
    async with editor(*MODEL, "--approve", "edits", env=lane.env, answer=deny) as client:
        opened = await client.call("session/new", cwd=str(workspace), mcpServers=[])
        session = opened["sessionId"]
        modes = opened["modes"]
        assert modes["currentModeId"] == "edits"
        assert [mode["id"] for mode in modes["availableModes"]] == ["edits", "reads", "ask"]
        await client.call("session/set_mode", sessionId=session, modeId="reads")
        await client.prompt(session, "Write it")
        assert not (workspace / "a.txt").exists()
        with pytest.raises(RpcFailed, match="the modes are edits, reads, ask") as failed:
            await client.call("session/set_mode", sessionId=session, modeId="all")
        assert failed.value.code == -32602
        changed = await client.call(
            "session/set_config_option", sessionId=session, configId="mode", value="edits"
        )
        assert changed["configOptions"][0]["currentValue"] == "edits"
        await client.prompt(session, "Write it")
        assert (workspace / "a.txt").exists()
        assert client.requests == []


async def test_the_model_is_an_option_of_a_session(model: ModelServer, workspace: Path) -> None:
    lane = model.lane("a", [Turn(text="one"), Turn(text="two")])
    async with editor(*MODEL, env=lane.env) as client:
        session = await client.session(workspace)
        for name, value, code in (
            ("model", "anthropic:claude-sonnet-4-5", -32602),
            ("effort", "enormous", -32602),
            ("color", "red", -32602),
            ("model", "gemini:gemini-2.5-pro", None),
        ):
            params = {"sessionId": session, "configId": name, "value": value}
            if code is None:
                await client.call("session/set_config_option", **params)
                continue
            with pytest.raises(RpcFailed) as failed:
                await client.call("session/set_config_option", **params)
            assert failed.value.code == code
        await client.prompt(session, "hi")
        assert lane.requests[0].model == "gemini-2.5-pro"


async def test_what_the_one_who_started_corral_forbids_is_refused(
    model: ModelServer, workspace: Path, tmp_path: Path
) -> None:
    server: dict[str, Any] = {"name": "x", "command": "/bin/true", "args": [], "env": []}
    link = workspace / "out"
    link.symlink_to(tmp_path)
    async with editor(
        *MODEL, "--approve", "reads", "--folder", str(workspace), env=model.env
    ) as client:
        refused: list[tuple[object, list[dict[str, Any]], str]] = [
            (tmp_path, [], "set by the one who started corral acp: --folder"),
            (link, [], "--folder"),
            (workspace / ".." / "..", [], "--folder"),
            ("relative", [], "absolute"),
            (workspace, [server], "--approve reads"),
            (workspace, [{"type": "sse", "name": "x", "url": "http://x"}], "are not supported"),
        ]
        for cwd, servers, text in refused:
            with pytest.raises(RpcFailed, match=text) as failed:
                await client.call("session/new", cwd=str(cwd), mcpServers=servers)
            assert failed.value.code == -32602
        assert await client.session(workspace)


async def test_each_server_of_the_client_is_one_that_the_policy_permits(
    model: ModelServer, workspace: Path, tmp_path: Path
) -> None:
    """A policy for the functions of a caller starts no other program."""
    policy = tmp_path / "policy.toml"
    policy.write_text('mcp = "deny"\nown_mcp = "allow"\n')
    server: dict[str, Any] = {"name": "x", "command": "/bin/true", "args": [], "env": []}
    async with editor(*MODEL, "--policy", str(policy), env=model.env) as client:
        with pytest.raises(RpcFailed, match="the MCP server 'x' of the client is not permitted"):
            await client.call("session/new", cwd=str(workspace), mcpServers=[server])


async def test_writable_folders_are_relative_to_where_the_command_was_started(
    model: ModelServer, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "policy.toml").write_text('preset = "edits"\nwritable = ["shared"]\n')
    monkeypatch.chdir(tmp_path)
    call = Call("write_file", {"file_path": f"{tmp_path}/shared/a.txt", "content": "new\n"})
    lane = model.lane("a", [Turn(calls=[call]), Turn(text="Done.")])
    async with editor(*MODEL, "--policy", "policy.toml", env=lane.env) as client:
        await client.prompt(await client.session(workspace), "Write it")
    assert (tmp_path / "shared" / "a.txt").read_text() == "new\n"


async def test_all_sessions_share_one_budget(model: ModelServer, workspace: Path) -> None:
    lane = model.lane("a", [Turn(text="one", repeat="forever")])
    async with editor(*MODEL, "--max-calls", "1", env=lane.env) as client:
        first, second = [await client.session(workspace) for _ in range(2)]
        await client.prompt(first, "hi")
        with pytest.raises(RpcFailed, match="max_calls") as failed:
            await client.prompt(second, "hi")
        assert failed.value.data["code"] == "budget_exceeded"
    assert len(lane.requests) == 1


async def test_a_missing_key_is_an_error_that_names_the_variable(workspace: Path) -> None:
    async with editor(*MODEL) as client:
        with pytest.raises(RpcFailed, match="GEMINI_API_KEY") as failed:
            await client.session(workspace)
        assert failed.value.code == -32000
        with pytest.raises(RpcFailed, match="no method to authenticate"):
            await client.call("authenticate", methodId="x")


async def test_a_session_is_listed_loaded_resumed_and_closed(
    model: ModelServer, workspace: Path, tmp_path: Path
) -> None:
    lane = model.lane("a", writes)
    async with editor(*MODEL, env=lane.env) as client:
        session = await client.session(workspace)
        await client.prompt(session, "Write it")
    async with editor(*MODEL, env=lane.env) as client:
        listed = await client.call("session/list", cwd=str(workspace))
        assert [each["sessionId"] for each in listed["sessions"]] == [session]
        assert listed["sessions"][0]["title"] == "Write it"
        assert (await client.call("session/list", cwd=str(tmp_path)))["sessions"] == []
        opening: dict[str, Any] = {"sessionId": session, "mcpServers": []}
        for id, cwd, code in (
            ("last", workspace, -32002),
            ("../x", workspace, -32602),
            (session, tmp_path, -32602),
        ):
            with pytest.raises(RpcFailed) as failed:
                await client.call("session/load", sessionId=id, cwd=str(cwd), mcpServers=[])
            assert failed.value.code == code
        unused = await client.session(workspace)
        async with editor(*MODEL, env=lane.env) as other:  # for this process there is none
            with pytest.raises(RpcFailed, match="no stored session") as failed:
                await other.call(
                    "session/load", cwd=str(workspace), sessionId=unused, mcpServers=[]
                )
            assert "first prompt" in failed.value.message
        loaded = await client.call("session/load", cwd=str(workspace), **opening)
        assert loaded["modes"]["currentModeId"] == "ask"
        assert kinds(client)[0] == "user_message_chunk"
        assert client.updates[0]["content"] == {"type": "text", "text": "Write it"}
        assert client.text == "I write. Done."
        await client.prompt(session, "And now?")
        assert "Write it" in str(lane.requests[-1].body)
        await client.call("session/close", sessionId=session)
        with pytest.raises(RpcFailed) as failed:
            await client.prompt(session, "hi")
        assert failed.value.code == -32002
        before = len(client.updates)
        await client.call("session/resume", cwd=str(workspace), **opening)
        assert len(client.updates) == before


async def test_prompts_of_two_sessions_run_at_once_and_one_is_cancelled(
    model: ModelServer, workspace: Path
) -> None:
    def answer(request: Any) -> Turn:
        return hang("Once ") if "story" in str(request.texts) else Turn(text="quick")

    lane = model.lane("a", answer)
    async with editor(*MODEL, env=lane.env) as client:
        slow, quick = [await client.session(workspace) for _ in range(2)]
        _, story = client.start("session/prompt", sessionId=slow, prompt=blocks("a story"))
        await client.until(lambda: "Once" in client.text)
        with pytest.raises(RpcFailed, match="wait for its end") as failed:
            await client.prompt(slow, "another")
        assert failed.value.code == -32600
        assert (await client.prompt(quick, "hi"))["stopReason"] == "end_turn"
        client.notify("session/cancel", sessionId=slow)
        assert (await client.result(story))["stopReason"] == "cancelled"
        # By the id of the call, and by closing the session.
        id, story = client.start("session/prompt", sessionId=slow, prompt=blocks("a story"))
        client.notify("$/cancel_request", requestId=id)
        assert (await client.result(story))["stopReason"] == "cancelled"
        _, story = client.start("session/prompt", sessionId=slow, prompt=blocks("a story"))
        await client.call("session/close", sessionId=slow)
        assert (await client.result(story))["stopReason"] == "cancelled"


async def test_bad_input_gets_errors_and_the_server_goes_on(
    model: ModelServer, workspace: Path
) -> None:
    lane = model.lane("a", [Turn(text="fine", repeat="forever")])
    async with editor(*MODEL, env=lane.env) as client:
        session = await client.session(workspace)
        client.raw(b"not json\n[]\n\n" + b'{"id": 900, "method": "session/fly"}\n')
        client.raw(b'{"jsonrpc":"2.0","id":901,"result":{}}\n')
        await client.until(lambda: len(client.strays) == 3)
        codes = [each["error"]["code"] for each in client.strays]
        assert codes == [-32700, -32600, -32601]
        for content in (
            [],
            blocks("  "),
            [{"type": "image", "data": "?", "mimeType": "image/png"}],
        ):
            with pytest.raises(RpcFailed) as failed:
                await client.call("session/prompt", sessionId=session, prompt=content)
            assert failed.value.code == -32602
        with pytest.raises(RpcFailed, match="more than 8,388,608 bytes") as failed:
            await client.prompt(session, "x" * 50_000_000)
        assert failed.value.code == -32602
        assert (await client.prompt(session, "hi"))["stopReason"] == "end_turn"


async def test_images_links_and_files_of_the_client_reach_the_model(
    model: ModelServer, workspace: Path
) -> None:
    lane = model.lane("a", [Turn(text="seen", repeat="forever")])
    image = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 30).decode()
    async with editor(*MODEL, env=lane.env) as client:
        session = await client.session(workspace)
        await client.prompt(
            session,
            "Look at ",
            {"type": "resource_link", "uri": "file:///w/a.py", "name": "a.py"},
            {"type": "resource", "resource": {"uri": "file:///w/b.py", "text": "unsaved = 1"}},
            {"type": "image", "data": image, "mimeType": "image/png"},
        )
    sent = json.dumps(lane.requests[0].body)
    assert "Look at [a.py](file:///w/a.py)[b.py](file:///w/b.py)" in sent
    assert "unsaved = 1" in sent
    assert image in sent


async def test_a_question_of_the_agent_is_a_form_of_the_client(
    model: ModelServer, workspace: Path
) -> None:
    options: Json = [{"label": "red"}, {"label": "blue"}]
    asked = Call("ask_user", {"question": "Which color?", "options": options})

    def answer(request: Any) -> Turn:
        can_ask = "ask_user" in request.tools and not request.tool_results
        return Turn(calls=[asked]) if can_ask else Turn(text="Thanks.")

    lane = model.lane("a", answer)

    def reply(method: str, params: dict[str, Any]) -> Any:
        assert method == "elicitation/create"
        field = params["requestedSchema"]["properties"]["answer"]
        assert field["description"] == "Which color?"
        assert [each["const"] for each in field["oneOf"]] == ["red", "blue"]
        return {"action": "accept", "content": {"answer": "blue"}}

    async with editor(*MODEL, env=lane.env, answer=reply) as client:
        await client.initialize(elicitation={"form": {}})
        session = await client.session(workspace)
        await client.prompt(session, "Paint it")
        assert "blue" in str(lane.requests[-1].tool_results)
        # A client without forms: the agent has no tool for questions.
        await client.initialize()
        session = await client.session(workspace)
        await client.prompt(session, "Paint it")
        assert "ask_user" not in lane.requests[-1].tools


async def test_a_turn_takes_further_texts(model: ModelServer, workspace: Path) -> None:
    lane = model.lane("a", writes)
    steering: dict[str, Any] = {"outcome": None}

    async with editor(*MODEL, env=lane.env, answer=silent) as client:
        session = await client.session(workspace)
        idle = await client.call("_session/steering", sessionId=session, prompt=blocks("x"))
        assert idle == {"outcome": "promptRequired", "reason": "noRunningTurn"}
        _, turn = client.start("session/prompt", sessionId=session, prompt=blocks("Write it"))
        await client.until(lambda: client.requests)
        steering = await client.call(
            "_session/steering", sessionId=session, prompt=blocks("Use tabs")
        )
        client.write({"id": client.requests[0]["id"], "result": allow("", {})})
        await client.result(turn)
    assert steering == {"outcome": "injected"}
    assert "Use tabs" in str(lane.requests[-1].body)


async def test_when_the_client_goes_away_in_a_prompt_nothing_is_left_running(
    workspace: Path,
) -> None:
    pids_file = workspace / "pids.txt"
    async with editor("--agent", agent(), "--approve", "all", "--no-strict") as client:
        session = await client.session(workspace)
        client.start(
            "session/prompt",
            sessionId=session,
            prompt=blocks(f"sh sleep 300 & echo $! $PPID > {pids_file}\ntext working\nhang"),
        )
        await client.until(lambda: "working" in client.text)
    pids = [int(word) for word in pids_file.read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


async def test_an_agent_behind_corral_is_driven_through_it(workspace: Path) -> None:
    async with editor("--agent", agent("--loads"), answer=allow) as client:
        session = await client.session(workspace)
        result = await client.prompt(session, "text hello")
        assert (result["stopReason"], client.text) == ("end_turn", "hello")


async def test_logs_go_to_stderr(model: ModelServer, workspace: Path) -> None:
    async with editor(*MODEL, env={**model.env, "CORRAL_LOG": "debug"}) as client:
        await client.session(workspace)
    assert client.strays == []


async def test_a_call_that_is_cancelled_at_once_has_its_reply(workspace: Path) -> None:
    async with editor(*MODEL, env={}) as client:
        id, listed = client.start("session/list")
        client.notify("$/cancel_request", requestId=id)  # both are in one piece
        with pytest.raises(RpcFailed) as caught:
            await client.result(listed)
        assert caught.value.code == -32800
        assert (await client.call("session/list"))["sessions"] == []
