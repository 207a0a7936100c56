"""``corral serve`` as a process: its end, its death, and its options."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from support.command_in_process import run_in_process
from support.processes import processes_using
from support.scripted_agent import GOOD, PROGRAM
from support.serve_api import TOKENS, ServeClient, clients_file

WAIT = 60.0
AGENT = ("--agent", "gemini-cli", "--program", str(PROGRAM))


@asynccontextmanager
async def serving(
    workspace: Path, *options: str
) -> AsyncGenerator[tuple[subprocess.Popen[str], ServeClient]]:
    """A server in its own process, with a client. It is killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "corral", "serve", *AGENT, *options],
        cwd=workspace,
        env={**os.environ, "GEMINI_API_KEY": "scripted-key-0123456789"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        base = (await asyncio.to_thread(process.stdout.readline)).strip()
        token = TOKENS["ann"]
        if "--clients" not in options:
            token = process.stdout.readline().rpartition(" ")[2].strip()
        async with aiohttp.ClientSession() as http:
            yield process, ServeClient(http, base, token)
    finally:
        process.kill()
        _, stderr = process.communicate(timeout=WAIT)
        assert "Traceback" not in stderr, stderr


@pytest.mark.deep
async def test_a_killed_server_leaves_no_agent_and_finished_runs_stay_readable(
    workspace: Path, tmp_path: Path
) -> None:
    clients = ("--clients", str(clients_file(tmp_path / "clients.toml")))
    async with serving(workspace, *clients) as (process, ann):
        ended = await ann.start(GOOD, wait=30)
        assert ended["outcome"]["text"] == "hello"
        before = await ann.stream(ended["run"])
        await ann.start("init\nchild\nhang")
        while len(processes_using(workspace)) < 3:  # the server, the agent, its child
            await asyncio.sleep(0.05)
        process.kill()
        while processes_using(workspace):
            await asyncio.sleep(0.05)
    async with serving(workspace, *clients) as (_, ann):
        bob = ServeClient(ann._http, ann.base, TOKENS["bob"])  # pyright: ignore[reportPrivateUsage]
        status, view = await ann.get(f"/v1/runs/{ended['run']}")
        assert (status, view["outcome"]["text"]) == (200, "hello")
        assert await ann.stream(ended["run"], after=before[0].id) == [
            *before[1:-1],
            before[-1]._replace(data=view),
        ]
        assert (await bob.get(f"/v1/runs/{ended['run']}"))[0] == 404


@pytest.mark.parametrize("drain", ["30s", "0s"])
@pytest.mark.deep_but_first
async def test_sigterm_lets_runs_end_for_the_time_of_drain(workspace: Path, drain: str) -> None:
    gate = workspace / "gate"
    os.mkfifo(gate)
    async with serving(workspace, "--drain", drain) as (process, client):
        run = (await client.start(f"init\nsh cat {gate}\ntext hello\nresult"))["run"]
        streaming = asyncio.create_task(client.stream(run))
        while len(processes_using(workspace)) < 4:  # with sh, or cat
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        if drain == "30s":
            while (await client.get("/ready"))[0] == 200:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(gate.write_text, "go on")
        status = "success" if drain == "30s" else "interrupted"
        assert (await streaming)[-1].data["outcome"]["status"] == status
        assert await asyncio.to_thread(process.wait, WAIT) == 0
        assert processes_using(workspace) == {}


async def test_a_second_signal_ends_the_runs_at_once(workspace: Path) -> None:
    async with serving(workspace, "--drain", "1h") as (process, client):
        await client.start("init\nhang")
        process.send_signal(signal.SIGTERM)
        while (await client.get("/ready"))[0] == 200:
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, WAIT) == 0
        assert processes_using(workspace) == {}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "needs token_sha256 or token_env"),
        ('token_sha256 = "short"', "64 hexadecimal digits"),
        ('token_env = "NOT_SET"', "NOT_SET must be set"),
        (f'token_sha256 = "{"0" * 64}"\npolicy = "all"', "not permitted"),
        (f'token_sha256 = "{"0" * 64}"\nfolders = ["/"]', "not permitted"),
        (f'token_sha256 = "{"0" * 64}"\nexpires = "soon"', "expires"),
        (f'token_sha256 = "{"0" * 64}"\nprogram = "sh"', "program"),
    ],
    ids=["none", "hash", "variable", "policy", "folders", "expires", "unknown"],
)
def test_a_wrong_client_is_an_error_before_the_server_starts(
    lines: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(f"[clients.ann]\n{lines}\n")
    done = run_in_process(f"serve --clients {file}", monkeypatch)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml [", "not valid"),
        ("", "[clients.NAME]"),
        ('[clients."a: b"]\n', "a name has"),
        ("[clients.a]\nmax_cots = 1.0", "unknown key 'max_cots', did you mean 'max_cost'?"),
        (f'[clients.a]\ntoken_sha256="{"0" * 64}"\n[clients.b]\ntoken_sha256="{"0" * 64}"', "same"),
    ],
)
def test_a_wrong_file_of_clients_is_an_error(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(text)
    done = run_in_process(f"serve --clients {file}", monkeypatch)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
