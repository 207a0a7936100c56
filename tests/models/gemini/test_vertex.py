"""Gemini through Vertex AI: path, host and token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from corral import errors, models
from corral._inference import transport
from corral._models import registry
from corral._system.api_keys import access
from corral.testing import ModelServer, say

MODEL = "vertex:gemini-2.5-flash"
TOKEN = "canary-token-0123456789"
PLACE = {"GOOGLE_CLOUD_PROJECT": "my-project", "GOOGLE_CLOUD_LOCATION": "europe-west1"}


class Tokens(ThreadingHTTPServer):
    """Replaces Google's token service."""

    status = 200
    asked = 0


class TokenHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Tokens)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        good = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
        body = json.dumps(good if self.server.status == 200 else {"error": "invalid_grant"})
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokens]:
    server = Tokens(("127.0.0.1", 0), TokenHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account",
        "project_id": "my-project",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "test@my-project.example",
        "token_uri": f"http://127.0.0.1:{server.server_address[1]}/token",
    }
    path = tmp_path / "account.json"
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    # Credentials are kept for the life of the process: this test has its own.
    monkeypatch.setattr(transport, "_tokens", {})
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


async def test_the_path_has_project_and_location_and_the_token_is_sent(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelServer([say("one"), say("two")]) as server:
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        async with models.Client.from_env() as client:
            assert "vertex" in client.providers
            assert (await models.generate(MODEL, "hi", client=client)).text == "one"
            streamed = await models.stream(MODEL, "hi", client=client).collect()
            assert streamed.text == "two"
        first, second = server.requests
    path = "/v1/projects/my-project/locations/europe-west1/publishers/google/models/"
    assert first.path == f"{path}gemini-2.5-flash:generateContent"
    assert second.path == f"{path}gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert first.headers["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in f"{first.path} {first.body}"
    assert tokens.asked == 1  # the token is kept while it is good


async def test_a_rejected_token_is_a_failed_authentication(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.status = 400
    async with ModelServer([say("never")]) as server:
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        async with models.Client.from_env(retries=0) as client:
            with pytest.raises(errors.AuthenticationFailed) as caught:
                await models.generate(MODEL, "hi", client=client)
        assert server.requests == []
    assert caught.value.provider == "vertex"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("place", "host"),
    [
        ("europe-west1", "https://europe-west1-aiplatform.googleapis.com"),
        ("global", "https://aiplatform.googleapis.com"),
    ],
)
def test_the_host_depends_on_the_location(place: str, host: str) -> None:
    found = access(registry.find_provider("vertex"), {**PLACE, "GOOGLE_CLOUD_LOCATION": place})
    assert found.base_url == host


@pytest.mark.parametrize("missing", list(PLACE))
def test_a_missing_location_names_its_variable(missing: str) -> None:
    reported = {name: value for name, value in PLACE.items() if name != missing}
    with pytest.raises(errors.ConfigError, match=missing):
        access(registry.find_provider("vertex"), reported)
