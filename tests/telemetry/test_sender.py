"""Spans are sent to a real receiver; one that hangs, refuses or is gone only costs spans."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
from support.event_samples import session_events, write_events
from support.otlp_receiver import OtlpReceiver, attributes

from corral._export import otel
from corral._runs import stored_run
from corral._telemetry import sender
from corral._telemetry.sender import OtlpExporter, Sender
from corral._telemetry.spans import Span
from corral._telemetry.trace_context import TraceContext
from corral.errors import ConfigError, ProcessFailed


def span(number: int = 1) -> Span:
    context = TraceContext("a" * 32, f"{number:016x}")
    return Span(context=context, parent_id=None, name="s", start=1.0, end=2.0, attributes={})


def test_a_stored_session_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=corral")
    run = stored_run.at(write_events(tmp_path / "log.ndjson", session_events()))
    with OtlpReceiver() as receiver:
        count = otel.send(run, receiver.url, content=False)
    assert count == len(receiver.spans) == 20
    assert receiver.paths == ["/v1/traces"]
    assert receiver.headers[0]["x-team"] == "corral"
    assert receiver.resources[0]["service.name"] == "corral"
    assert receiver.tree()["execute_tool task"] == ["invoke_agent task", "invoke_agent task"]
    turn = next(each for each in receiver.spans if each.name == "invoke_agent codex-cli")
    assert attributes(turn)["gen_ai.usage.input_tokens"] == 300
    assert turn.start_time_unix_nano == 1_700_000_001_000_000_000


def test_the_variables_of_opentelemetry_name_the_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stored_run.at(write_events(tmp_path / "log.ndjson", session_events()))
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        otel.send(run, "env", content=False)
    assert receiver.spans


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "401 Unauthorized"), (404, "404 Not Found; is /v1/traces the path"), (500, "500 ")],
)
def test_an_endpoint_that_refuses_is_an_error_of_the_export(
    tmp_path: Path, status: int, reason: str
) -> None:
    run = stored_run.at(write_events(tmp_path / "log.ndjson", session_events()))
    with OtlpReceiver(status=status) as receiver, pytest.raises(ProcessFailed) as caught:
        otel.send(run, f"{receiver.url}/v1/traces?key=secret-in-the-url", content=False)
    assert f"it answered {reason}" in str(caught.value)
    assert "secret-in-the-url" not in str(caught.value)


def test_an_endpoint_that_is_gone_is_named_once_and_no_other_logger_is_touched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        exporter = OtlpExporter(f"http://127.0.0.1:{closed.getsockname()[1]}")
        sending = Sender(exporter, "the collector")
        for _ in range(2):
            sending.put([span()])
            assert sending.flush(60) == 1
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "1 spans were not sent to the collector: connection refused"
    ]
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("opentelemetry.exporter") and isinstance(logger, logging.Logger):
            assert (logger.handlers, logger.propagate, logger.filters) == ([], True, []), name


def test_an_endpoint_that_hangs_is_given_up() -> None:
    with OtlpReceiver(hangs=True) as receiver:
        assert not OtlpExporter(receiver.url, timeout=0.2).send([span()])


def test_lost_spans_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with OtlpReceiver(hangs=True) as receiver:
        sending = Sender(OtlpExporter(receiver.url, timeout=60), "the collector")
        sending.put([span(number) for number in range(sender.MAX_QUEUE + 500)])
        with caplog.at_level(logging.WARNING, "corral.telemetry"):
            lost = sending.flush(0.2)
        assert lost == sender.MAX_QUEUE + 500
        assert f"{lost:,} spans were not sent to the collector: no answer" in caplog.text
        sending.put([span()])
        assert sending.flush(60) == 1  # it is not waited for again


def test_a_receiver_that_comes_back_gets_spans_again() -> None:
    class Flaky:
        is_up = False
        problem = ""

        def send(self, spans: object) -> bool:
            return self.is_up

    exporter = Flaky()
    sending = Sender(exporter, "flaky")
    sending.put([span()])
    assert sending.flush(60) == 1
    exporter.is_up = True
    for _ in range(100):  # some may be dropped: a failing receiver is hardly waited for
        sending.put([span()])
        if not sending.flush(60):
            return
    pytest.fail("it gets no spans")


def test_an_exporter_that_raises_does_not_end_the_thread() -> None:
    class Broken:
        problem = ""

        def send(self, spans: object) -> bool:
            raise RuntimeError("broken")

    sending = Sender(Broken(), "broken")
    for _ in range(2):
        sending.put([span()])
        assert sending.flush(60) == 1


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://host", "http://", "http://[::1"])
def test_an_address_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="not the URL of an OTLP endpoint"):
        sender.check(endpoint)


def test_a_missing_sdk_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        del name

    monkeypatch.setattr(sender, "find_spec", find_nothing)
    with pytest.raises(ConfigError, match=r"pip install 'corral\[otel\]'"):
        sender.check("env")


def test_the_path_of_traces_is_added_to_a_bare_address() -> None:
    assert sender.traces_url("http://localhost:4318/") == "http://localhost:4318/v1/traces"
    assert sender.traces_url("http://host/otlp/v1/traces") == "http://host/otlp/v1/traces"
