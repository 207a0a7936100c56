"""``corral.serve``: the API mounted in other applications."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
import uvicorn
from support.builtin_agent import MODELS, BuiltinAgent, model_env
from support.serve_api import TOKENS, ServeClient

from corral import serve
from corral._system.http import asgi_server
from corral.errors import ConfigError
from corral.policy import Preset
from corral.serve import ServeOptions
from corral.testing import say

pytest_plugins = ("support.builtin_agent_fixture",)


async def post_run(app: Any, path: str, *, lifespan: bool = True) -> tuple[int, Any]:
    """Serve the application with uvicorn, and start a run."""
    listener = asgi_server.bind("127.0.0.1", 0)
    base = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
    config = uvicorn.Config(
        app, log_level="error", lifespan="on" if lifespan else "off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        async with aiohttp.ClientSession() as http:
            client = ServeClient(http, base, TOKENS["ann"])
            return await client.post("/v1/runs?wait=30", {"prompt": "hello"})
    finally:
        server.should_exit = True
        await task


def options(ours: BuiltinAgent, policy: Preset = "reads") -> ServeOptions:
    env = model_env(ours.add_lane([say("hi")]))
    return {
        "folders": [ours.workspace],
        "models": [MODELS["gemini"]],
        "env": env,
        "retries": 0,
        "policy": policy,
    }


@pytest.mark.parametrize("host", ["starlette", "fastapi", "none"])
async def test_it_serves_inside_another_application_and_alone(
    host: str, ours: BuiltinAgent
) -> None:
    from fastapi import FastAPI
    from starlette.applications import Starlette
    from starlette.routing import Mount

    api = serve.app(TOKENS["ann"], **options(ours, "edits"))
    app: Any = api
    if host == "starlette":
        app = Starlette(routes=[Mount("/agents", api)], lifespan=api.lifespan)
    elif host == "fastapi":
        app = FastAPI(lifespan=api.lifespan)
        app.mount("/agents", api)
    status, view = await post_run(app, "" if app is api else "/agents")
    assert (status, view["outcome"]["text"]) == (200, "hi")


async def test_without_its_lifespan_it_says_what_is_missing(ours: BuiltinAgent) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    api = serve.app(TOKENS["ann"], **options(ours))
    app = Starlette(routes=[Mount("/agents", api)])
    status, error = await post_run(app, "/agents")
    assert (status, "lifespan" in error["error"]["hint"]) == (503, True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "token or clients"),
        ({"token": "x" * 20, "clients": "c.toml"}, "token or clients"),
        ({"token": "short"}, "at least 16"),
        ({"token": "x" * 20, "policy": "everything"}, "policy"),
        ({"token": "x" * 20, "cwd": "."}, "cwd"),
        ({"token": "x" * 20, "folders": ["missing"]}, "missing"),
        ({"clients": "missing.toml"}, "missing.toml"),
    ],
    ids=str,
)
def test_wrong_options_are_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve.app(**wrong)
