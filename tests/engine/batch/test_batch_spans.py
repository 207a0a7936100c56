"""The option ``otel`` of a batch: one trace with a span for the batch and one for each task."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from support.otlp_receiver import OtlpReceiver, attributes
from support.scripted_agent import scripted_options

import corral


@pytest.mark.deep
async def test_a_batch_is_one_tree_below_the_callers_span(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    prompts = ["init\ntext Done.\nresult", "init\nexit 3"]
    with OtlpReceiver() as receiver:
        options = scripted_options(workspace, otel=receiver.url)
        with TracerProvider().get_tracer("caller").start_as_current_span("caller") as caller:
            report = await corral.batch(
                prompts, agent="gemini-cli", name="two", attempts=1, durable=False, **options
            )
    assert (report.succeeded, report.failed) == (1, 1)
    tree = receiver.tree()
    assert tree[""] == ["invoke_workflow two"]
    assert tree["invoke_workflow two"] == ["node 1", "node 2"]
    assert tree["node 1"] == tree["node 2"] == ["invoke_agent gemini-cli"]
    by_name = {span.name: span for span in receiver.spans}
    caller_id = f"{caller.get_span_context().span_id:016x}"
    assert by_name["invoke_workflow two"].parent_span_id.hex() == caller_id
    assert attributes(by_name["node 2"])["error.type"] == "node_failed"
    assert attributes(by_name["node 1"])["gen_ai.operation.name"] == "execute_node"
    assert attributes(by_name["node 1"])["input.value"] == prompts[0]
    root = attributes(by_name["invoke_workflow two"])
    assert root["output.value"] == "1 succeeded, 1 failed"
