"""How the HTTP client connects: addresses, proxies, TLS; and which requests are errors."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from support.raw_server import ConnectionHandler, RawConnection, plain, raw_server, respond_with

from corral._system.http.client import Http
from corral._system.http.connect import connect_first
from corral._system.http.request import Proxy, encode_head, parse_url, proxy_for
from corral.errors import ConfigError, CorralError, NetworkFailed


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("url", "host", "port", "output", "path"),
    [
        ("http://a.test", "a.test", 80, "a.test", "/"),
        ("https://A.test:443/x", "a.test", 443, "a.test", "/x"),
        ("https://a.test:8443/x?y=1&z=%20#f", "a.test", 8443, "a.test:8443", "/x?y=1&z=%20"),
        ("http://[::1]:8/v1", "::1", 8, "[::1]:8", "/v1"),
        ("https://ü.test/ü?ö", "xn--tda.test", 443, "xn--tda.test", "/%C3%BC?%C3%B6"),
        ("http://a.test/x:generate?alt=sse", "a.test", 80, "a.test", "/x:generate?alt=sse"),
    ],
)
def test_a_url_is_parsed(url: str, host: str, port: int, output: str, path: str) -> None:
    target = parse_url(url)
    assert (target.origin.host, target.origin.port, target.origin.authority) == (host, port, output)
    assert target.path == path


@pytest.mark.parametrize(
    "url",
    [
        *("", "nonsense", "ftp://a.test", "http://", "http:///x", "http://a:99999", "http://[::1"),
        *("http://a.test/x\r\nX: y", "http://a.test/x y", "http://a.test\0", "http://a\n.test"),
        *("http://" + "a" * 64 + ".test", "http://a..test", "http://a.test:x"),
    ],
)
def test_an_invalid_address_is_an_error(url: str) -> None:
    with pytest.raises(ConfigError, match="not a URL"):
        parse_url(url)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("X-Key", f"a{bad}b") for bad in ("\r", "\n", "\r\nEvil: 1", "\0", "\x7f", "€")),
        *((name, "x") for name in ("", "A B", "A:", "A\r\nB", "Ä")),
        *((name, "x") for name in ("Host", "content-length", "Transfer-Encoding", "Connection")),
    ],
)
async def test_a_header_with_a_line_break_is_an_error_before_anything_is_sent(
    name: str, value: str
) -> None:
    async with raw_server(respond_with(plain())) as server, Http() as http:
        with pytest.raises(ConfigError):
            await http.post(server.url, b"", {name: value})
        assert server.connections == 0


def test_credentials_of_a_url_become_a_header_unless_one_is_given() -> None:
    target = parse_url("http://me:p%40ss@a.test/x")
    assert b"\r\nauthorization: Basic bWU6cEBzcw==\r\n" in encode_head("GET", target, {})
    assert b"Basic" not in encode_head("GET", target, {"Authorization": "Bearer k"})
    assert b"me" not in encode_head("GET", target, {}).partition(b"\r\n")[0]
    assert "Basic" not in repr(target)


async def test_an_ipv6_address_is_reached() -> None:
    try:
        async with raw_server(respond_with(plain(b"six")), host="::1") as server, Http() as http:
            answer = await http.post(f"http://[::1]:{server.port}", b"", {})
            assert await answer.body() == b"six"
    except OSError:
        pytest.skip("no IPv6 here")


async def test_a_name_with_several_addresses_is_reached_where_one_listens() -> None:
    async with raw_server(respond_with(plain(b"x"))) as server, Http() as http:
        answer = await http.post(f"http://localhost:{server.port}", b"", {})
        assert await answer.body() == b"x"


@pytest.mark.both_loops
async def test_an_address_that_does_not_answer_does_not_hold_up_the_others() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as mute:
        waiting = [socket.socket() for _ in range(3)]  # more than its queue holds
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(mute.getsockname())
        async with raw_server(respond_with(plain(b"x"))) as server:
            ports = [mute.getsockname()[1], server.port]
            rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", p)) for p in ports]
            opened = await connect_first(rows)
            assert opened.getpeername()[1] == server.port
            opened.close()
        for each in waiting:
            each.close()


@pytest.mark.both_loops
async def test_a_name_without_an_address_that_accepts_is_an_error() -> None:
    async with raw_server(respond_with(plain(b"x"))) as server:
        port = server.port
    async with Http() as http:
        with pytest.raises(NetworkFailed, match=rf"localhost:{port} cannot be reached: Connection"):
            await http.post(f"http://localhost:{port}", b"", {})


async def test_a_connection_that_is_not_accepted_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def mute(line: RawConnection) -> None:
        await line.wait_closed()

    async with raw_server(mute) as server, Http(connect_timeout=0.2) as http:
        with pytest.raises(NetworkFailed, match=r"did not accept the connection within 0\.2 s"):
            await http.post(f"https://127.0.0.1:{server.port}", b"", {})
        monkeypatch.setenv("https_proxy", server.url)
        with pytest.raises(NetworkFailed, match=r"did not accept the connection within 0\.2 s"):
            await http.post("https://a.test", b"", {})


# Proxies.


@pytest.mark.parametrize(
    ("env", "url", "found"),
    [
        ({}, "http://a.test", None),
        ({"HTTP_PROXY": "http://p.test:3128"}, "http://a.test", Proxy("p.test", 3128)),
        ({"http_proxy": "p.test:3128"}, "http://a.test", Proxy("p.test", 3128)),
        ({"HTTP_PROXY": "http://p.test"}, "https://a.test", None),
        ({"HTTPS_PROXY": "http://p.test"}, "https://a.test", Proxy("p.test", 80)),
        ({"all_proxy": "http://p.test"}, "https://a.test", Proxy("p.test", 80)),
        ({"ALL_PROXY": "http://p.test", "NO_PROXY": "a.test"}, "https://a.test", None),
        ({"ALL_PROXY": "http://p.test", "no_proxy": ".test"}, "https://b.a.test", None),
        ({"ALL_PROXY": "http://p.test", "NO_PROXY": "a.test:8"}, "https://a.test:8", None),
        ({"ALL_PROXY": "http://p.test", "NO_PROXY": "*"}, "https://a.test", None),
        (
            {"HTTPS_PROXY": "http://me:p%40ss@p.test"},
            "https://a.test",
            Proxy("p.test", 80, "Basic bWU6cEBzcw=="),
        ),
    ],
)
def test_the_environment_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], url: str, found: Proxy | None
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == found
    assert "pass" not in repr(found)


@pytest.mark.parametrize(
    "named", ["https://p.test:secret@x", "socks5://u:secret@p.test", "http://", "http://[secret"]
)
async def test_an_unsupported_proxy_is_an_error_without_its_password(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", named)
    async with Http() as http:
        with pytest.raises(ConfigError, match="the proxy that the environment names") as caught:
            await http.post("https://a.test", b"", {})
    assert "secret" not in f"{caught.value} {caught.value.hint}"


async def test_a_proxy_gets_the_complete_url(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    async def talk(line: RawConnection) -> None:
        while request := await line.request():
            seen.append(request)
            await line.send(plain(b"led"))

    async with raw_server(talk) as proxy, Http() as http:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:pw@127.0.0.1:{proxy.port}")
        for _ in range(2):
            answer = await http.post("http://a.test:81/x?y", b"", {"Authorization": "Bearer k"})
            assert await answer.body() == b"led"
        assert proxy.connections == 1
    assert seen[0].startswith(b"POST http://a.test:81/x?y HTTP/1.1\r\nHost: a.test:81\r\n")
    assert b"\r\nproxy-authorization: Basic bWU6cHc=\r\n" in seen[0]


async def test_an_unreachable_proxy_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with Http() as http:
        for url in ("http://a.test", "https://a.test"):
            with pytest.raises(NetworkFailed, match="the proxy cannot be reached"):
                await http.post(url, b"", {})


@pytest.mark.parametrize(
    ("output", "words", "retryable"),
    [
        (
            b"HTTP/1.1 407 Who are you\r\n\r\n",
            "refuses to connect to a.test: 407 Who are you",
            False,
        ),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "refuses to connect to a.test: 503 Busy", True),
        (b"HTTP/1.1 200 OK\r\n\r\nstray", "refuses to connect", False),
        (b"SSH-2.0\r\n\r\n", "does not speak HTTP", True),
        (b"", "closed the connection", True),
    ],
)
async def test_a_proxy_that_refuses(
    monkeypatch: pytest.MonkeyPatch, output: bytes, words: str, retryable: bool
) -> None:
    async with raw_server(respond_with(output, keep=False)) as proxy, Http() as http:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(NetworkFailed, match=words) as caught:
            await http.post("https://a.test", b"", {})
    assert caught.value.retryable is retryable


# TLS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that signs itself, for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.fixture
def served(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def echo() -> ConnectionHandler:
    async def talk(line: RawConnection) -> None:
        while request := await line.request():
            await line.send(plain(request.partition(b"\r\n\r\n")[2]))

    return talk


async def test_a_trusted_server_gets_the_request_and_its_connection_is_reused(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, served: ssl.SSLContext
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    sent = bytes(range(256)) * 20_000
    async with raw_server(echo(), trusted=served) as server, Http() as http, asyncio.timeout(30):
        for body in (b"small", sent, b"small"):
            answer = await http.post(f"https://localhost:{server.port}/x", body, {})
            assert await answer.body() == body
        assert server.connections == 1


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2"])
async def test_an_untrusted_server_gets_no_request(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, served: ssl.SSLContext, host: str
) -> None:
    if host != "localhost":  # trusted, but for another name
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with raw_server(echo(), trusted=served, host=host) as server, Http() as http:
        with pytest.raises(NetworkFailed, match="has no trusted certificate") as caught:
            await http.post(f"https://{host}:{server.port}", b"", {})
    assert not caught.value.retryable
    assert "SSL_CERT_FILE" in (caught.value.hint or "")


async def test_a_server_without_tls_is_named_in_the_error() -> None:
    impatient = Http(connect_timeout=1)  # such a server waits for a line that never ends
    async with raw_server(respond_with(plain(), keep=False)) as server, impatient as http:
        with pytest.raises(NetworkFailed) as caught:
            await http.post(f"https://127.0.0.1:{server.port}", b"", {})
    assert caught.value.hint


async def test_a_tunnel_leads_through_a_proxy_to_a_trusted_server(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, served: ssl.SSLContext
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    seen: list[bytes] = []

    async def lead(line: RawConnection) -> None:
        seen.append(await line.request())
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await line.send(b"HTTP/1.1 200 Connection established\r\nVia: us\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            except ConnectionError:
                pass
            sink.close()

        await asyncio.gather(pump(line.reader, writer), pump(reader, line.writer))

    async with (
        raw_server(echo(), trusted=served) as server,
        raw_server(lead) as proxy,
        Http() as http,
    ):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:pw@127.0.0.1:{proxy.port}")
        for body in (b"one", b"two"):
            answer = await http.post(f"https://localhost:{server.port}", body, {"X-Key": "k"})
            assert await answer.body() == body
        assert proxy.connections == 1
        await http.close()
    where = f"localhost:{server.port}".encode()
    assert seen == [
        b"CONNECT %b HTTP/1.1\r\nHost: %b\r\nProxy-Authorization: Basic bWU6cHc=\r\n\r\n"
        % (where, where)
    ]


async def test_an_untrusted_server_behind_a_proxy_gets_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lead(line: RawConnection) -> None:
        await line.request()
        await line.send(b"HTTP/1.1 200 OK\r\n\r\n")
        await line.reader.read(65536)
        await line.send(b"no TLS at all")

    async with raw_server(lead) as proxy, Http() as http:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(CorralError) as caught:
            await http.post("https://a.test", b"", {})
    assert type(caught.value) is NetworkFailed
