"""What each message of a client does, with the built-in agent and a scripted model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.builtin_agent import BuiltinAgent, wait_until
from support.mcp_messages import Connection, allowance, modern
from support.model_scripts import steps

from corral._protocol import jsonrpc
from corral._serving.allowance import PipelineRequest, RunRequest
from corral._serving.caller_runs import CallerRuns
from corral._serving.mcp import tools, wire
from corral._serving.mcp.server import McpService
from corral._serving.mcp.tools import CallerTools
from corral.testing import Call, Request, Turn, hang, say

pytest_plugins = ("support.builtin_agent_fixture",)

ASK = Call("ask_user", {"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]})
Script = Any


def saying_ok(_: Request) -> Turn:
    return say("ok")


def connect(runs: CallerRuns) -> Connection:
    return Connection(McpService(CallerTools(runs)))


async def test_a_run_that_ends_soon_returns_its_answer_and_its_id(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [say("It is fine.")])) as runs:
        client = connect(runs)
        result = await client.call("run", prompt="review")
        assert not result["isError"]
        assert result["content"][0]["text"].startswith("It is fine.")
        facts = result["structuredContent"]
        assert f"run {facts['run']} · corral · success" in result["content"][0]["text"]
        assert facts["outcome"]["status"] == "success"
        assert (await client.call("result", run=facts["run"]))["structuredContent"] == facts
        rows = (await client.call("list_agents"))["structuredContent"]
        assert [row["name"] for row in rows["agents"]] == ["corral"]
        assert rows["runs"][0]["state"] == "ended"


async def test_a_run_that_takes_longer_is_waited_for_with_progress(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "FIRST_WAIT", 0.05)
    monkeypatch.setattr(tools, "HEARTBEAT", 0.02)
    async with CallerRuns(allowance(ours, [hang("thinking")])) as runs:
        client = connect(runs)
        meta = {"progressToken": "p1"}
        result = await client.call("run", meta, prompt="review")
        run = result["structuredContent"]["run"]
        assert not result["isError"]
        assert f"Call `wait` with run={run}" in result["content"][0]["text"]
        progress = [note["params"] for note in client.notes]
        assert len(progress) >= 2
        assert {each["progressToken"] for each in progress} == {"p1"}
        counts = [each["progress"] for each in progress]
        assert counts == sorted(set(counts))
        assert (await client.call("wait", run=run, seconds=0))["structuredContent"]["state"] == (
            "running"
        )
        ended = await client.call("cancel", run=run)
        assert not ended["isError"]
        assert ended["structuredContent"]["outcome"]["status"] == "interrupted"
        assert (await client.call("wait", run=run))["isError"]


async def test_no_call_takes_as_long_as_clients_wait(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tools.FIRST_WAIT < tools.MAX_WAIT < 60
    monkeypatch.setattr(tools, "MAX_WAIT", 0.05)
    async with CallerRuns(allowance(ours, [hang()])) as runs:
        client = connect(runs)
        run = (await client.call("start", prompt="x"))["structuredContent"]["run"]
        facts = (await client.call("wait", run=run, seconds=9e9))["structuredContent"]
        assert facts["state"] == "running"


async def test_several_agents_work_at_once(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, saying_ok)) as runs:
        client = connect(runs)
        started = [await client.call("start", prompt=f"part {n}") for n in range(3)]
        ids = [each["structuredContent"]["run"] for each in started]
        ended = await asyncio.gather(*(client.call("wait", run=id) for id in ids))
        assert [each["content"][0]["text"][:2] for each in ended] == ["ok"] * 3


async def test_a_question_is_answered_with_a_tool(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, steps(ASK))) as runs:
        client = connect(runs)
        asked = await client.call("run", prompt="x")
        facts = asked["structuredContent"]
        assert facts["state"] == "waiting"
        assert "Which?" in asked["content"][0]["text"]
        assert "[A, B]" in asked["content"][0]["text"]
        wrong = await client.call("answer", run=facts["run"])
        assert wrong["isError"]
        done = await client.call("answer", run=facts["run"], text="B")
        assert done["structuredContent"]["outcome"]["questions"][0]["answer"] == "B"


async def test_a_long_answer_is_read_in_parts_and_in_a_file(ours: BuiltinAgent) -> None:
    long = "".join(f"Zeile {n}: Größe\n" for n in range(4000))
    async with CallerRuns(allowance(ours, [say(long)])) as runs:
        client = connect(runs)
        result = await client.call("run", prompt="x")
        run = result["structuredContent"]["run"]
        parts = [result["structuredContent"]["outcome"]["text"]]
        assert len(msgspec.json.encode(result)) < 4 * tools.LARGEST_TEXT
        while (offset := result["structuredContent"]["next_offset"]) is not None:
            result = await client.call("result", run=run, offset=offset)
            parts.append(result["structuredContent"]["outcome"]["text"])
        assert "".join(parts) == long
        file = Path(result["structuredContent"]["answer_file"])
        assert file.read_text() == long
        assert file.stat().st_mode & 0o777 == 0o600


async def test_what_is_refused_is_a_result_that_says_why(ours: BuiltinAgent) -> None:
    given = allowance(ours, [], sources={"policy": "--approve reads"})
    async with CallerRuns(given) as runs:
        client = connect(runs)
        for tool, arguments, reason in (
            ("run", {"prompt": "x", "policy": "all"}, "at most reads (set by the one who started"),
            ("run", {"prompt": "x", "env": {"A": "1"}}, "env is not an option of callers"),
            ("start", {"prompt": "x", "cwd": "/etc"}, "it must be inside"),
            ("start", {"prompt": "x", "agent": "sh -c evil"}, "only corral"),
            ("run", {}, "prompt"),
            ("wait", {"run": "20260101-000000-ffffff"}, "no run of this caller"),
            ("cancel", {"run": "x"}, "no run of this caller"),
            ("list_agents", {"x": 1}, "no field 'x'"),
        ):
            result = await client.call(tool, **arguments)
            assert result["isError"], tool
            assert reason in result["content"][0]["text"]
        assert ours.requests == []


async def test_the_tools_describe_what_is_permitted(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [])) as runs:
        client = connect(runs)
        listed = (await client.request("tools/list"))["result"]["tools"]
    by_name = {tool["name"]: tool for tool in listed}
    assert "run_pipeline" not in by_name
    fields = by_name["run"]["inputSchema"]["properties"]
    assert set(fields) == set(RunRequest.__struct_fields__)
    assert fields["agent"]["enum"] == ["corral"]
    assert fields["policy"]["enum"] == ["reads", "plan"]
    assert "It may do at most: reads. It takes at most 1m." in by_name["run"]["description"]
    for tool in listed:
        assert tool["inputSchema"]["additionalProperties"] is False


async def test_a_pipeline_is_a_tool(ours: BuiltinAgent) -> None:
    file = ours.workspace / "review.dot"
    file.write_text(
        'digraph { start [shape=Mdiamond]; done [shape=Msquare]; look [prompt="$goal"];'
        " start -> look -> done }"
    )
    given = allowance(ours, [say("fine")], pipelines={"review": str(file)})
    async with CallerRuns(given) as runs:
        client = connect(runs)
        listed = (await client.request("tools/list"))["result"]["tools"]
        schema = next(t["inputSchema"] for t in listed if t["name"] == "run_pipeline")
        assert set(schema["properties"]) == set(PipelineRequest.__struct_fields__)
        assert schema["properties"]["pipeline"]["enum"] == ["review"]
        result = await client.call("run_pipeline", pipeline="review", goal="the docs")
        assert result["content"][0]["text"].startswith("fine")
        assert (await client.call("run_pipeline", pipeline="other"))["isError"]


@pytest.mark.parametrize("version", [*wire.HANDSHAKE, "1999-01-01", None])
async def test_the_handshake_of_older_versions(ours: BuiltinAgent, version: Any) -> None:
    async with CallerRuns(allowance(ours, [])) as runs:
        client = connect(runs)
        reply = await client.request("initialize", protocolVersion=version, capabilities={})
        wanted = version if version in wire.HANDSHAKE else wire.HANDSHAKE[-1]
        assert reply["result"]["protocolVersion"] == wanted
        assert "_meta" not in reply["result"]
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert await client.send(note) is None
        assert (await client.request("ping"))["result"] == {}


async def test_the_newest_version_needs_no_handshake(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [say("ok")])) as runs:
        client = connect(runs)
        found = (await client.request("server/discover", modern()))["result"]
        assert found["supportedVersions"] == [wire.MODERN]
        assert wire.TASKS in found["capabilities"]["extensions"]
        result = await client.call("run", modern(), prompt="x")
        assert result["resultType"] == "complete"
        assert result["_meta"][f"{wire.META}serverInfo"]["name"] == "corral"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (None, jsonrpc.INVALID_REQUEST),
        ([], jsonrpc.INVALID_REQUEST),
        ({}, jsonrpc.INVALID_REQUEST),
        ({"jsonrpc": "1.0", "id": 1, "method": "ping"}, jsonrpc.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": 1}, jsonrpc.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, jsonrpc.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, jsonrpc.INVALID_REQUEST),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, jsonrpc.INVALID_PARAMS),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": 1}},
         jsonrpc.INVALID_PARAMS),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, jsonrpc.METHOD_NOT_FOUND),
        ({"jsonrpc": "2.0", "id": 1, "method": "tasks/get"}, jsonrpc.METHOD_NOT_FOUND),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call"}, jsonrpc.INVALID_PARAMS),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sh"}},
         jsonrpc.INVALID_PARAMS),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
          "params": {"name": "run", "arguments": "x"}}, jsonrpc.INVALID_PARAMS),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list",
          "params": {"_meta": {f"{wire.META}protocolVersion": "2099-01-01",
                               f"{wire.META}clientCapabilities": {}}}}, wire.UNSUPPORTED_VERSION),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/list",
          "params": {"_meta": {f"{wire.META}protocolVersion": wire.MODERN}}},
         jsonrpc.INVALID_PARAMS),
        ({"jsonrpc": "2.0", "id": 1, "method": "tasks/get",
          "params": {"taskId": "x", "_meta": modern()}}, wire.MISSING_CAPABILITY),
        ({"jsonrpc": "2.0", "id": 1, "method": "tasks/get",
          "params": {"taskId": "x", "_meta": modern(tasks=True)}}, jsonrpc.INVALID_PARAMS),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": modern()}},
         jsonrpc.METHOD_NOT_FOUND),
    ],
)  # fmt: skip
async def test_what_a_client_does_wrong_has_the_code_of_the_protocol(
    ours: BuiltinAgent, message: Any, code: int
) -> None:
    async with CallerRuns(allowance(ours, [])) as runs:
        reply = await connect(runs).send(message)
    assert reply["error"]["code"] == code
    assert reply["id"] in (1, None)


async def test_replies_and_unknown_notifications_are_ignored(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [])) as runs:
        client = connect(runs)
        assert await client.send({"jsonrpc": "2.0", "id": 7, "result": {}}) is None
        assert await client.send({"jsonrpc": "2.0", "method": "notifications/odd"}) is None
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
        assert await client.send(cancel) is None


async def test_a_cancelled_call_ends_its_run(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [hang()])) as runs:
        client = connect(runs)
        call = asyncio.create_task(client.call("run", prompt="x"))
        await wait_until(lambda: bool(runs.list()))
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        await client.send(note)
        with pytest.raises(asyncio.CancelledError):
            await call
        run = runs.list()[0].run
        outcome = (await runs.wait(run, 30)).outcome
        assert outcome is not None
        assert outcome.status == "interrupted"


# Tasks.


async def test_a_run_that_takes_longer_is_a_task_for_clients_that_have_them(
    ours: BuiltinAgent,
) -> None:
    async with CallerRuns(allowance(ours, [hang("so far")])) as runs:
        client = connect(runs)
        meta = modern(tasks=True)
        task = await client.call("run", meta, prompt="x")
        assert (task["resultType"], task["status"]) == ("task", "working")
        id = task["taskId"]
        found = (await client.request("tasks/get", meta, taskId=id))["result"]
        assert (found["resultType"], found["status"]) == ("complete", "working")
        reply = await client.request("tasks/cancel", meta, taskId=id)
        assert set(reply["result"]) == {"resultType", "_meta"}
        await runs.wait(id, 30)
        found = (await client.request("tasks/get", meta, taskId=id))["result"]
        assert found["status"] == "cancelled"


async def test_a_run_that_ends_at_once_is_no_task(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, [say("ok")])) as runs:
        client = connect(runs)
        meta = modern(tasks=True)
        result = await client.call("run", meta, prompt="x")
        assert result["resultType"] == "complete"
        assert result["content"][0]["text"].startswith("ok")
        refused = await client.call("run", meta, prompt="x", policy="all")
        assert refused["isError"]
        done = await client.request("tasks/get", meta, taskId=result["structuredContent"]["run"])
        assert done["result"]["status"] == "completed"
        assert done["result"]["result"]["content"] == result["content"]


async def test_a_task_asks_the_person_in_front_of_the_client(ours: BuiltinAgent) -> None:
    async with CallerRuns(allowance(ours, steps(ASK))) as runs:
        client = connect(runs)
        meta = modern(tasks=True, elicitation={})
        task = await client.call("run", meta, prompt="x")
        id = task["taskId"]
        await wait_until(lambda: bool(runs.find(id).view.pending))
        without = (await client.request("tasks/get", modern(tasks=True), taskId=id))["result"]
        assert without["status"] == "working"
        found = (await client.request("tasks/get", meta, taskId=id))["result"]
        assert found["status"] == "input_required"
        ((key, asked),) = found["inputRequests"].items()
        assert asked["method"] == "elicitation/create"
        ((field, schema),) = asked["params"]["requestedSchema"]["properties"].items()
        assert schema["type"] == "string"
        answer = {"action": "accept", "content": {field: "B"}}
        wrong = {key: {"action": "maybe"}}
        reply = await client.request("tasks/update", meta, taskId=id, inputResponses=wrong)
        assert reply["error"]["code"] == jsonrpc.INVALID_PARAMS
        responses = {key: answer, "unknown": answer}
        await client.request("tasks/update", meta, taskId=id, inputResponses=responses)
        await runs.wait(id, 30)
        done = (await client.request("tasks/get", meta, taskId=id))["result"]
        facts = done["result"]["structuredContent"]
        assert facts["outcome"]["questions"][0]["answer"] == "B"


async def test_a_failure_inside_has_a_reply(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OverflowError("a fault")

    async with CallerRuns(allowance(ours, [say("ok")])) as runs:
        client = connect(runs)
        result = await client.call("start", prompt="x", timeout="9" * 400)
        assert "is too long" in result["content"][0]["text"]
        monkeypatch.setattr(wire, "discovered", fail)
        reply = await client.request("server/discover", modern())
        assert reply["error"]["code"] == jsonrpc.INTERNAL_ERROR
        assert "a fault" in caplog.text
