"""web_fetch: a page as text."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Meta

from corral.builtin.tools import page as page_program
from corral.builtin.tools import truncate
from corral.builtin.tools.running import run
from corral.builtin.tools.tool import Arguments, Outcome, Output, ToolError, define, outcome
from corral.builtin.tools.workspace import Workspace, plain

if TYPE_CHECKING:
    import aiohttp

SECONDS = 30.0
LARGEST = 2_000_000
"""Bytes that are read of a page."""
PARSING = 5.0
"""Seconds for turning a page into text."""
REDIRECTS = 5
LONGEST_URL = 8_192

_TEXTS = ("json", "xml", "javascript", "ecmascript", "yaml", "toml", "x-sh", "sql", "graphql")
"""What is text though its kind is called ``application``."""


class WebFetch(Arguments, frozen=True):
    url: Annotated[
        str, Meta(description="The address, http or https.", min_length=1, max_length=LONGEST_URL)
    ]


class Page(msgspec.Struct, frozen=True):
    url: str
    """Where it was, after all redirects."""
    status: int
    kind: str
    charset: str
    data: bytes
    cut: bool


async def web_fetch(workspace: Workspace, args: WebFetch, _: Output) -> Outcome:
    import aiohttp  # here: most sessions fetch nothing, and it is heavy

    try:
        async with asyncio.timeout(SECONDS):
            page = await _fetch(args.url)
            text = await _text(workspace, page)
    except TimeoutError as error:
        raise ToolError(f"{args.url} did not answer in full within {SECONDS:g} s") from error
    except (aiohttp.ClientError, ValueError, UnicodeError) as error:
        raise ToolError(f"{args.url} cannot be fetched: {error or type(error).__name__}") from error
    where = f"{page.url} (status {page.status}, {page.kind or 'of no stated kind'})"
    notes = [f"[only the first {LARGEST:,} bytes were read]"] if page.cut else []
    whole = "\n\n".join([where, text or "(nothing to read is there)", *notes])
    return outcome(plain(whole), truncate.READ, is_error=page.status >= 400)


async def _fetch(url: str) -> Page:
    import aiohttp

    limits = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=limits, cookie_jar=aiohttp.DummyCookieJar()) as client:
        for _ in range(REDIRECTS + 1):
            _check(url)
            headers = {"User-Agent": "corral", "Accept": "text/html, text/*, application/json, */*"}
            async with client.get(
                url, allow_redirects=False, headers=headers, proxy=_proxy(url)
            ) as response:
                target = response.headers.get("Location")
                if response.status not in (301, 302, 303, 307, 308) or target is None:
                    return await _page(response, url)
                # Each is checked like the first: a page could lead to a file of this machine.
                url = urljoin(url, target)
    raise ToolError(f"over {REDIRECTS} redirects, the last to {url}")


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise ToolError(f"not an address: {url}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ToolError(f"only addresses with http:// or https:// can be fetched, got: {url}")


def _proxy(url: str) -> str | None:
    """What the environment names. aiohttp would find it too, but would then also send what is
    in the user's .netrc."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    found = getproxies().get(parts.scheme)
    return None if not found or proxy_bypass(parts.hostname or "") else found


async def _page(response: aiohttp.ClientResponse, url: str) -> Page:
    kind = response.content_type if "Content-Type" in response.headers else ""
    if not _is_text(kind):
        size = response.headers.get("Content-Length")
        much = f" of {size} bytes" if size else ""
        raise ToolError(f"{url} is no text but {kind}{much}, which cannot be shown")
    data = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        data += chunk
        if len(data) > LARGEST:
            break
    held = bytes(data[:LARGEST])
    if b"\0" in held[:8_192] and "utf-16" not in (response.charset or "").lower():
        raise ToolError(f"{url} is binary, which cannot be shown")
    charset = response.charset or "utf-8"
    return Page(url, response.status, kind, charset, held, len(data) > LARGEST)


def _is_text(kind: str) -> bool:
    return not kind or kind.startswith("text/") or any(text in kind for text in _TEXTS)


async def _text(workspace: Workspace, page: Page) -> str:
    try:
        text = page.data.decode(page.charset, "replace")
    except LookupError:  # a charset that nobody knows
        text = page.data.decode("utf-8", "replace")
    is_page = "html" in page.kind or (
        not page.kind and text.lstrip()[:15].lower().startswith(("<!doctype html", "<html"))
    )
    return await _readable(workspace, text, page.url) if is_page else text


async def _readable(workspace: Workspace, html: str, url: str) -> str:
    heard = bytearray()
    argv = [sys.executable, "-I", "-S", page_program.__file__, url]
    ran = await run(
        workspace,
        argv,
        workspace.root,
        PARSING,
        heard.extend,
        stdin=html.encode("utf-8", "replace"),
    )
    if ran.late or ran.exit.code != 0:
        raise ToolError(f"{url} is a page that cannot be turned into text")
    return heard.decode("utf-8", "replace")


TOOLS = (
    define(
        WebFetch,
        web_fetch,
        name="web_fetch",
        kind="fetch",
        description="Fetch a page from the web and read it as text. Links come as [text](address).",
        limits=truncate.READ,
        title="Fetch url",
    ),
)
