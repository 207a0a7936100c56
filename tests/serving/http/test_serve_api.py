"""The HTTP API for services, with the built-in agent and a scripted model."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from support.builtin_agent import MODELS, BuiltinAgent, model_env
from support.serve_api import ServeClient, clients_file, served

from corral._core.spending import BudgetLimits
from corral._serving import caller_runs
from corral._serving.allowance import MAX_PROMPT, Allowance
from corral._serving.http.application import openapi
from corral._system import paths
from corral._system.http import asgi_server
from corral.events import from_json
from corral.policy import Policy
from corral.testing import Request, Turn, call, hang, say

pytest_plugins = ("support.builtin_agent_fixture",)

ASK = call("ask_user", question="Which database?", options=[{"label": "A"}, {"label": "B"}])


def allowance(ours: BuiltinAgent, script: Any, **fields: Any) -> Allowance:
    given: dict[str, Any] = {
        "agents": ("corral",),
        "models": (MODELS["gemini"],),
        "folders": (str(ours.workspace),),
        "timeout": 60.0,
        "concurrency": 300,
        "label": "corral serve",
        "options": {"env": model_env(ours.add_lane(script)), "retries": 0},
        **fields,
    }
    return Allowance(**given)


@pytest.fixture
def two_clients(tmp_path: Path) -> Path:
    return clients_file(tmp_path / "clients.toml")


async def test_a_run_is_started_waited_for_and_streamed(ours: BuiltinAgent) -> None:
    async with served(allowance(ours, [say("one"), say("two")])) as server:
        ann = server.client("ann")
        first = await ann.start("hello", wait=30)
        assert (first["state"], first["outcome"]["text"]) == ("ended", "one")
        second = await ann.start("again", wait=30, session=first["run"])
        assert (second["run"], second["outcome"]["text"]) == (first["run"], "two")
        status, listed = await ann.get("/v1/runs")
        assert (status, [each["run"] for each in listed["runs"]]) == (200, [first["run"]])
        assert await ann.get(f"/v1/runs/{first['run']}/diff") == (200, "")


async def test_a_stream_has_every_stored_event_and_goes_on_after_a_lost_connection(
    ours: BuiltinAgent,
) -> None:
    async with served(allowance(ours, [say("a", "b", "c")])) as server:
        ann = server.client("ann")
        run = (await ann.start("hello"))["run"]
        sent = await ann.stream(run)
        assert sent[-1].name == "end"
        assert sent[-1].data["outcome"]["text"] == "abc"
        stored = (paths.sessions() / run / "events.ndjson").read_text().splitlines()
        assert [each.data for each in sent[:-1]] == [json.loads(line) for line in stored]
        assert all(each.name == each.data["type"] for each in sent[:-1])
        assert from_json(stored[-1]).type == "done"
        begin = await ann.stream(run, most=2)
        assert begin + await ann.stream(run, after=begin[-1].id) == sent


async def test_a_client_sees_its_own_runs_only(ours: BuiltinAgent, two_clients: Path) -> None:
    script = [say("mine"), hang("waits")]
    async with served(allowance(ours, script), two_clients) as server:
        ann, bob = server.client("ann"), server.client("bob")
        ended = (await ann.start("hello", wait=30))["run"]
        running = (await ann.start("hello"))["run"]
        assert (await bob.get("/v1/runs"))[1] == {"runs": []}
        for name in (ended, running, running[:-3], "last", "..", "%2e%2e%2fx", "a%00b", ""):
            for method, rest in (
                ("GET", ""),
                ("GET", "/events"),
                ("GET", "/diff"),
                ("POST", "/answer"),
                ("POST", "/cancel"),
            ):
                status, _ = await bob.call(method, f"/v1/runs/{name}{rest}", {} if rest else None)
                assert status in (404, 405, 200 if (name, rest) == ("", "") else 404), (name, rest)
            if name:
                body = {"prompt": "what was said?", "session": name}
                assert (await bob.post("/v1/runs", body))[0] == 404
        assert (await ann.get("/v1/runs/last"))[0] == 404
        assert (await ann.get(f"/v1/runs/{running}"))[1]["state"] == "running"
        status, view = await ann.post(f"/v1/runs/{running}/cancel?wait=30")
        assert (status, view["outcome"]["status"]) == (200, "interrupted")


async def test_a_question_is_answered_by_its_own_client_once(
    ours: BuiltinAgent, two_clients: Path
) -> None:
    script = [Turn(calls=[ASK.calls[0]]), say("thanks")]
    async with served(allowance(ours, script), two_clients) as server:
        ann, bob = server.client("ann"), server.client("bob")
        view = await ann.start("hello", wait=30)
        assert (view["state"], view["pending"][0]["kind"]) == ("waiting", "question")
        path = f"/v1/runs/{view['run']}"
        assert (await bob.post(f"{path}/answer", {"text": "A"}))[0] == 404
        assert (await ann.post(f"{path}/answer", {"text": "A"}))[0] == 200
        status, error = await ann.post(f"{path}/answer", {"text": "B"})
        assert (status, error["error"]["code"]) == (400, "config")
        assert (await ann.get(f"{path}?wait=30"))[1]["outcome"]["text"] == "thanks"


async def test_a_repeated_request_with_a_key_gets_the_same_run(ours: BuiltinAgent) -> None:
    async with served(allowance(ours, [say("one"), say("two")])) as server:
        ann = server.client("ann")
        key, body = {"Idempotency-Key": "k1"}, {"prompt": "hello"}
        answers = await asyncio.gather(*(ann.post("/v1/runs", body, **key) for _ in range(5)))
        assert len({view["run"] for _, view in answers}) == 1
        status, error = await ann.post("/v1/runs", {"prompt": "other"}, **key)
        assert (status, error["error"]["code"]) == (409, "conflict")
        other = await ann.start("hello", wait=30)
        assert other["run"] != answers[0][1]["run"]
        assert len(ours.requests) == 2
        status, _ = await ann.post("/v1/runs", body, **{"Idempotency-Key": "k" * 201})
        assert status == 400


@pytest.mark.deep
async def test_a_key_keeps_the_id_of_a_run_and_not_the_run(
    ours: BuiltinAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_runs, "KEPT", 0)
    async with served(allowance(ours, [say("one"), say("two")])) as server:
        ann, key = server.client("ann"), {"Idempotency-Key": "k1"}
        _, first = await ann.post("/v1/runs?wait=30", {"prompt": "hello"}, **key)
        (clients,) = server.service._of_clients.values()  # pyright: ignore[reportPrivateUsage]
        run = weakref.ref(clients.runs.find(first["run"]))
        await ann.start("other", wait=30)  # the first one is forgotten
        while run() is not None:
            gc.collect()
            await asyncio.sleep(0.01)
        _, repeated = await ann.post("/v1/runs", {"prompt": "hello"}, **key)
        assert (repeated["run"], repeated["outcome"]["text"]) == (first["run"], "one")


async def test_what_there_is_not_is_refused_as_json(ours: BuiltinAgent) -> None:
    async with served(allowance(ours, [])) as server:
        for method, path, status, allowed in (
            ("GET", "/nothing", 404, None),
            ("POST", "/v1/nothing", 404, None),
            ("DELETE", "/v1/runs", 405, "GET, HEAD, POST"),
            ("GET", "/v1/pipelines", 405, "POST"),
            ("POST", "/v1/runs/x", 405, "GET, HEAD"),
            ("POST", "/metrics", 405, "GET, HEAD"),
        ):
            async with server.http.request(
                method, server.base + path, headers=server.client("ann").headers
            ) as response:
                error = (await response.json())["error"]
                about = (response.status, error["code"], response.headers.get("Allow"))
            assert about == (status, "not_found" if status == 404 else "method", allowed), path


async def test_numbers_and_prompts_outside_the_document_are_refused(ours: BuiltinAgent) -> None:
    async with served(allowance(ours, [])) as server:
        ann = server.client("ann")
        for wait in ("-1", "last", "x", "1.5"):
            status, error = await ann.post(f"/v1/runs?wait={wait}", {"prompt": "x"})
            assert (status, error["error"]["message"]) == (400, "wait must be a whole number")
        for prompt in ("", " \n"):
            status, error = await ann.post("/v1/runs", {"prompt": prompt})
            assert (status, error["error"]["message"]) == (400, "the prompt is empty")
    document: Any = openapi()
    assert document["components"]["schemas"]["RunRequest"]["properties"]["prompt"] == {
        "type": "string",
        "pattern": r"\S",
    }
    (wait_schema,) = (
        each["schema"]
        for each in document["paths"]["/v1/runs"]["post"]["parameters"]
        if each["name"] == "wait"
    )
    assert wait_schema == {"type": "integer", "minimum": 0}


async def test_the_document_describes_what_a_stream_sends(ours: BuiltinAgent) -> None:
    document: Any = openapi()
    content = document["paths"]["/v1/runs/{run}/events"]["get"]["responses"]["200"]["content"]
    schema = content["text/event-stream"]["schema"]
    assert schema["type"] == "string"
    data = {**schema["x-event-data"], "components": document["components"]}
    async with served(allowance(ours, [say("hi")])) as server:
        ann = server.client("ann")
        for sent in await ann.stream((await ann.start("hello", wait=30))["run"]):
            jsonschema.validate(sent.data, data)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({}, 400, "prompt"),
        ([], 400, "request"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": "x", "policy": "all"}, 403, "corral serve"),
        ({"prompt": "x", "cwd": "/"}, 403, "folder"),
        ({"prompt": "x", "agent": "gemini"}, 403, "agent"),
        ({"prompt": "x", "agent": "sh -c 'touch x'"}, 403, "agent"),
        ({"prompt": "x", "timeout": "2h"}, 403, "timeout"),
        ({"prompt": "x", "env": {"A": "b"}}, 403, "env"),
        ({"prompt": "x", "program": "/bin/sh"}, 403, "program"),
        ({"prompt": "x", "promt": "x"}, 400, "promt"),
        ({"prompt": "x", "output_schema": {"type": "nothing"}}, 400, "schema"),
    ],
    ids=lambda value: None if isinstance(value, dict | list) else str(value),
)
async def test_what_is_wrong_or_not_permitted_starts_nothing(
    body: object, status: int, text: str, ours: BuiltinAgent
) -> None:
    given = allowance(ours, [say("never")], set_by="the one who started corral serve")
    async with served(given) as server:
        answer = await server.client("ann").post("/v1/runs", body)
        assert answer[0] == status, answer
        assert text in answer[1]["error"]["message"]
        assert ours.requests == []


async def test_an_answer_of_a_schema_is_a_value(ours: BuiltinAgent) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with served(allowance(ours, [say("none"), say('{"n": 3}')])) as server:
        view = await server.client("ann").start("count", wait=30, output_schema=schema)
        assert view["outcome"]["output"] == {"n": 3}
        sent = await server.client("ann").stream(view["run"])
        assert [each.name for each in sent].count("done") == 2


async def test_a_token_that_is_missing_wrong_or_expired_is_refused(
    ours: BuiltinAgent, tmp_path: Path
) -> None:
    file = clients_file(tmp_path / "clients.toml", ann="expires = 2020-01-01")
    async with served(allowance(ours, []), file) as server:
        for token in ("", "wrong", "ann", "bob x", "é"):
            status, error = await server.client(token).get("/v1/runs")
            assert (status, error["error"]["code"]) == (401, "token")
        assert (await server.client("bob").get("/v1/runs"))[0] == 200
        async with server.http.get(f"{server.base}/v1/runs") as response:
            assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_a_revoked_client_is_refused_and_its_runs_and_streams_end(
    ours: BuiltinAgent, two_clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral._serving.http.server.LOOK", 0.05)
    async with served(allowance(ours, [hang("x"), say("new")]), two_clients) as server:
        ann = server.client("ann")
        run = (await ann.start("hello"))["run"]
        streaming = asyncio.create_task(ann.stream(run))
        while not server.service.counts["streams", ""]:
            await asyncio.sleep(0.01)
        two_clients.write_text("not toml [")  # the old clients stay
        await asyncio.sleep(0.3)
        clients_file(two_clients, ann="timeout = inf")
        await asyncio.sleep(0.3)
        assert (await ann.get("/v1/runs"))[0] == 200
        clients_file(two_clients, ann="revoked = true")
        assert all(each.name != "end" for each in await streaming)
        assert (await ann.get("/v1/runs"))[0] == 401
        while server.service.running:
            await asyncio.sleep(0.01)
        assert (await server.client("bob").start("hello", wait=30))["outcome"]["text"] == "new"


async def test_a_start_that_failed_is_tried_again_with_the_same_key(ours: BuiltinAgent) -> None:
    async with served(allowance(ours, [hang("x"), say("two")], concurrency=1)) as server:
        ann = server.client("ann")
        run = (await ann.start("hello"))["run"]
        body, key = {"prompt": "again"}, {"Idempotency-Key": "k1"}
        assert (await ann.post("/v1/runs", body, **key))[0] == 429
        await ann.post(f"/v1/runs/{run}/cancel?wait=30")
        status, view = await ann.post("/v1/runs?wait=30", body, **key)
        assert (status, view["outcome"]["text"]) == (200, "two")


async def test_limits_of_clients_are_within_those_of_the_server(
    ours: BuiltinAgent, tmp_path: Path
) -> None:
    file = clients_file(tmp_path / "clients.toml", ann='policy = "reads"\nconcurrency = 1')
    given = allowance(ours, [hang("x")], policy=Policy.edits(), limits=BudgetLimits(max_calls=2))
    async with served(given, file) as server:
        ann, bob = server.client("ann"), server.client("bob")
        status, error = await ann.post("/v1/runs", {"prompt": "x", "policy": "edits"})
        assert (status, "client ann" in error["error"]["message"]) == (403, True)
        run = (await ann.start("hello"))["run"]
        status, error = await ann.post("/v1/runs", {"prompt": "x"})
        assert (status, "at once" in error["error"]["message"]) == (429, True)
        assert (await bob.post("/v1/runs", {"prompt": "x", "max_calls": 3}))[0] == 403
        await ann.post(f"/v1/runs/{run}/cancel?wait=30")


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(ours: BuiltinAgent) -> None:
    async with served(allowance(ours, [say("read")])) as server:
        host, port = server.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            "POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: {server.client('ann').headers['Authorization']}\r\n"
            f"Content-Length: {50 * 1024 * 1024}\r\n\r\n"
        )
        writer.write(head.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()
        status, _ = await server.client("ann").post("/v1/runs", {"prompt": "x" * 50_000_000})
        assert status == 413
        status, error = await server.client("ann").post(
            "/v1/runs", {"prompt": "x" * (MAX_PROMPT + 1)}
        )
        assert (status, error["error"]["code"]) == (400, "prompt")


async def test_a_client_that_leaves_is_no_error_and_its_run_goes_on(
    ours: BuiltinAgent, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(allowance(ours, [hang("x")])) as server:
        ann = server.client("ann")
        run = (await ann.start("hello"))["run"]
        await ann.stream(run, most=1)
        host, port = server.base.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n{_header(ann)}\r\n\r\n"
        writer.write(f"{head}{{".encode())
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.close()
        while not server.service.counts["responses", "400"]:
            await asyncio.sleep(0.01)
        while server.service.counts["streams", ""]:
            await asyncio.sleep(0.01)
        assert caplog.text == ""
        assert (await ann.get(f"/v1/runs/{run}"))[1]["state"] == "running"


def _header(client: ServeClient) -> str:
    return f"Authorization: {client.headers['Authorization']}"


async def test_a_client_leaves_requests_to_the_others(
    ours: BuiltinAgent, two_clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ann waits and follows as often as the server permits: Bob is served."""
    monkeypatch.setattr(asgi_server, "MOST_CONNECTIONS", 16)
    async with served(allowance(ours, [hang("waits")]), two_clients) as server:
        ann, bob = server.client("ann"), server.client("bob")
        path = f"/v1/runs/{(await ann.start('hello'))['run']}"
        calls = [f"{path}?wait=300", f"{path}/events"] * 8
        waiting = [asyncio.create_task(ann.get(each)) for each in calls]
        try:
            while sum(each.done() for each in waiting) < 12:
                await asyncio.sleep(0.01)
            for each in filter(asyncio.Task.done, waiting):
                status, error = each.result()
                assert (status, error["error"]["code"]) == (429, "too_many_requests")
            assert (await ann.get(path))[0] == 429
            assert await bob.get("/v1/runs") == (200, {"runs": []})
        finally:
            for each in waiting:
                each.cancel()
        while (await ann.get(path))[0] == 429:
            await asyncio.sleep(0.01)


async def test_draining_is_not_ready_starts_nothing_and_serves_the_rest(
    ours: BuiltinAgent,
) -> None:
    async with served(allowance(ours, [hang("x")])) as server:
        ann = server.client("ann")
        assert (await ann.get("/ready"))[0] == 200
        run = (await ann.start("hello"))["run"]
        streaming = asyncio.create_task(ann.stream(run))
        draining = asyncio.create_task(server.service.drain(0.5))
        await asyncio.sleep(0.1)
        assert (await ann.get("/ready"))[0] == 503
        assert (await ann.get("/health"))[0] == 200
        status, error = await ann.post("/v1/runs", {"prompt": "x"})
        assert (status, error["error"]["code"]) == (503, "unavailable")
        assert (await ann.get(f"/v1/runs/{run}"))[1]["state"] == "running"
        await draining
        assert (await streaming)[-1].data["outcome"]["status"] == "interrupted"


async def test_metrics_name_no_client_and_no_run(ours: BuiltinAgent, two_clients: Path) -> None:
    async with served(allowance(ours, [say("one")]), two_clients) as server:
        view = await server.client("ann").start("secret prompt", wait=30)
        _, text = await server.client("nobody").get("/metrics")
        assert 'corral_runs_ended_total{status="success"} 1\n' in text
        assert "corral_runs_running 0\n" in text
        assert not {"ann", "secret", view["run"]} & set(text.replace('"', " ").split())


async def test_twenty_clients_stream_at_once_without_loss(ours: BuiltinAgent) -> None:
    await stream_at_once(ours, 20)


@pytest.mark.deep
@pytest.mark.timeout(600)
async def test_two_hundred_clients_stream_at_once_without_loss(ours: BuiltinAgent) -> None:
    await stream_at_once(ours, 200)


async def stream_at_once(ours: BuiltinAgent, count: int) -> None:
    """Each client starts a run and follows it while all others are followed."""
    pieces = [f"piece{n} " for n in range(20)]

    def answer(_: Request) -> Turn:
        return say(*pieces)

    async with served(allowance(ours, answer)) as server:
        ann = server.client("ann")

        async def one(number: int) -> None:
            run = (await ann.start(f"prompt {number}"))["run"]
            sent = await ann.stream(run)
            stored = (paths.sessions() / run / "events.ndjson").read_text().splitlines()
            assert [each.data for each in sent[:-1]] == [json.loads(line) for line in stored]
            assert sent[-1].data["outcome"]["text"] == "".join(pieces)
            text = "".join(each.data["delta"] for each in sent if each.name == "text")
            assert text == "".join(pieces)

        async with asyncio.TaskGroup() as clients:
            for number in range(count):
                clients.create_task(one(number))
        assert server.service.counts["ended", "success"] == count
