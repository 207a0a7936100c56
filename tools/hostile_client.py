"""Requests of an agent that wants the real key, or model calls that are not counted.

``hostile_requests`` makes any number of them, the same for the same seed: targets that servers read
differently, keys in wrong places, odd headers, framing and bodies. ``Oracle`` is independent of the
proxy's own code: it says what a lenient server could read in a request that it got.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple
from urllib.parse import unquote

KEY_MARK = "@KEY@"
"""Where the dummy key stands in the parts of a request."""


class HostileWire(NamedTuple):
    vendor: str
    billed: tuple[str, ...]
    others: tuple[str, ...]
    """Free paths, and paths that are not passed on."""
    places: tuple[str, ...]
    """Where a request may have its key."""
    body: dict[str, object]


_BEARER = f"Authorization: Bearer {KEY_MARK}"
_ASKED = [{"role": "user", "content": "hi"}]
WIRES = (
    HostileWire(
        "gemini",
        ("/v1beta/models/gemini-2.5-flash:generateContent", "/v1/models/a:streamGenerateContent"),
        (
            "/v1beta/models/gemini-2.5-flash:countTokens",
            "/v1beta/models",
            "/v1beta/models/gemini-2.5-flash",
            "/v1beta/models/gemini-2.5-flash:predict",
            "/v1beta/files",
            "/",
        ),
        (f"x-goog-api-key: {KEY_MARK}", _BEARER, f"?key={KEY_MARK}"),
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
    ),
    HostileWire(
        "anthropic",
        ("/v1/messages",),
        ("/v1/messages/count_tokens", "/v1/models", "/v1/messages/batches", "/v1/files", "/"),
        (f"x-api-key: {KEY_MARK}", _BEARER),
        {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": _ASKED},
    ),
    HostileWire(
        "openai",
        ("/v1/responses", "/v1/responses/compact"),
        ("/v1/models", "/v1/models/gpt-5", "/v1/embeddings", "/v1/responses/r1", "/v1/files"),
        (_BEARER,),
        {"model": "gpt-5", "input": "hi"},
    ),
    HostileWire(
        "openai-chat",
        ("/v1/chat/completions",),
        ("/v1/models", "/models/llama3:8b", "/v1/models/a", "/v1/completions", "/v1/embeddings"),
        (_BEARER,),
        {"model": "gpt-5", "messages": _ASKED},
    ),
)


def hostile_requests(wire: HostileWire, count: int, base: str, key: str) -> Iterator[bytes]:
    """Requests with the dummy key ``key``. ``base`` is the path of the base URL."""
    for number in range(count):
        yield _request(wire, Random(f"{wire.vendor} {base} {number}"), base, key)


def _request(wire: HostileWire, chance: Random, base: str, key: str) -> bytes:
    """Most are odd in one way only: else hardly any would be passed on."""
    ways = ["target", "query", "headers", "key", "body", "method"]
    odd = {chance.choice(ways)} if chance.random() < 0.7 else set(chance.sample(ways, 3))
    methods = (
        ["GET", "GET", "GET", "PUT", "HEAD", "OPTIONS", "post", "QUERY"]
        if "method" in odd
        else ["POST"]
    )
    method = chance.choice(methods)
    target = _target(wire, chance, base, {*odd, method})
    headers = ["Host: 127.0.0.1"]
    if "headers" in odd:
        headers = headers * chance.randrange(3) + chance.sample(_HEADERS, chance.randrange(1, 4))
    for place in chance.choices(wire.places, k=chance.choice([0, 1, 2]) if "key" in odd else 1):
        if place.startswith("?"):
            target += ("&" if "?" in target else "?") + place[1:]
        else:
            made = _odd_place(place, chance) if "key" in odd else place
            headers.insert(chance.randrange(len(headers) + 1), made)
    headers = [header.replace(KEY_MARK, key) for header in headers]
    content = _body(wire, chance) if "body" in odd else json.dumps(wire.body).encode()
    content = b"" if method == "GET" and chance.random() < 0.8 else content
    rest = _framed(chance, headers, content, key.encode(), is_odd="body" in odd)
    version = chance.choice(["HTTP/1.1"] * 50 + ["HTTP/1.0", "HTTP/2.0", "http/1.1", ""])
    line = f"{method} {target.replace(KEY_MARK, key)} {version}".rstrip()
    request = line.encode("latin-1") + b"\r\n" + rest
    return request.replace(b"\r\n", b"\n") if chance.random() < 0.01 else request


def _target(wire: HostileWire, chance: Random, base: str, odd: set[str]) -> str:
    is_billed = chance.random() < (0.1 if "GET" in odd else 0.6)
    path = chance.choice(wire.billed if is_billed else wire.others)
    prefix = base
    if "target" in odd:
        for _ in range(chance.choices([1, 2, 3], [6, 3, 1])[0]):
            path = chance.choice(_MUTATIONS)(path, wire, chance)
        prefixes = [base] * 20 + ["", f"{base}/", base.upper(), "/x", f"http://127.0.0.1{base}"]
        prefix = chance.choice(prefixes)
    if "query" in odd:
        path += ("&" if "?" in path else "?") + "&".join(
            chance.sample(_PARAMETERS, chance.randrange(1, 3))
        )
    return prefix + path


def _other(wire: HostileWire, chance: Random) -> str:
    return chance.choice((*wire.billed, *wire.others))


def _at_slash(path: str, inserted: str, chance: Random) -> str:
    slashes = [at for at, char in enumerate(path) if char == "/"]
    at = chance.choice(slashes) if slashes else 0
    return path[:at] + inserted + path[at:]


def _escape_char(path: str, chance: Random, *, twice: bool) -> str:
    at = chance.randrange(len(path))
    escaped = f"%{ord(path[at]) & 0xFF:02{chance.choice('xX')}}"
    return path[:at] + (escaped.replace("%", "%25") if twice else escaped) + path[at + 1 :]


def _free_of(path: str, wire: HostileWire) -> str:
    """What turns a model call into a call that costs nothing, for one that looks at the end."""
    return ":countTokens" if wire.vendor == "gemini" else f"{path}/count_tokens"


Mutation = Callable[[str, HostileWire, Random], str]
_MUTATIONS: tuple[Mutation, ...] = (
    lambda path, wire, chance: f"{path}#{_other(wire, chance)}",
    lambda path, wire, chance: f"{path}#{_free_of(path, wire)}",
    lambda path, wire, chance: f"{path}%23{_free_of(path, wire)}",
    lambda path, wire, chance: f"{path}?{_free_of(path, wire)}",
    lambda path, wire, chance: f"{path}%3F{_free_of(path, wire)}",
    lambda path, wire, chance: f"{path};{_free_of(path, wire)}",
    lambda path, wire, chance: f"{path}{_free_of(path, wire)}",
    lambda path, wire, chance: f"{_other(wire, chance)}/..{path}",
    lambda path, wire, chance: f"{_other(wire, chance)}/%2e%2E/..{path}",
    lambda path, wire, chance: f"{path}/../{_other(wire, chance).lstrip('/')}",
    lambda path, wire, chance: f"{path}%2f..%2f{_other(wire, chance).lstrip('/')}",
    lambda path, wire, chance: f"/v1/models{_other(wire, chance)}",
    lambda path, wire, chance: _at_slash(path, chance.choice(["/.", "/..", "/x/..", "/"]), chance),
    lambda path, wire, chance: _at_slash(path, chance.choice(["/%2e", "/.%2e", ";a=b"]), chance),
    lambda path, wire, chance: path.replace("/", "\\", 1),
    lambda path, wire, chance: path.replace("/", chance.choice(["%2F", "%5c", "//"]), 1),
    lambda path, wire, chance: _escape_char(path, chance, twice=False),
    lambda path, wire, chance: _escape_char(path, chance, twice=True),
    lambda path, wire, chance: (
        path + chance.choice(["/", "/.", ".", "%20", "%00", "%0a", "~", "*"])
    ),
    lambda path, wire, chance: (
        path + chance.choice(["\xe9", "%c3%a9", "%ff", "%", "%zz", '"', "|"])
    ),
    lambda path, wire, chance: chance.choice([path.upper(), path.title(), path.swapcase()]),
    lambda path, wire, chance: f"{path.rpartition('/')[0]}/{KEY_MARK}",
    lambda path, wire, chance: f"{path}/{KEY_MARK}",
    lambda path, wire, chance: f"{path}?user={KEY_MARK}",
)
_PARAMETERS = (
    "alt=sse",
    "beta=true",
    f"key={KEY_MARK}",
    f"key=x&key={KEY_MARK}",
    f"%6bey={KEY_MARK}",
    f"KEY={KEY_MARK}",
    f"key={KEY_MARK}{KEY_MARK}",
    f"key=%20{KEY_MARK}",
    f"name={KEY_MARK}",
    f"{KEY_MARK}=1",
    f"a=1;key={KEY_MARK}",
    "$httpMethod=POST",
    "%24httpMethod=POST",
    f"$httpHeaders=x-echo:{KEY_MARK}",
    "_method=POST",
    "a=%0d%0ax-injected:1",
    "a=%",
    "=",
    "a",
)
_HEADERS = (
    f"anthropic-beta: {KEY_MARK}",
    f"anthropic-beta: a,{KEY_MARK}",
    f"User-Agent: agent/{KEY_MARK}",
    f"Cookie: key={KEY_MARK}",
    f"Referer: http://x/?key={KEY_MARK}",
    f"X-Goog-Api-Client: {KEY_MARK}",
    f"api-key: {KEY_MARK}",
    f"Proxy-Authorization: Bearer {KEY_MARK}",
    f"{KEY_MARK}: 1",
    f"X-Forwarded-For: {KEY_MARK}",
    "Authorization: Bearer another",
    "x-api-key: another",
    "x-goog-api-key: another",
    f"Authorization: Basic {KEY_MARK}",
    f"Authorization: Bearer {KEY_MARK}, Bearer x",
    f"x-api-key: x{KEY_MARK}",
    f"x-goog-api-key: {KEY_MARK} {KEY_MARK}",
    f"Trailer: {KEY_MARK}",
    "X-HTTP-Method-Override: POST",
    "X-Method-Override: POST",
    "X-Original-URL: /v1/messages",
    "X-Rewrite-URL: /v1/chat/completions",
    "Connection: close",
    "Connection: keep-alive, x-api-key",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Host: other.test",
    "Expect: 100-continue",
    "Accept-Encoding: gzip, br",
    "TE: trailers",
    "Content-Type: application/x-www-form-urlencoded",
    "X-Bytes: \xff\xfe",
    "X-Empty:",
    "Content-Length : 5",
    " folded: 1",
)


def _odd_place(place: str, chance: Random) -> str:
    name, _, value = place.partition(": ")
    match chance.randrange(14):
        case 0:
            return f"{name.swapcase()}: {value}"
        case 1:
            return f"{name}:{value}"
        case 2:
            return f"{name}: \t {value} \t"
        case 3:
            return f"{name}: {value.lower().replace(KEY_MARK.lower(), KEY_MARK)}"
        case 4:
            return f"{name}: \r\n {value}"
        case 5:
            return f"{name}: {value}\r\n x"
        case 6:
            return f"{name} : {value}"
        case 7:
            return f"{name}: {value}\r\n{name}: {value}"
        case _:
            return place


def _body(wire: HostileWire, chance: Random) -> bytes:
    plain = json.dumps({**wire.body, "metadata": {"user": KEY_MARK}}).encode()
    return chance.choices(
        [plain, b"", b"[]", b"not JSON", b'\xef\xbb\xbf{"a":1}', b"{}", plain + b" "],
        [20, 1, 1, 1, 1, 1, 1],
    )[0]


def _framed(chance: Random, headers: list[str], body: bytes, key: bytes, *, is_odd: bool) -> bytes:
    """The headers and the body."""
    body = body.replace(KEY_MARK.encode(), key)
    if is_odd and chance.random() < 0.3:
        coding = chance.choice(["gzip", "identity", "br", "gzip, gzip", "GZIP"])
        headers.append(f"Content-Encoding: {coding}")
        body = gzip.compress(body, mtime=0) if "zip" in coding.lower() else body
    size = len(body)
    match (chance.randrange(12) if is_odd else 98) if body else 99:
        case 0:
            headers.append(f"Content-Length: {size + chance.choice([-3, 3])}")
        case 1:
            headers += [f"Content-Length: {size}", f"Content-Length: {size + 1}"]
        case 2:
            headers += [f"Content-Length: {size}", "Transfer-Encoding: chunked"]
        case 3 | 4 | 5:
            headers.append("Transfer-Encoding: chunked")
            trailer = b"x-api-key: %b\r\n" % key if chance.random() < 0.3 else b""
            body = b"%x;a=b\r\n%b\r\n0\r\n%b\r\n" % (size, body, trailer)
        case 6:
            headers.append("Transfer-Encoding: identity, chunked")
        case 99:
            pass
        case _:
            headers.append(f"Content-Length: {size}")
    return "\r\n".join([*headers, "", ""]).encode("latin-1") + body


class Oracle:
    """What a lenient server could read in the requests that it got."""

    def __init__(self, real: str) -> None:
        self._real = real

    def key_problem(self, request: bytes) -> str:
        """Why the real key stands in a wrong place; empty if it does not."""
        head = request.partition(b"\r\n\r\n")[0].decode("latin-1")
        line, *headers = head.split("\r\n")
        places = 0
        for header in headers:
            name, _, value = header.partition(":")
            prefix = "Bearer " if name.lower() == "authorization" else ""
            if name.lower() in ("authorization", "x-api-key", "x-goog-api-key"):
                places += value.strip() == prefix + self._real
        places += [*map(unquote, re.findall("[?&]key=([^& ]*)", line))].count(self._real)
        rest = request.decode("latin-1").removeprefix(line)
        count = unquote(line).count(self._real)
        count += max(rest.count(self._real), unquote(rest).count(self._real))
        return "" if places == count == 1 else f"{count} keys, {places} in the right place: {head}"

    def is_billable(self, request: bytes) -> bool:
        """Whether any server could read it as a model call."""
        head = request.partition(b"\r\n\r\n")[0].decode("latin-1")
        line, *headers = head.split("\r\n")
        method, target, _ = line.split(" ", 2)
        values = [header.partition(":") for header in headers]
        overrides = [v.strip() for name, _, v in values if "method" in name.lower()]
        others = [v.strip() for name, _, v in values if name.lower().endswith(("-url", "-uri"))]
        query = unquote(target.partition("?")[2]).lower()
        is_post = "POST" in (method.upper(), *(each.upper() for each in overrides))
        is_post = is_post or "method=post" in query
        readings = {reading for each in (target, *others) for reading in path_readings(each)}
        return is_post and any(map(_BILLED.search, readings))


_BILLED = re.compile(
    r"(?i)/(?:messages|messages/batches|responses|responses/compact|(?:chat/)?completions"
    r"|embeddings|images/generations)/*$"
    r"|:(?:batch|stream)?generatecontent/*$|:(?:batch)?embedcontents?/*$|:predict/*$"
)


def path_readings(target: str) -> set[str]:
    """The paths that servers could read in a target: in any order of decoding, of cutting and of
    removing segments."""
    steps: tuple[Callable[[str], str], ...] = (
        lambda path: re.sub(r"^[a-z]+://[^/]*", "", path),
        lambda path: path.partition("#")[0],
        lambda path: path.partition("?")[0],
        lambda path: re.sub(r";[^/]*", "", path),
        lambda path: path.partition("\0")[0],
        unquote,
        lambda path: path.replace("\\", "/"),
        lambda path: re.sub(r"/{2,}", "/", path),
        lambda path: re.sub(r"/\.(?=/|$)", "", path),
        lambda path: re.sub(r"/[^/]+/\.\.(?=/|$)", "", path, count=1),
        lambda path: path.rstrip("/. \t\r\n"),
    )
    found, open_paths = {target}, [target]
    while open_paths and len(found) < 500:
        path = open_paths.pop()
        for step in steps:
            reading = step(path)
            if reading not in found:
                found.add(reading)
                open_paths.append(reading)
    return found
