"""The events of a pipeline run: one stream, each event with the id of its node.

The events of a node's agent (``corral.events``) are in the same stream, with ``node`` set. The
driver of the run sets ``seq`` and ``ts``: the scheduler has no clock.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar, Literal

import msgspec

from corral import events
from corral._pipelines.scheduler.outcome import Status
from corral.events import Envelope
from corral.values import decoder_for


class PipelineStarted(Envelope, frozen=True, tag="pipeline_started"):
    """The run starts.

    ::

        if event.type == "pipeline_started":
            print(event.name, event.goal)
    """

    type: ClassVar[Literal["pipeline_started"]] = "pipeline_started"
    name: str
    goal: str = ""


class PipelineCompleted(Envelope, frozen=True, tag="pipeline_completed"):
    """The run has ended with success.

    ::

        if event.type == "pipeline_completed":
            print(event.reason)
    """

    type: ClassVar[Literal["pipeline_completed"]] = "pipeline_completed"
    reason: str = ""


class PipelineFailed(Envelope, frozen=True, tag="pipeline_failed"):
    """The run has failed or was cancelled.

    ::

        if event.type == "pipeline_failed":
            print("cancelled" if event.cancelled else event.reason)
    """

    type: ClassVar[Literal["pipeline_failed"]] = "pipeline_failed"
    reason: str = ""
    cancelled: bool = False


class StepStarted(Envelope, frozen=True, tag="step_started"):
    """A node starts.

    ::

        if event.type == "step_started":
            print(event.node, event.kind)
    """

    type: ClassVar[Literal["step_started"]] = "step_started"
    visit: str
    kind: str


class StepCompleted(Envelope, frozen=True, tag="step_completed"):
    """A node has ended.

    ::

        if event.type == "step_completed":
            print(event.node, event.status, event.notes)
    """

    type: ClassVar[Literal["step_completed"]] = "step_completed"
    visit: str
    status: Status = "success"
    preferred_label: str = ""
    notes: str = ""
    attempts: int = 1


class StepFailed(Envelope, frozen=True, tag="step_failed"):
    """A node has failed.

    ::

        if event.type == "step_failed":
            print(event.node, event.reason)
    """

    type: ClassVar[Literal["step_failed"]] = "step_failed"
    visit: str
    reason: str = ""
    attempts: int = 1


class StepRetrying(Envelope, frozen=True, tag="step_retrying"):
    """An attempt at a node has failed; another one follows.

    ::

        if event.type == "step_retrying":
            print(f"{event.node}: {event.reason}; again in {event.delay} s")
    """

    type: ClassVar[Literal["step_retrying"]] = "step_retrying"
    visit: str
    attempt: int
    """The attempt that failed."""
    delay: float
    """Seconds until the next attempt."""
    reason: str = ""


class ParallelStarted(Envelope, frozen=True, tag="parallel_started"):
    """A parallel node starts its branches.

    ::

        if event.type == "parallel_started":
            print(event.node, event.branches)
    """

    type: ClassVar[Literal["parallel_started"]] = "parallel_started"
    visit: str
    branches: tuple[str, ...]


class BranchStarted(Envelope, frozen=True, tag="parallel_branch_started"):
    """A branch of a parallel node starts.

    ::

        if event.type == "parallel_branch_started":
            print(event.branch)
    """

    type: ClassVar[Literal["parallel_branch_started"]] = "parallel_branch_started"
    visit: str
    branch: str


class BranchCompleted(Envelope, frozen=True, tag="parallel_branch_completed"):
    """A branch of a parallel node has ended.

    ::

        if event.type == "parallel_branch_completed":
            print(event.branch, event.status)
    """

    type: ClassVar[Literal["parallel_branch_completed"]] = "parallel_branch_completed"
    visit: str
    branch: str
    status: str
    """The status of an outcome, or ``cancelled``."""


class ParallelCompleted(Envelope, frozen=True, tag="parallel_completed"):
    """All branches of a parallel node have ended.

    ::

        if event.type == "parallel_completed":
            print(event.node, event.status)
    """

    type: ClassVar[Literal["parallel_completed"]] = "parallel_completed"
    visit: str
    status: Status


class InterviewStarted(Envelope, frozen=True, tag="interview_started"):
    """A person is asked a question.

    ::

        if event.type == "interview_started":
            print(event.question, event.choices)
    """

    type: ClassVar[Literal["interview_started"]] = "interview_started"
    visit: str
    question: str
    choices: tuple[str, ...] = ()
    timeout: float | None = None
    """Seconds that the gate waits, from the time of this event on."""
    at_deadline: str = ""
    """What happens then."""


class InterviewCompleted(Envelope, frozen=True, tag="interview_completed"):
    """A question was answered.

    ::

        if event.type == "interview_completed":
            print(event.answer, event.by)
    """

    type: ClassVar[Literal["interview_completed"]] = "interview_completed"
    visit: str
    answer: str
    """What was chosen, and after a colon the comment; or the text."""
    by: str = ""


class InterviewTimeout(Envelope, frozen=True, tag="interview_timeout"):
    """A question was not answered in time.

    ::

        if event.type == "interview_timeout":
            print(f"nobody answered {event.node}")
    """

    type: ClassVar[Literal["interview_timeout"]] = "interview_timeout"
    visit: str


class CheckpointSaved(Envelope, frozen=True, tag="checkpoint_saved"):
    """The state of the run was saved.

    ::

        if event.type == "checkpoint_saved":
            print("saved", event.ts)
    """

    type: ClassVar[Literal["checkpoint_saved"]] = "checkpoint_saved"


PipelineEvent = (
    PipelineStarted
    | PipelineCompleted
    | PipelineFailed
    | StepStarted
    | StepCompleted
    | StepFailed
    | StepRetrying
    | ParallelStarted
    | BranchStarted
    | BranchCompleted
    | ParallelCompleted
    | InterviewStarted
    | InterviewCompleted
    | InterviewTimeout
    | CheckpointSaved
)
RunEvent = PipelineEvent | events.Event

_encoder = msgspec.json.Encoder()


@cache
def _decoder() -> msgspec.json.Decoder[RunEvent]:
    return decoder_for(RunEvent)


def to_json(event: RunEvent) -> bytes:
    """The event as one line of JSON, without the newline.

    ::

        print(pipelines.events.to_json(event).decode())
    """
    return _encoder.encode(event)


def from_json(line: bytes | str) -> RunEvent:
    """Decode an event of a pipeline, or of an agent in it.

    ::

        events = [pipelines.events.from_json(line) for line in open("events.ndjson", "rb")]
    """
    return _decoder().decode(line)
