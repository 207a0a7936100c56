"""The option ``otel``: spans of real runs while they go on, and TRACEPARENT."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.otlp_receiver import OtlpReceiver, attributes
from support.scripted_agent import scripted_options

import corral
from corral._engine import memory_runner
from corral._pipelines.execution.handlers import NodeResources
from corral._pipelines.loader import load
from corral._telemetry import sender, trace_context
from corral._telemetry.trace_context import TraceContext
from corral.errors import ConfigError

PARENT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
SCRIPT = "init\nsh echo $TRACEPARENT > parent.txt\ntext Done.\nresult"
PIPELINE = """digraph ship {
    goal = "Ship"
    start [shape=Mdiamond]
    command [shape=parallelogram, tool_command="echo $TRACEPARENT > command.txt"]
    build [agent="gemini-cli"
           prompt="init\\nsh echo $TRACEPARENT > agent.txt\\ntext Done.\\nresult"]
    done [shape=Msquare]
    start -> command -> build -> done
}"""


async def test_a_run_sends_its_spans_and_hands_its_own_on(workspace: Path) -> None:
    with OtlpReceiver() as receiver:
        options = scripted_options(workspace, otel=receiver.url, env={"TRACEPARENT": PARENT.header})
        result = await corral.run("gemini-cli", SCRIPT, **options)
    assert result.ok
    (turn,) = [span for span in receiver.spans if span.name == "invoke_agent gemini-cli"]
    assert turn.trace_id.hex() == PARENT.trace_id
    assert turn.parent_span_id.hex() == PARENT.span_id
    assert attributes(turn)["gen_ai.provider.name"] == "gcp.gemini"
    assert not [span for span in receiver.spans if b"Done." in span.SerializeToString()]
    handed_on = trace_context.parse((workspace / "parent.txt").read_text())
    assert handed_on == TraceContext(PARENT.trace_id, turn.span_id.hex())


@pytest.mark.deep
async def test_the_callers_active_span_is_the_parent(workspace: Path) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("caller")
    with OtlpReceiver() as receiver:
        options = scripted_options(workspace, otel=receiver.url)
        with tracer.start_as_current_span("async"):
            await corral.run("gemini-cli", "init\ntext Done.\nresult", **options)

        def use_session() -> None:
            with (
                corral.session_sync("gemini-cli", **options) as session,
                tracer.start_as_current_span("session"),
            ):
                session.run(SCRIPT)

        await asyncio.to_thread(use_session)
    turns = [span for span in receiver.spans if span.name == "invoke_agent gemini-cli"]
    callers = [span.context for span in exporter.get_finished_spans() if span.context is not None]
    assert [turn.parent_span_id.hex() for turn in turns] == [f"{c.span_id:016x}" for c in callers]
    assert [turn.trace_id.hex() for turn in turns] == [f"{c.trace_id:032x}" for c in callers]
    handed_on = trace_context.parse((workspace / "parent.txt").read_text())
    assert handed_on == TraceContext(turns[1].trace_id.hex(), turns[1].span_id.hex())


async def test_without_otel_the_callers_span_is_handed_on(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", PARENT.header)
    await corral.run("gemini-cli", SCRIPT, **scripted_options(workspace))
    assert (workspace / "parent.txt").read_text().strip() == PARENT.header


async def test_texts_are_sent_if_the_usual_switch_is_set(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    with OtlpReceiver() as receiver:
        await corral.run("gemini-cli", SCRIPT, **scripted_options(workspace, otel=receiver.url))
    (turn,) = [span for span in receiver.spans if span.name == "invoke_agent gemini-cli"]
    assert "text Done." in str(attributes(turn)["gen_ai.input.messages"])
    assert '"Done."' in str(attributes(turn)["gen_ai.output.messages"])


async def test_an_endpoint_that_hangs_does_not_change_the_result(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender, "FLUSH_SECONDS", 0.3)
    with OtlpReceiver(hangs=True) as receiver:
        options = scripted_options(workspace, otel=receiver.url)
        result = await corral.run("gemini-cli", SCRIPT, **options)
    assert (result.ok, result.text) == (True, "Done.")
    assert "spans were not sent" in caplog.text
    assert "no answer within 0.3 s" in caplog.text


async def test_a_wrong_endpoint_is_refused_before_anything_starts(workspace: Path) -> None:
    with pytest.raises(ConfigError, match="OTLP endpoint"):
        await corral.run("gemini-cli", SCRIPT, **scripted_options(workspace, otel="collector"))
    assert not (workspace / "parent.txt").exists()


async def test_a_pipeline_run_is_one_tree_over_its_agents_and_commands(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    (tmp_path / "ship.dot").write_text(PIPELINE)
    graph = load(tmp_path / "ship.dot")
    with OtlpReceiver() as receiver:
        options = scripted_options(workspace, otel=receiver.url, policy="all")
        del options["cwd"]
        async with NodeResources(agent="gemini-cli", options=options) as resources:
            result = await memory_runner.MemoryRun(
                graph, resources=resources, workspace=workspace
            ).drive()
    assert result.ok, result.reason
    found = receiver.tree()
    assert found[""] == ["invoke_workflow ship"]
    assert found["invoke_workflow ship"] == [
        "node build",
        "node command",
        "node done",
        "node start",
    ]
    assert found["node build"] == ["invoke_agent gemini-cli"]
    for span in receiver.spans:
        if span.name == "node build":
            assert attributes(span)["gen_ai.operation.name"] == "execute_node"
            assert "text Done." in str(attributes(span)["gen_ai.input.messages"])
        if span.name == "invoke_workflow ship":
            assert attributes(span)["output.value"] == "Done."
            assert "Done." in str(attributes(span)["gen_ai.output.messages"])
    by_name = {span.name: span.span_id.hex() for span in receiver.spans}
    for name, file in (("node command", "command.txt"), ("invoke_agent gemini-cli", "agent.txt")):
        handed_on = trace_context.parse((workspace / file).read_text())
        assert handed_on is not None
        assert handed_on.span_id == by_name[name]
