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
    """The run starts."""

    type: ClassVar[Literal["pipeline_started"]] = "pipeline_started"
    name: str
    goal: str = ""


class PipelineCompleted(Envelope, frozen=True, tag="pipeline_completed"):
    """The run has ended with success."""

    type: ClassVar[Literal["pipeline_completed"]] = "pipeline_completed"
    reason: str = ""


class PipelineFailed(Envelope, frozen=True, tag="pipeline_failed"):
    """The run has failed or was cancelled."""

    type: ClassVar[Literal["pipeline_failed"]] = "pipeline_failed"
    reason: str = ""
    cancelled: bool = False


class StepStarted(Envelope, frozen=True, tag="step_started"):
    """A node starts."""

    type: ClassVar[Literal["step_started"]] = "step_started"
    visit: str
    kind: str


class StepCompleted(Envelope, frozen=True, tag="step_completed"):
    """A node has ended."""

    type: ClassVar[Literal["step_completed"]] = "step_completed"
    visit: str
    status: Status = "success"
    preferred_label: str = ""
    notes: str = ""
    attempts: int = 1


class StepFailed(Envelope, frozen=True, tag="step_failed"):
    """A node has failed."""

    type: ClassVar[Literal["step_failed"]] = "step_failed"
    visit: str
    reason: str = ""
    attempts: int = 1


class StepRetrying(Envelope, frozen=True, tag="step_retrying"):
    """An attempt at a node has failed; another one follows."""

    type: ClassVar[Literal["step_retrying"]] = "step_retrying"
    visit: str
    attempt: int
    """The attempt that failed."""
    delay: float
    """Seconds until the next attempt."""
    reason: str = ""


class ParallelStarted(Envelope, frozen=True, tag="parallel_started"):
    """A parallel node starts its branches."""

    type: ClassVar[Literal["parallel_started"]] = "parallel_started"
    visit: str
    branches: tuple[str, ...]


class BranchStarted(Envelope, frozen=True, tag="parallel_branch_started"):
    """A branch of a parallel node starts."""

    type: ClassVar[Literal["parallel_branch_started"]] = "parallel_branch_started"
    visit: str
    branch: str


class BranchCompleted(Envelope, frozen=True, tag="parallel_branch_completed"):
    """A branch of a parallel node has ended."""

    type: ClassVar[Literal["parallel_branch_completed"]] = "parallel_branch_completed"
    visit: str
    branch: str
    status: str
    """The status of an outcome, or ``cancelled``."""


class ParallelCompleted(Envelope, frozen=True, tag="parallel_completed"):
    """All branches of a parallel node have ended."""

    type: ClassVar[Literal["parallel_completed"]] = "parallel_completed"
    visit: str
    status: Status


class InterviewStarted(Envelope, frozen=True, tag="interview_started"):
    """A person is asked a question."""

    type: ClassVar[Literal["interview_started"]] = "interview_started"
    visit: str
    question: str
    choices: tuple[str, ...] = ()
    timeout: float | None = None
    """Seconds that the gate waits, from the time of this event on."""
    at_deadline: str = ""
    """What happens then."""


class InterviewCompleted(Envelope, frozen=True, tag="interview_completed"):
    """A question was answered."""

    type: ClassVar[Literal["interview_completed"]] = "interview_completed"
    visit: str
    answer: str
    """What was chosen, and after a colon the comment; or the text."""
    by: str = ""


class InterviewTimeout(Envelope, frozen=True, tag="interview_timeout"):
    """A question was not answered in time."""

    type: ClassVar[Literal["interview_timeout"]] = "interview_timeout"
    visit: str


class CheckpointSaved(Envelope, frozen=True, tag="checkpoint_saved"):
    """The state of the run was saved."""

    type: ClassVar[Literal["checkpoint_saved"]] = "checkpoint_saved"
    pass


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
    """The event as one line of JSON, without the newline."""
    return _encoder.encode(event)


def from_json(line: bytes | str) -> RunEvent:
    """Decode an event of a pipeline, or of an agent in it."""
    return _decoder().decode(line)
