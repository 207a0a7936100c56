"""The spans of a batch: ``invoke_workflow NAME``, and below it a ``node ID`` for each task, which
the spans of the task's agent are below."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from corral._engine.batch.results import BatchResult
from corral._engine.batch.spec import BatchSpec
from corral._engine.batch.task_scheduler import NODE, BatchTask
from corral._pipelines.events import (
    PipelineCompleted,
    PipelineFailed,
    PipelineStarted,
    StepCompleted,
    StepFailed,
    StepStarted,
)
from corral._pipelines.run_spans import LivePipelineSpans
from corral._pipelines.templates import fill
from corral._system import clock

KIND = "batch_task"


class BatchSpans:
    """A batch has the spans of a pipeline run, whose nodes are the tasks."""

    def __init__(self, spec: BatchSpec, spans: LivePipelineSpans) -> None:
        self._name = spec.name
        self._template = spec.graph.nodes[NODE].text("prompt")
        self._spans = spans
        self._succeeded = self._failed = 0

    def end(self, result: BatchResult, asked: BatchTask) -> None:
        now, task, attempts = clock.now(), result.id, result.attempts
        self._spans.set_prompt(task, fill(self._template, asked.fields))
        began = now - result.seconds
        self._spans.add(StepStarted(task, KIND, run_id=self._name, node=task, ts=began))
        self._succeeded += result.ok
        self._failed += not result.ok
        self._spans.set_output(f"{self._succeeded} succeeded, {self._failed} failed")
        if result.ok:
            self._spans.add(
                StepCompleted(run_id=self._name, node=task, visit=task, attempts=attempts, ts=now)
            )
        else:
            reason = result.error.message if result.error is not None else result.status
            self._spans.add(
                StepFailed(task, reason, attempts, run_id=self._name, node=task, ts=now)
            )
        self._spans.set_prompt(task, "")  # not needed any more


@asynccontextmanager
async def batch_spans(spec: BatchSpec) -> AsyncGenerator[BatchSpans | None]:
    """Sends the spans of a batch, if its option ``otel`` says so; else None."""
    endpoint, name = spec.options.get("otel"), spec.name
    if endpoint is None:
        yield None
        return
    spans = LivePipelineSpans(endpoint, spec.options.get("env") or {})
    spans.add(PipelineStarted(name, run_id=name, ts=clock.now()))
    try:
        yield BatchSpans(spec, spans)
        spans.add(PipelineCompleted(run_id=name, ts=clock.now()))
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        spans.add(PipelineFailed(reason, cancelled=True, run_id=name, ts=clock.now()))
        raise
    finally:
        await spans.close()
