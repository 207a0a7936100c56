"""The documentation below /docs of the page."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.types import Message

from corral._docs import pages
from corral._view.auth import HEADERS, ServerAccess
from corral._view.calls import Services
from corral._view.server import create

POLICY = "Content-Security-Policy"


def get(path: str, query: str = "", *, knows: bool = True) -> tuple[int, dict[str, str], str]:
    """The status, headers and body of the response of a server."""
    access = ServerAccess.create(80)
    headers = [("host", "127.0.0.1:80"), ("sec-fetch-site", "cross-site")]
    if knows:
        headers.append(("authorization", f"Bearer {access.token}"))
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.replace("TOKEN", access.token).encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    sent: list[Message] = []

    async def receive() -> Message:
        await asyncio.Event().wait()  # the client sends nothing more, and stays
        raise AssertionError("it was cancelled")

    async def send(message: Message) -> None:
        sent.append(message)

    async def respond() -> None:
        await create(Services(access, lambda _: None))(scope, receive, send)

    asyncio.run(respond())
    found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], found, body.decode()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "PACKAGE", tmp_path)
    folder = tmp_path / "site"
    (folder / "policy").mkdir(parents=True)
    (folder / "index.html").write_text("the first page")
    (folder / "policy" / "index.html").write_text("the page of policies")
    (tmp_path / "secret.txt").write_text("a secret")
    return folder


@pytest.mark.parametrize(
    ("path", "body"),
    [("/docs/", "the first page"), ("/docs/policy/", "the page of policies")],
)
def test_the_site_is_served_with_its_own_security_policy(site: Path, path: str, body: str) -> None:
    status, headers, found = get(path)
    assert (status, found) == (200, body)
    assert headers[POLICY.lower()] != HEADERS[POLICY]
    assert "default-src 'none'" in headers[POLICY.lower()]
    assert headers["x-content-type-options"] == "nosniff"


def test_it_needs_the_token_and_serves_nothing_outside_of_the_site(site: Path) -> None:
    assert get("/docs/", knows=False)[0] == 401
    for path in ("/docs/../secret.txt", "/docs/policy/../../secret.txt", "/docs/nothing"):
        status, _, body = get(path)
        assert status == 404, path
        assert "a secret" not in body


def test_the_address_with_the_token_leads_to_the_site(site: Path) -> None:
    status, headers, body = get("/docs/", "token=TOKEN", knows=False)
    assert status == 200
    assert 'content="0;url=/docs/"' in body
    assert headers["set-cookie"].startswith("corral_view_80=")


def test_without_a_site_the_response_says_where_the_pages_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PACKAGE", tmp_path)
    monkeypatch.setattr(pages, "CHECKOUT", tmp_path)
    for path in ("/docs", "/docs/policy/"):
        status, _, body = get(path)
        assert status == 404
        assert "corral docs shows the pages in the terminal" in body
