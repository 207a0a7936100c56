"""web_fetch: fetches a web page as text."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import Annotated
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Meta

from corral._builtin.tools import html_text as page_program
from corral._builtin.tools.shell import run_program
from corral._builtin.tools.tool import Arguments, BuiltinTool, Output, ToolOutcome
from corral._builtin.tools.workspace import ToolError, Workspace, replace_surrogates
from corral._system.http.client import Http
from corral.errors import CorralError

SECONDS = 30.0
LARGEST = 2_000_000
"""Bytes that are read of a page."""
PARSING = 5.0
"""Seconds for turning a page into text."""
REDIRECTS = 5
LONGEST_URL = 8_192
ACCEPTED = {"Accept": "text/html, text/*, application/json, */*"}
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)

_TEXTS = ("json", "xml", "javascript", "ecmascript", "yaml", "toml", "x-sh", "sql", "graphql")
"""Text formats whose media type starts with ``application``."""


class WebFetch(Arguments, frozen=True):
    url: Annotated[
        str, Meta(description="The address, http or https.", min_length=1, max_length=LONGEST_URL)
    ]


class FetchedPage(msgspec.Struct, frozen=True):
    url: str
    """The address after all redirects."""
    status: int
    kind: str
    charset: str
    data: bytes
    cut: bool


async def web_fetch(workspace: Workspace, args: WebFetch, _: Output) -> ToolOutcome:
    try:
        async with asyncio.timeout(SECONDS):
            page = await _fetch(args.url)
            try:
                text = page.data.decode(page.charset, "replace")
            except LookupError:  # an unknown charset
                text = page.data.decode("utf-8", "replace")
            is_html = "html" in page.kind or (
                not page.kind and text.lstrip()[:15].lower().startswith(("<!doctype html", "<html"))
            )
            if is_html:
                text = await _html_to_text(workspace, text, page.url)
    except TimeoutError as error:
        raise ToolError(f"{args.url} did not respond completely within {SECONDS:g} s") from error
    except CorralError as error:
        raise ToolError(f"{args.url} cannot be fetched: {error.message}") from error
    where = f"{page.url} (status {page.status}, {page.kind or 'unknown media type'})"
    notes = [f"[only the first {LARGEST:,} bytes were read]"] if page.cut else []
    complete = "\n\n".join([where, text or "(the page has no text)", *notes])
    return ToolOutcome(replace_surrogates(complete), is_error=page.status >= 400)


async def _fetch(url: str) -> FetchedPage:
    # Longer than the tool's own deadline, which comes first.
    async with Http(connect_timeout=2 * SECONDS, read_timeout=2 * SECONDS) as http:
        for _ in range(REDIRECTS + 1):
            try:
                parts = urlsplit(url)
                host = parts.hostname
            except ValueError as error:
                raise ToolError(f"not an address: {url}") from error
            if parts.scheme not in ("http", "https") or not host:
                raise ToolError(
                    f"only addresses with http:// or https:// can be fetched, got: {url}"
                )
            answer = await http.get(url.strip().replace(" ", "%20"), ACCEPTED)
            target = answer.headers.get("location")
            if answer.status in (301, 302, 303, 307, 308) and target is not None:
                answer.close()
                # Checked like the first address: a page could redirect to a file of this machine.
                url = urljoin(url, target.encode("latin-1").decode("utf-8", "replace"))
                continue
            kind = answer.media_type
            if kind and not kind.startswith("text/") and not any(text in kind for text in _TEXTS):
                size = answer.headers.get("content-length")
                much = f" of {size} bytes" if size else ""
                raise ToolError(f"{url} is {kind}{much}, not text, and cannot be shown")
            data = await answer.head(LARGEST + 1)
            charset_match = _CHARSET.search(answer.headers.get("content-type", ""))
            charset = charset_match[1] if charset_match else "utf-8"
            if b"\0" in data[:8_192] and "utf-16" not in charset.lower():
                raise ToolError(f"{url} is binary, which cannot be shown")
            return FetchedPage(
                url, answer.status, kind, charset, data[:LARGEST], len(data) > LARGEST
            )
    raise ToolError(f"over {REDIRECTS} redirects, the last to {url}")


async def _html_to_text(workspace: Workspace, html: str, url: str) -> str:
    output = bytearray()
    argv = [sys.executable, "-I", "-S", page_program.__file__, url]
    ran = await run_program(
        workspace,
        argv,
        workspace.root,
        PARSING,
        output.extend,
        stdin=html.encode("utf-8", "replace"),
    )
    if ran.late or ran.exit.code != 0:
        raise ToolError(f"{url} is a page that cannot be turned into text")
    return output.decode("utf-8", "replace")


TOOLS = (
    BuiltinTool(
        arguments=WebFetch,
        run=web_fetch,
        name="web_fetch",
        kind="fetch",
        description=(
            "Fetch a page from the web and read it as text. Links come as [text](address)."
        ),
        title_form="Fetch url",
    ),
)
