"""Programs in the sandbox reach the hosts that the policy names, and no others."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.loopback_http import FileServer, MappingProxy
from support.sandbox import needs_sandbox

from corral._core.host_rules import parse_host_rule
from corral._system.process.process import Process, ProcessSpec
from corral._system.sandbox.box import Box, SandboxEndpoint, interpreter_folders
from corral._system.sandbox.host_proxy import HostProxy, TunnelRefused, parse_request
from corral._system.sandbox.sandbox import Sandbox, find_support


async def run(
    command: str, workspace: Path, *hosts: str, endpoints: tuple[SandboxEndpoint, ...] = ()
) -> str:
    """What the command prints in a sandbox that reaches these hosts."""
    box = Box(
        cwd=str(workspace),
        writable=(str(workspace),),
        readable=(*interpreter_folders(), str(Path(sys.prefix))),
        endpoints=endpoints,
        hosts=tuple(map(parse_host_rule, hosts)),
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    spec = ProcessSpec(
        ["sh", "-c", f"({command}) 2>&1"],
        cwd=box.cwd,
        env={**env, "HOME": str(workspace), "TMPDIR": "/tmp"},
        sandbox=Sandbox(support=find_support(), box=box),
    )
    process = await Process.start(spec)
    output = b""
    async with asyncio.timeout(120):
        while chunk := await process.read():
            output += chunk
        await process.wait()
    await process.end(0.1)
    return output.decode()


@needs_sandbox
async def test_curl_reaches_a_named_address_and_gets_403_for_another(
    workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "hello.txt").write_text("hello from outside\n")
    async with FileServer(tmp_path, "127.0.0.2") as allowed, FileServer(tmp_path) as other:
        output = await run(
            f"curl -sS http://127.0.0.2:{allowed.port}/hello.txt;"
            f" curl -sS -i --noproxy '' -x $HTTP_PROXY http://127.0.0.1:{other.port}/hello.txt;"
            f" curl -sS http://forbidden.example/;"
            f" curl -sS https://forbidden.example/;"
            f" curl -sS --noproxy '*' http://127.0.0.2:{allowed.port}/hello.txt",
            workspace,
            f"127.0.0.2:{allowed.port}",
        )
        assert other.paths == []
    assert allowed.paths == ["/hello.txt"]
    assert output.count("hello from outside") == 1
    assert "HTTP/1.1 403 Forbidden" in output
    assert f"the policy does not allow 127.0.0.1:{other.port}" in output
    assert "the policy does not allow forbidden.example:80" in output
    assert "CONNECT tunnel failed, response 403" in output or "403 from proxy" in output


@needs_sandbox
async def test_a_server_of_this_machine_is_reached_under_its_own_name(
    workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "x").write_text("local server\n")
    async with FileServer(tmp_path) as server:
        output = await run(
            f"curl -sS http://localhost:{server.port}/x",
            workspace,
            f"localhost:{server.port}",
            endpoints=(SandboxEndpoint("localhost", server.port),),
        )
    assert output == "local server\n"


@asynccontextmanager
async def users_proxy(files: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[MappingProxy]:
    """The environment of a user whose network has a proxy with a password. It connects to a server
    of files, whatever host is named."""
    async with FileServer(files) as server, MappingProxy(server.port) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://user:proxy-password@127.0.0.1:{proxy.port}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield proxy


@pytest.mark.deep
@needs_sandbox
async def test_git_and_pip_and_npm_use_the_proxy_and_the_users_proxy_stays_hidden(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    make_repository(files / "repository.git")
    make_packages(files)
    async with users_proxy(files, monkeypatch) as proxy:
        output = await run(
            "git clone -q http://git.example/repository.git cloned && cat cloned/file.txt;"
            " git clone -q http://other.example/repository.git stolen;"
            f" {sys.executable} -m pip --isolated --no-cache-dir download -q --no-deps"
            " --trusted-host packages.example -i http://packages.example/simple corral-probe"
            " && ls *.whl;"
            " npm view --registry http://packages.example/npm/ corral-probe version;"
            " env",
            workspace,
            "git.example",
            "packages.example",
        )
    assert "content of the repository" in output
    assert not (workspace / "stolen").exists()
    assert "corral_probe-1.0-py3-none-any.whl" in output
    assert "4.5.6" in output.splitlines()
    assert "proxy-password" not in output
    assert proxy.hosts == {"git.example", "packages.example"}
    assert proxy.credentials == {"user:proxy-password"}


@needs_sandbox
async def test_an_endpoint_is_reached_through_the_users_proxy(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_text("the model's service\n")
    async with users_proxy(tmp_path, monkeypatch) as proxy:
        output = await run(
            "curl -sS http://models.example:8443/x; env",
            workspace,
            endpoints=(SandboxEndpoint("models.example", 8443),),
        )
        assert output.startswith("the model's service\n")
        assert "proxy-password" not in output
        assert proxy.connected == ["models.example:8443"]
        monkeypatch.setenv("NO_PROXY", "models.example")
        output = await run(
            "curl -sS -m 20 http://models.example:8443/x || echo failed",
            workspace,
            endpoints=(SandboxEndpoint("models.example", 8443),),
        )
        assert "failed" in output
        assert proxy.connected == ["models.example:8443"]


async def exchange(proxy: HostProxy, request: bytes) -> bytes:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await proxy.serve((reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(request)
        answer = await reader.read()
        writer.close()
    return answer


async def to_metadata(host: str, port: int) -> list[str]:
    return ["169.254.169.254", "127.0.0.1"]


async def nowhere(host: str, port: int) -> list[str]:
    raise OSError("no such name")


@pytest.mark.parametrize(
    ("request_line", "status", "words"),
    [
        ("CONNECT pypi.org:443", "403", "169.254.169.254, 127.0.0.1, which is not a public"),
        ("GET http://pypi.org/", "403", "not a public address"),
        ("CONNECT evil.example:443", "403", "does not allow evil.example:443"),
        ("CONNECT pypi.org:22", "403", "does not allow pypi.org:22"),
        ("CONNECT 169.254.169.254:80", "403", "does not allow 169.254.169.254:80"),
        ("GET /latest/meta-data/", "400", "not a request to a proxy"),
        ("GET https://pypi.org/", "400", "not a request to a proxy"),
        ("CONNECT pypi.org", "400", "not a request to a proxy"),
        ("CONNECT pypi.org:99999", "400", "not a request to a proxy"),
        ("GET http://pypi.org/ x y", "400", "a proxy for HTTP"),
    ],
)
async def test_what_is_refused_gets_an_answer_that_says_why(
    request_line: str, status: str, words: str
) -> None:
    proxy = HostProxy([parse_host_rule("pypi.org")], (), to_metadata)
    answer = (
        await exchange(proxy, f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    ).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert words in answer
    assert answer.partition("\r\n\r\n")[2].startswith("corral: ")


async def test_a_name_that_does_not_resolve_is_a_gateway_error() -> None:
    proxy = HostProxy([parse_host_rule("*.example")], (), nowhere)
    answer = await exchange(proxy, b"CONNECT x.example:443 HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")


def test_a_plain_request_is_sent_on_without_headers_for_the_proxy() -> None:
    request = parse_request(
        b"POST http://a.example:8080/x?y=1 HTTP/1.1\r\nHost: other.example\r\nAccept: */*\r\n"
        b"Proxy-Authorization: Basic x\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n"
    )
    assert request.head(None).decode().split("\r\n") == [
        "POST /x?y=1 HTTP/1.1", "Host: a.example:8080", "Connection: close", "Accept: */*",
        "Content-Length: 2", "", "",
    ]  # fmt: skip
    with pytest.raises(TunnelRefused, match="malformed"):
        parse_request(b"GET http://a/ HTTP/1.1\r\nX: 1\r\n folded\r\n\r\n")


def make_repository(folder: Path) -> None:
    """A bare repository that can be cloned from a server of files."""
    work = folder.with_suffix(".work")
    work.mkdir(parents=True)
    (work / "file.txt").write_text("content of the repository\n")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for command in (
        ["init", "-q", str(work)],
        ["-C", str(work), "add", "."],
        ["-C", str(work), "commit", "-q", "-m", "first"],
        ["clone", "-q", "--bare", str(work), str(folder)],
        ["-C", str(folder), "update-server-info"],
    ):
        subprocess.run(["git", *identity, *command], check=True)


def make_packages(folder: Path) -> None:
    """A package index for pip and one for npm."""
    name = "corral_probe-1.0-py3-none-any.whl"
    index = folder / "simple" / "corral-probe"
    index.mkdir(parents=True)
    (index / "index.html").write_text(f'<a href="{name}">{name}</a>')
    with zipfile.ZipFile(index / name, "w") as wheel:
        info = "corral_probe-1.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: corral-probe\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    npm = folder / "npm"
    npm.mkdir()
    version = {"name": "corral-probe", "version": "4.5.6", "dist": {"tarball": "http://x/"}}
    about = {
        "name": "corral-probe",
        "dist-tags": {"latest": "4.5.6"},
        "versions": {"4.5.6": version},
    }
    (npm / "corral-probe").write_text(json.dumps(about))
