"""``corral view`` as a real process, asked by a real HTTP client."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from support.view_server import WAIT, Transcript, ViewServer, running_view, tool_call

from corral import events
from corral._view.auth import HEADERS, ServerAccess
from corral._view.server import ENDPOINTS

pytestmark = pytest.mark.whole_program
SESSION = "20260101-000000-aaaaaa"


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    home = tmp_path_factory.mktemp("corral-home")
    log = Transcript(home, SESSION)
    log.write(
        [
            events.Thinking("let me think"),
            events.Text("Hello <script>alert(1)</script> *world*"),
            *tool_call(1),
            events.PermissionRequest("p1", title="rm -rf /"),
            events.PermissionDecision("p1", "deny", "policy", rule="no deletes"),
            events.Plan((events.PlanEntry("first", "done"), events.PlanEntry("second"))),
            events.FileChange("/work/project/a.py", "modified", lines_added=1, lines_removed=1),
            events.Error("warned", "a warning", recoverable=True),
        ],
        prompt="Find the unicorn",
    )
    (log.folder / "diffs").mkdir()
    (log.folder / "diffs" / "1.patch").write_text("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+b\n")
    other = Transcript(home, "20260101-000001-bbbbbb")
    other.write([events.Text("nothing")], prompt="Another task")
    with running_view(home) as server:
        yield server


class Response:
    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


async def ask(view: ViewServer, path: str, method: str = "GET", **given: Any) -> Response:
    """A request with nothing but what is given."""
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, view.base + path, allow_redirects=False, **given) as response,
    ):
        return Response(response.status, response.headers, await response.read())


async def test_the_token_is_exchanged_for_a_cookie(view: ViewServer) -> None:
    first = await ask(view, f"/?token={view.token}&x=1")
    assert (first.status, first.headers["Location"]) == (303, "/?x=1")
    cookie = first.headers["Set-Cookie"]
    assert cookie.startswith(f"corral_view_{view.port}=")
    assert view.token not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {*cookie.split("; ")}
    sent = {"Cookie": cookie.partition(";")[0]}
    assert (await ask(view, "/api/runs", headers=sent)).status == 200
    started_elsewhere = {"Sec-Fetch-Site": "cross-site"}
    page = await ask(view, f"/?token={view.token}", headers=started_elsewhere)
    assert page.status == 200
    assert b'http-equiv="refresh"' in page.body
    assert view.token.encode() not in page.body


async def test_without_the_right_token_there_is_nothing(view: ViewServer) -> None:
    wrong = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {view.token}"},
        {"Cookie": f"corral_view_{view.port}=wrong"},
        {"Cookie": f"corral_view_{view.port}={view.token}"},
        {"Cookie": "corral_view_1=; ="},
    ]
    for headers in wrong:
        found = await ask(view, "/api/runs", headers=headers)
        assert found.status == 401, headers
        assert b"unicorn" not in found.body
    for path in ("/", "/app.js", "/?token=wrong", "/../pyproject.toml"):
        assert (await ask(view, path)).status == 401
    assert (await ask(view, f"/api/runs?token={view.token}")).status == 401


async def test_another_host_name_is_refused(view: ViewServer) -> None:
    for host in ("evil.example", f"evil.example:{view.port}", f"127.0.0.1:{view.port + 1}", ""):
        found = await ask(view, "/api/runs", headers={**view.headers, "Host": host})
        assert found.status in (400, 403), host
    for host in ("localhost", "127.0.0.1", "[::1]"):
        headers = {**view.headers, "Host": f"{host}:{view.port}"}
        assert (await ask(view, "/api/runs", headers=headers)).status == 200


def test_a_server_for_all_networks_accepts_addresses_but_no_other_name() -> None:
    access = ServerAccess.create(80, "0.0.0.0", ["box"])
    assert access.is_own_host("192.168.1.5:80")
    assert access.is_own_host("BOX:80")
    assert not access.is_own_host("evil.example:80")
    assert not ServerAccess.create(80).is_own_host("192.168.1.5:80")


async def test_requests_of_other_sites_are_refused(view: ViewServer) -> None:
    path = f"/api/batches/{SESSION}/cancel"
    own = f"http://127.0.0.1:{view.port}"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{view.port + 1}"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        found = await ask(view, path, "POST", json={}, headers={**view.headers, **headers})
        assert found.status == 403, headers
    found = await ask(view, path, "POST", data="{}", headers={**view.headers, "Origin": own})
    assert found.status == 415
    fine = {**view.headers, "Origin": own, "Sec-Fetch-Site": "same-origin"}
    found = await ask(view, path, "POST", json={}, headers=fine)
    assert found.status == 404  # it was let in, and there is no such batch
    reading = {**view.headers, "Sec-Fetch-Site": "cross-site"}
    assert (await ask(view, "/api/runs", headers=reading)).status == 403


async def test_every_response_has_the_headers(view: ViewServer) -> None:
    for path in ("/api/runs", "/api/nothing", "/"):
        found = await ask(view, path, headers=view.headers)
        assert HEADERS.items() <= dict(found.headers).items()
        assert "Server" not in found.headers
    assert (await ask(view, "/api/runs", headers=view.headers)).headers["Cache-Control"] == (
        "no-store"
    )
    policy = dict(part.split(None, 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert {name: policy[name] for name in ("default-src", "base-uri", "frame-ancestors")} == {
        **{"default-src": "'none'", "base-uri": "'none'", "frame-ancestors": "'none'"}
    }
    assert (policy["script-src"], policy["style-src"], policy["connect-src"]) == ("'self'",) * 3
    assert policy["require-trusted-types-for"] == "'script'"


async def test_runs_are_listed_filtered_searched_and_paged(view: ViewServer) -> None:
    listed = (await view.get("/api/runs"))["runs"]
    assert {run["id"] for run in listed} == {SESSION, "20260101-000001-bbbbbb"}
    (found,) = (await view.get("/api/runs", q="unicorn"))["runs"]
    assert (found["id"], found["state"], found["cost_usd"]) == (SESSION, "success", 0.5)
    assert "unicorn" in found["snippet"]
    assert (await view.get("/api/runs", agent="codex"))["runs"] == []
    assert (await view.get("/api/runs", state="failed"))["runs"] == []
    first = await view.get("/api/runs", limit=1)
    second = await view.get("/api/runs", limit=1, cursor=first["next"])
    assert {first["runs"][0]["id"], second["runs"][0]["id"]} == {run["id"] for run in listed}
    assert second["next"] is None


async def test_a_session_with_its_conversation(view: ViewServer) -> None:
    detail = await view.get(f"/api/sessions/{SESSION}")
    (turn,) = detail["turns"]
    assert (turn["prompt"], turn["status"], turn["has_diff"]) == (
        "Find the unicorn",
        "success",
        True,
    )
    assert detail["facts"]["version"] == "1.0"
    assert detail["facts"]["policy_report"] == "write: deny (native)"
    assert detail["facts"]["native_resume_command"] == (
        f"cd /work/project && env GEMINI_CLI_HOME={view.home}/sessions/{SESSION}/home gemini"
        " --resume theirs"
    )
    assert [step["content"] for step in detail["plan"]] == ["first", "second"]
    page = await view.get(f"/api/sessions/{SESSION}/items", page=0)
    kinds = [item["kind"] for item in page["items"]]
    assert kinds == [
        *("init", "prompt", "thinking", "text", "tool", "permission", "plan", "file", "error"),
        "done",
    ]
    text, tool, permission = page["items"][3:6]
    assert "<script" not in text["html"]
    assert "<em>world</em>" in text["html"]
    assert tool["tool"]["target"] == "ls"
    assert permission["permission"]["rule"] == "no deletes"
    body = await view.get(f"/api/sessions/{SESSION}/items/{tool['key']}")
    assert body["output"] == "done"
    diff = await view.get(f"/api/sessions/{SESSION}/diff/1")
    assert diff["files"][0]["hunks"][0]["rows"][0]["kind"] == "changed"
    raw = await view.get(f"/api/sessions/{SESSION}/events", q="permission_")
    assert len(raw["events"]) == 2


async def test_the_bundle_of_a_session_is_a_zip_file(view: ViewServer) -> None:
    found = await ask(view, f"/api/sessions/{SESSION}/bundle", headers=view.headers)
    assert found.headers["Content-Disposition"].endswith(f'"corral-{SESSION}.zip"')
    with zipfile.ZipFile(io.BytesIO(found.body)) as bundle:
        assert any(name.endswith("events.ndjson") for name in bundle.namelist())


async def test_what_does_not_exist_is_not_found(view: ViewServer) -> None:
    for path in (
        "/api/sessions/nothing",
        "/api/sessions/..%2f..%2fetc",
        f"/api/sessions/{SESSION}/diff/9",
        "/api/pipelines/nothing",
        "/api/batches/nothing",
        "/api/pipelines/nothing?db=/etc/passwd",
        "/api/nothing",
    ):
        found = await ask(view, path, headers=view.headers)
        assert found.status == 404, path
        assert set(msgspec.json.decode(found.body)["error"]) == {"code", "message", "hint"}
    assert (await ask(view, "/%00", headers=view.headers)).status == 200  # as any other place
    for path in (f"/api/sessions/{SESSION}/items?page=x", "/api/usage?by=x", "/api/runs?cursor=x"):
        assert (await ask(view, path, headers=view.headers)).status == 400, path


async def test_the_openapi_document_has_every_operation_and_describes_the_responses(
    view: ViewServer,
) -> None:
    document = await view.get("/api/openapi.json")
    listed = {(method.upper(), path) for path, each in document["paths"].items() for method in each}
    assert listed == {(each.method, each.path) for each in ENDPOINTS}
    for each in ENDPOINTS:
        path = each.path.replace("{id}", SESSION).replace("{turn}", "1").replace("{key}", "0")
        if each.method == "GET" and each.response is not None and "/pipelines/" not in path:
            found = await ask(view, path, headers=view.headers)
            content = document["paths"][each.path]["get"]["responses"]
            status = "200" if found.status == 200 else "default"
            schema = content[status]["content"]["application/json"]["schema"]
            full = {**schema, "components": document["components"]}
            jsonschema.validate(msgspec.json.decode(found.body), full)


async def messages(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str, Any]]:
    """(name, id, data) of each event."""
    name = cursor = ""
    async for line in response.content:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name, cursor = value, ""
        elif key == "id":
            cursor = value
        elif key == "data":
            yield name, cursor, msgspec.json.decode(value)


async def test_a_log_that_is_written_streams_in_and_a_reconnect_misses_nothing(
    view: ViewServer,
) -> None:
    log = Transcript(view.home, "20260102-000000-cccccc")
    log.begin("Count")
    log.add(events.Text("one "))
    path = f"{view.base}/api/sessions/{log.id}/stream"
    async with asyncio.timeout(WAIT), aiohttp.ClientSession(headers=view.headers) as client:
        seen: list[Any] = []
        cursor = ""
        async with client.get(path, params={"after": 0}) as response:
            async for name, mark, data in messages(response):
                if name == "state":
                    assert data["summary"]["state"] == "running"
                    log.add(events.Text("two "), events.ToolUse("c", "shell"))
                if name == "items":
                    cursor = mark
                    seen += data["items"]
                    if any(item["kind"] == "tool" for item in data["items"]):
                        break
        assert "one two" in [item for item in seen if item["kind"] == "text"][-1]["html"]
        # While nobody listens, the call ends and the run goes on.
        log.add(events.ToolResult("c", "success", output="ok"), events.Text("three"))
        log.end()
        log.save()
        later: list[Any] = []
        async with client.get(path, headers={"Last-Event-ID": cursor}) as response:
            names: list[str] = []
            async for name, _, data in messages(response):
                names.append(name)
                later += data["items"] if name == "items" else []
        assert names[-1] == "end"
        tool = next(item for item in later if item["kind"] == "tool")
        assert tool["key"] == next(item for item in seen if item["kind"] == "tool")["key"]
        assert tool["tool"]["status"] == "success"
        assert [item["kind"] for item in later] == ["tool", "text", "done"]


async def test_a_log_that_is_deleted_ends_its_stream_and_leaves_the_list(view: ViewServer) -> None:
    log = Transcript(view.home, "20260103-000000-dddddd")
    log.begin()
    listed = f"{view.base}/api/stream"
    async with (
        asyncio.timeout(WAIT),
        aiohttp.ClientSession(headers=view.headers) as client,
        client.get(listed) as runs,
    ):
        changes = messages(runs)
        assert (await anext(changes))[0] == "runs"
        async with client.get(f"{view.base}/api/sessions/{log.id}/stream") as response:
            async for name, _, data in messages(response):
                if name == "state":
                    shutil.rmtree(log.folder)
                if name == "end":
                    assert "deleted" in data["reason"]
                    break
        async for name, _, data in changes:
            if name == "runs" and log.id in data["removed"]:
                break


async def test_a_session_without_metadata_is_listed_while_it_runs(view: ViewServer) -> None:
    log = Transcript(view.home, "20260104-000000-eeeeee")
    log.begin("Just started")
    found = [run for run in (await view.get("/api/runs"))["runs"] if run["id"] == log.id]
    assert [(run["title"], run["agent"], run["state"]) for run in found] == [
        ("Just started", "gemini-cli", "running")
    ]
    os.utime(log.path, (time.time() - 60, time.time() - 60))
    detail = await view.get(f"/api/sessions/{log.id}")
    assert detail["summary"]["state"] == "interrupted"
    shutil.rmtree(log.folder)


async def test_usage_is_summed_by_day_agent_model_and_project(view: ViewServer) -> None:
    for by, key in (("agent", "gemini-cli"), ("model", "gemini-3-pro"), ("project", None)):
        rows = (await view.get("/api/usage", by=by, days=3))["rows"]
        assert rows[0]["key"] == (key or "/work/project")
        assert rows[0]["cost_usd"] >= 1.0
    (today,) = (await view.get("/api/usage"))["rows"]
    assert today["key"] == time.strftime("%Y-%m-%d")


async def test_ctrl_c_ends_the_server_at_once_and_the_token_is_printed_once(
    tmp_path: Path,
) -> None:
    with running_view(tmp_path) as server:
        async with (
            aiohttp.ClientSession(headers=server.headers) as client,
            client.get(f"{server.base}/api/stream") as response,
        ):
            await anext(messages(response))
            await client.get(f"{server.base}/?token={server.token}")
            await client.get(f"{server.base}/api/nothing?token={server.token}")
            server.process.send_signal(signal.SIGINT)
            out, err = await asyncio.to_thread(server.process.communicate, timeout=WAIT)
        assert (server.process.returncode, out, err) == (
            0,
            "",
            "",
        )  # the address was the first line


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "corral", "view", "--no-open", "--port", str(port)]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)
    assert ended.returncode != 0
    assert f"port {port} is in use" in ended.stderr
    assert "token" not in ended.stdout


WITHOUT_THE_EXTRA = """
import sys
sys.modules["uvicorn"] = None
sys.argv[1:] = ["view", "--no-open"]
from corral._cli.main import main
main()
"""


@pytest.mark.deep
def test_without_the_extra_the_command_says_what_to_install() -> None:
    words = [sys.executable, "-c", WITHOUT_THE_EXTRA]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)
    assert ended.returncode != 0
    assert "pip install 'corral[view]'" in ended.stderr


@pytest.mark.deep
def test_beyond_loopback_there_is_a_warning(tmp_path: Path) -> None:
    with running_view(tmp_path, "--listen", "0.0.0.0") as server:
        assert server.host == socket.gethostname()
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=WAIT)
    assert "can be reached by other machines" in err
    assert server.token not in err
