"""MLflow and Phoenix, as real servers, show the answer, the tokens and the cost of a run.

They are installed under ``.cache/receivers`` from ``requirements/receivers.txt``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.installed_agents import installed
from support.locked_environment import install

import corral
from corral._export import otel
from corral._runs import stored_run
from corral._telemetry import sender, trace_context
from corral.result import Result
from corral.testing import Call, ModelServer, Script, Turn

START_SECONDS = 300
SCRIPT = [
    Turn(
        text="Reading.",
        calls=[Call("read_file", {"path": "a.txt"})],
        usage={"input": 1000, "output": 20, "cached": 10},
    ),
    Turn(text="All done.", usage={"input": 1500, "output": 30}),
]

pytestmark = [
    pytest.mark.deep,
    pytest.mark.gemini_cli,
    pytest.mark.claude,
    pytest.mark.timeout(1200),
]


@dataclass
class Receivers:
    phoenix: str
    mlflow: str


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


@pytest.fixture
def receivers(tmp_path: Path) -> Iterator[Receivers]:
    bin, folder = install("receivers"), tmp_path
    phoenix, grpc, mlflow = free_port(), free_port(), free_port()
    env = {
        **os.environ,
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(phoenix),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_WORKING_DIR": str(folder / "phoenix"),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    storage = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    storage += ["--artifacts-destination", str(folder / "artifacts")]
    address = ["--host", "127.0.0.1", "--port", str(mlflow), "--workers", "1"]
    commands = [
        [str(bin / "phoenix"), "serve"],
        [str(bin / "mlflow"), "server", *address, *storage],
    ]
    processes = [
        subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        wait_for(f"http://127.0.0.1:{phoenix}/healthz")
        wait_for(f"http://127.0.0.1:{mlflow}/health")
        yield Receivers(f"http://127.0.0.1:{phoenix}", f"http://127.0.0.1:{mlflow}")
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(url: str) -> None:
    ends = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.5)


def get(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def phoenix_trace(url: str, trace_id: str) -> Any:
    """The trace as the page of Phoenix asks for it. Spans are stored a while after they came."""
    query = """{ projects { edges { node { trace(traceId: "TRACE") {
        costSummary { total { cost tokens } }
        rootSpan { input { value } output { value } cumulativeTokenCountTotal }
    } } } } }""".replace("TRACE", trace_id)
    answer: Any = None
    for _ in range(120):
        answer = get(f"{url}/graphql", {"query": query})
        for project in answer["data"]["projects"]["edges"]:
            trace = project["node"]["trace"]
            if trace and trace["rootSpan"] and trace["costSummary"]["total"]["cost"]:
                return trace
        time.sleep(0.5)
    pytest.fail(f"Phoenix does not show the trace: {answer}")


async def test_the_receivers_show_answer_tokens_and_cost(
    receivers: Receivers, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-mlflow-experiment-id=0")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
    monkeypatch.setattr(sender, "FLUSH_SECONDS", 120.0)
    (workspace / "a.txt").write_text("hello")
    agents: list[tuple[str, str | None, str | None]] = [
        ("gemini-cli", installed("gemini-cli"), "gemini-2.5-flash"),
        ("claude-cli", installed("claude-cli"), "claude-sonnet-4-5"),
        ("gemini:gemini-2.5-flash", None, None),
    ]
    with ModelServer(Script(SCRIPT, restart="per_conversation")) as server:
        for agent, program, model in agents:
            result: Result = await corral.run(
                agent,
                "Read a.txt",
                program=program,
                model=model,
                policy="reads",
                record=True,
                cwd=workspace,
                env=server.env,
                otel=receivers.phoenix,
            )
            assert result.ok, (agent, result.error)
            check(result, receivers)


def check(result: Result, receivers: Receivers) -> None:
    """The run was sent to Phoenix while it went on; it is sent to MLflow afterwards."""
    session = result.run_id.rpartition(".")[0]
    otel.send(stored_run.find(session), receivers.mlflow, content=True)
    trace_id = trace_context.of_turn(result.run_id, None).trace_id

    trace = phoenix_trace(receivers.phoenix, trace_id)
    root, total = trace["rootSpan"], trace["costSummary"]["total"]
    assert (root["input"]["value"], root["output"]["value"]) == ("Read a.txt", result.text)
    assert root["cumulativeTokenCountTotal"] == total["tokens"] == result.usage.total
    assert total["cost"] > 0

    info = get(f"{receivers.mlflow}/api/3.0/mlflow/traces/get?trace_id=tr-{trace_id}")["trace"]
    facts = info["trace_info"]["trace_metadata"]
    assert json.loads(facts["mlflow.trace.tokenUsage"])["total_tokens"] == result.usage.total
    assert json.loads(facts["mlflow.trace.cost"])["total_cost"] > 0
    assert "All done." in info["trace_info"]["response_preview"]
