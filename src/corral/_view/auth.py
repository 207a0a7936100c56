"""Who may use the server: every request passes here first.

Theory of operation. The server is reachable by every program of this machine, and by every page
that a browser has open. So a request must prove three things:

- It names this server. The ``Host`` header must be an address of it: a page of another site whose
  name was pointed at 127.0.0.1 (DNS rebinding) has its own name there.
- It comes from our own page, or from no page. Browsers say where a request comes from (``Origin``,
  ``Sec-Fetch-Site``); pages cannot change that. A request with a body must be JSON, which other
  sites cannot send without asking first.
- It has the secret. The first address that is opened has a token in it, which is exchanged for a
  cookie, so that the token leaves the address bar and the history. Programs send the token as
  ``Authorization: Bearer``. The cookie has another value: who reads it does not know the token.

``/api/answers/`` needs no cookie: its address contains a signed token of its own that answers one
request once.

The token is compared in constant time and is never part of a response, a log or an error.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral._system.clock import new_secret
from corral._view.records import ErrorBody, ErrorDetail

API = "/api/"
ANSWERS = "/api/answers/"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types corral",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every response."""
_NO_COOKIE = """<!doctype html><meta charset="utf-8"><title>corral</title>
<p>This page needs the address that <code>corral view</code> printed: it has a token in it.</p>
"""
_GO_ON = """<!doctype html><meta charset="utf-8"><title>corral</title>
<meta http-equiv="refresh" content="0;url={path}"><p><a href="{path}">Go on</a></p>
"""
_SAFE_SITES = (None, "same-origin", "none")
_SAFE_METHODS = ("GET", "HEAD")


class ServerAccess(msgspec.Struct, frozen=True):
    """The secrets and addresses of a server."""

    token: str
    cookie: str
    port: int
    hosts: frozenset[str]
    """Names that requests may use, without the port."""
    any_address: bool = False
    """Whether every numeric address is accepted: the server listens on all interfaces. Only a name
    can be pointed at another machine's address."""

    @classmethod
    def create(
        cls, port: int, listen: str = "127.0.0.1", names: Iterable[str] = ()
    ) -> ServerAccess:
        """New secrets for a server at this port."""
        hosts = {"127.0.0.1", "localhost", "[::1]", *names}
        everywhere = is_everywhere(listen)
        if not everywhere:
            hosts.add(f"[{listen}]" if ":" in listen else listen)
        return cls(
            new_secret(),
            new_secret(),
            port,
            frozenset(name.lower() for name in hosts),
            everywhere,
        )

    @property
    def cookie_name(self) -> str:
        """Cookies are shared by all ports of a host: the name has the port."""
        return f"corral_view_{self.port}"

    def is_own_host(self, header: str) -> bool:
        """Whether a ``Host`` header names this server."""
        name, colon, port = header.lower().rpartition(":")
        if not colon or port != str(self.port):
            return False
        return name in self.hosts or (self.any_address and _is_address(name))


def is_everywhere(listen: str) -> bool:
    """Whether an address to listen on means every network of this machine."""
    return _is_address(listen) and ipaddress.ip_address(listen).is_unspecified


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class Guard:
    """The outermost application: refuses what is not allowed, and sets the headers."""

    def __init__(self, app: ASGIApp, access: ServerAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith(API):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        response = self._refusal(scope) or self._login(scope)
        if response is not None:
            await response(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """The response to a request that may come from elsewhere."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._access.is_own_host(host):
            return error_response(403, "host", "this server is not known by that name")
        is_api = scope["path"].startswith(API)
        is_write = scope["method"] not in _SAFE_METHODS
        if (is_api or is_write) and headers.get("sec-fetch-site") not in _SAFE_SITES:
            return error_response(403, "origin", "requests of other sites are refused")
        origin = headers.get("origin")
        if (
            is_write
            and origin is not None
            and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}")
        ):
            return error_response(403, "origin", "requests of other sites are refused")
        if is_write and headers.get("content-type", "").partition(";")[0] != "application/json":
            return error_response(415, "content_type", "the body must be application/json")
        return None

    def _login(self, scope: Scope) -> Response | None:
        """The response to a request without the cookie, or with the token in its address."""
        path: str = scope["path"]
        if not path.startswith(API) and scope["method"] == "GET":
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            tokens = [value for name, value in query if name == "token"]
            if tokens and _is_equal(tokens[0], self._access.token):
                return self._exchange_token(scope, query)
        if path.startswith(ANSWERS) or self._is_known(Headers(scope=scope)):
            return None
        if path.startswith(API):
            return error_response(
                401, "token", "the token is missing or wrong", "corral view prints it."
            )
        return HTMLResponse(_NO_COOKIE, 401)

    def _exchange_token(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """The cookie, and the address without the token."""
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")
        if Headers(scope=scope).get("sec-fetch-site") not in _SAFE_SITES:
            # A browser does not send the new cookie along a redirect that another page began, such
            # as the file that `corral view` opens. A page of our own begins again.
            response: Response = HTMLResponse(_GO_ON.format(path=quote(path)))
        else:
            response = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        response.set_cookie(
            self._access.cookie_name,
            self._access.cookie,
            path="/",
            httponly=True,
            samesite="strict",
        )
        response.headers["Cache-Control"] = "no-store"
        return response

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _is_equal(token.strip(), self._access.token):
            return True
        # Not with http.cookies, whose time grows with the square of a hostile header.
        cookies = [part.strip().partition("=") for part in headers.get("cookie", "").split(";")]
        own = [value for name, _, value in cookies if name == self._access.cookie_name]
        return any(_is_equal(value, self._access.cookie) for value in own)


def _is_equal(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def error_response(status: int, code: str, message: str, hint: str | None = None) -> Response:
    """A response that is not a success."""
    body = ErrorBody(error=ErrorDetail(code=code, message=message, hint=hint))
    return Response(msgspec.json.encode(body), status, media_type="application/json")
