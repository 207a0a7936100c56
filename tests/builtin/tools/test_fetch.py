"""web_fetch with a real server on this machine: text, limits, redirects, errors."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from support.builtin_tools import call_error, call_ok, call_tool

from corral._builtin.tools import fetch
from corral._builtin.tools.workspace import Workspace

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def here(workspace: Path) -> Workspace:
    return Workspace(workspace)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[str]:
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def always(response: Callable[[], web.Response]) -> Handler:
    async def handler(_: web.BaseRequest) -> web.Response:
        return response()

    return handler


async def test_a_page_becomes_text(here: Workspace) -> None:
    html = (
        "<html><head><title>A &amp; B</title><style>no</style><script>no()</script></head>"
        "<body><h2>Über  uns</h2><p>One\n two <b>three</b>.<br>four</p><ul><li>x<li>y</ul>"
        "<a href='/next?a=1'>further</a><pre>  kept\n   so</pre>"
        "<table><tr><td>1</td><td>2</td></tr></table><a href='javascript:x'>not</a></body></html>"
    )
    async with serving(always(lambda: web.Response(text=html, content_type="text/html"))) as url:
        output = await call_ok(here, "web_fetch", url=url)
    assert output.startswith(
        f"{url} (status 200, text/html)\n\n# A & B\n\n## Über uns\n\nOne two three."
    )
    assert "\nfour\n" in output
    assert "\n- x\n- y\n" in output
    assert f"[further]({url}/next?a=1)" in output
    assert "```\n  kept\n   so\n```" in output
    assert "| 1 | 2" in output
    assert "no" not in output.replace("not", "")


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("text/plain; charset=iso-8859-1", b"caf\xe9", "café"),
        ("text/plain; charset=nonsense", b"plain", "plain"),
        ("text/plain", b"caf\xe9", "caf\ufffd"),
        ("application/vnd.api+json", b"[]", "[]"),
    ],
)
async def test_other_text_is_returned_unchanged(
    here: Workspace, kind: str, body: bytes, text: str
) -> None:
    answer = always(lambda: web.Response(body=body, headers={"Content-Type": kind}))
    async with serving(answer) as url:
        assert (await call_ok(here, "web_fetch", url=url)).endswith(f"\n\n{text}")


async def test_files_that_are_not_text_are_described(here: Workspace) -> None:
    async with serving(always(lambda: web.Response(body=b"x", content_type="image/png"))) as url:
        output = await call_error(here, "web_fetch", url=url)
    assert output == f"{url} is image/png of 1 bytes, not text, and cannot be shown"
    async with serving(always(lambda: web.Response(body=b"\0", content_type="text/plain"))) as url:
        assert "is binary" in await call_error(here, "web_fetch", url=url)


async def test_an_error_of_the_server_is_returned_with_its_page(here: Workspace) -> None:
    async with serving(always(lambda: web.Response(text="gone fishing", status=404))) as url:
        output = await call_error(here, "web_fetch", url=url)
    assert "status 404" in output
    assert "gone fishing" in output


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "ftp://x/y", "javascript:1", "data:text/plain,x", "localhost"),
        *("http://", "//x", "http://[x"),
    ],
)
async def test_only_web_addresses_are_fetched(here: Workspace, url: str) -> None:
    output = await call_error(here, "web_fetch", url=url)
    assert "only addresses with http" in output or "not an address" in output


async def test_redirects_are_limited_in_number_and_in_target(here: Workspace) -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        match request.path:
            case "/once":
                return web.Response(status=302, headers={"Location": "/there"})
            case "/file":
                return web.Response(status=302, headers={"Location": "file:///etc/passwd"})
            case "/there":
                return web.Response(text="arrived")
            case _:
                return web.Response(status=307, headers={"Location": request.path + "x"})

    async with serving(handler) as url:
        assert await call_ok(here, "web_fetch", url=f"{url}/once") == (
            f"{url}/there (status 200, text/plain)\n\narrived"
        )
        assert "over 5 redirects" in await call_error(here, "web_fetch", url=f"{url}/loop")
        assert "only addresses with http" in await call_error(here, "web_fetch", url=f"{url}/file")


async def test_an_endless_page_and_a_decompression_bomb_are_cut(here: Workspace) -> None:
    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        try:
            while True:
                await response.write(b"flood " * 10_000)
        except ConnectionError:
            return response

    packed = gzip.compress(b"a" * 50_000_000)
    headers = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    for handler in (endless, always(lambda: web.Response(body=packed, headers=headers))):
        async with asyncio.timeout(30), serving(handler) as url:
            outcome = await call_tool(here, "web_fetch", url=url)
        assert outcome.text.endswith("[only the first 2,000,000 bytes were read]")
        assert len(outcome.shown) <= 50_000


async def test_a_silent_server_is_an_error(
    here: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SECONDS", 0.3)
    over = asyncio.Event()

    async def silent(_: web.BaseRequest) -> web.Response:
        await over.wait()
        return web.Response()

    async with serving(silent) as url:
        output = await call_error(here, "web_fetch", url=url)
        over.set()
    assert output == f"{url} did not respond completely within 0.3 s"


async def test_an_unreachable_server_is_an_error(here: Workspace) -> None:
    async with serving(always(web.Response)) as url:
        pass
    assert "cannot be fetched" in await call_error(here, "web_fetch", url=url)


@pytest.mark.deep
async def test_a_page_that_takes_too_long_to_parse_is_abandoned(
    here: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PARSING", 1.0)
    html = "<a " * 100_000
    async with serving(always(lambda: web.Response(text=html, content_type="text/html"))) as url:
        async with asyncio.timeout(60):
            output = (await call_tool(here, "web_fetch", url=url)).text
    # A newer Python may well read it in time.
    assert "cannot be turned into text" in output or "nothing to read" in output or "<a" in output
