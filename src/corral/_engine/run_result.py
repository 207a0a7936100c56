"""The results of runs of pipelines and workflows, and how they are shown and stored as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec
from msgspec.structs import asdict

from corral._core.display import Card, Displayed, count, short_traceback, spent
from corral._engine import open_questions, query
from corral._engine.payloads import PipelineOutput
from corral._pipelines.execution.run_dir import file_name
from corral._pipelines.scheduler.commands import Question
from corral._pipelines.scheduler.outcome import RESULT, Outcome
from corral._protocol.schema import schema_of
from corral._system import fs
from corral._workflows.definition import Workflow
from corral.errors import ConfigError, ProcessFailed
from corral.values import (
    Cost,
    Json,
    JsonObject,
    Output,
    Usage,
    ValueT,
    as_object,
    as_text,
    as_texts,
)

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class SavedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has saved at its end: fields of its result."""

    branch: str = ""
    """With ``repository``: the branch with the changes; empty if nothing was changed."""
    commit: str = ""
    files: list[str] = []
    """Files that were changed on the branch: the first 1,000."""
    branches: list[str] = []
    """Branches with work of parallel branches that was not merged."""
    artifacts: list[str] = []
    """With ``artifacts``: the names of the uploaded files."""
    warnings: list[str] = []
    """What could not be saved at the end, and where it is."""


class RunResult(Displayed, SavedWork, frozen=True, kw_only=True):
    """What the results of pipelines and workflows have in common."""

    run: str
    """The id of the run."""
    status: Literal["success", "fail", "cancelled", "waiting"]
    """``waiting``: the run waits for people, and there was no interviewer; it can be answered and
    resumed."""
    reason: str = ""
    outcomes: dict[str, Outcome] = {}
    questions: list[Question] = []
    """The open questions of a waiting run."""
    cost_usd: float = 0.0
    tokens: int = 0
    folder: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "success"

    def _card_of(self, parts: Iterable[str], text: str) -> Card:
        """What a Python prompt and a notebook show of the result, with the ``text`` of a
        success."""
        facts = (
            self.run,
            *parts,
            *count(len(self.questions), "open question"),
            *spent(Usage(input=self.tokens or None), Cost(usd=self.cost_usd or None)),
        )
        asked = "\n".join(question.text for question in self.questions)
        title = f"{type(self).__name__} {self.status}"
        return Card(title, facts, asked or (text if self.ok else self.reason))


class PipelineResult(RunResult, frozen=True, kw_only=True):
    """The result of a run.

    ::

        result = pipelines.run_sync("review.dot")
        if result.status == "waiting":
            print(result.run, [question.text for question in result.questions])
    """

    context: dict[str, Json] = {}
    completed: list[str] = []
    """Nodes, in the order in which they ended."""

    def _card(self) -> Card:
        parts = count(len(self.completed), "finished node")
        return self._card_of(parts, as_text(self.context.get("last_response")))

    @short_traceback
    def value(self, key: str, output: Output[ValueT] | None = None) -> ValueT:
        """The value of ``key`` in the context, such as ``review.output`` of a node ``review`` with
        an ``output_schema``. With ``output``, a type or a JSON Schema, it is a value of that type.

        ::

            result = pipelines.run_sync("review.dot")
            for problem in result.value("review.output", Review).problems:
                print(problem)

        Raises ``ConfigError`` if the run has no such value, and ``SchemaNotMet`` if it does not
        fit.
        """
        if key not in self.context:
            known = sorted(name for name in self.context if not name.startswith("internal."))
            raise ConfigError(
                f"the run {self.run} has no value {key!r}", hint=f"It has: {', '.join(known)}."
            )
        value = self.context[key]
        return cast("ValueT", value) if output is None else schema_of(output).typed_value(value)

    @property
    def text(self) -> str:
        """The last answer of an agent or a model; possibly shortened if the run directory is not on
        this machine."""
        for node in reversed(self.completed):
            try:
                return fs.read_text(Path(self.folder) / file_name(node) / "response.md")
            except (OSError, UnicodeDecodeError):
                continue
        return str(self.context.get("last_response", ""))


class WorkflowResult(RunResult, msgspec.Struct, Generic[R_co], frozen=True, kw_only=True):
    """The result of a run of a workflow.

    ::

        result = workflows.run_sync(fix, {"issue": "The login fails"})
        if result.ok:
            print(result.output)
    """

    _output: Any = msgspec.field(default=None, name="output")
    steps: list[str] = []
    """The paths of the steps, in the order in which they ended."""

    @property
    def output(self) -> R_co:
        """What the function returned. Raises ``ProcessFailed`` if it did not."""
        raise_if_failed(self)
        value: R_co = self._output
        return value

    def _card(self) -> Card:
        return self._card_of(count(len(self.steps), "step"), str(self._output))


def workflow_result(result: PipelineResult, workflow: Workflow[..., R]) -> WorkflowResult[R]:
    """The result with the value that the function returned."""
    output = workflow.typed_result(result.context.get(RESULT)) if result.ok else None
    common = {name: getattr(result, name) for name in RunResult.__struct_fields__}
    return WorkflowResult(_output=output, steps=result.completed, **common)


def raise_if_failed(result: RunResult) -> None:
    """Raises ``ProcessFailed`` for any result but a success."""
    if not result.ok:
        raise ProcessFailed(f"the run {result.run} ended as {result.status}: {result.reason}")


def text_of(result: PipelineResult, *, is_workflow: bool) -> str:
    """What a run that has ended shows: the last answer of a pipeline; what a workflow returned, as
    text or JSON."""
    if not is_workflow:
        return result.text
    value = result.context.get(RESULT)
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def result_from_output(name: str, output: PipelineOutput, folder: Path) -> PipelineResult:
    fields = asdict(output) | asdict(saved_work(output.saved))
    del fields["saved"]
    return PipelineResult(run=name, folder=str(folder), **fields)


def saved_work(saved: JsonObject) -> SavedWork:
    """The saved branch and artifacts of a run (``PipelineOutput.saved``)."""
    work, uploaded = as_object(saved.get("workspace")), saved.get("artifacts")
    warnings: list[str] = []
    if "error" in work:
        warnings.append(f"its work could not be saved: {work['error']}; see {work['folder']}")
    if isinstance(uploaded, str):
        warnings.append(uploaded)
    return SavedWork(
        branch=as_text(work.get("branch")),
        commit=as_text(work.get("commit")),
        files=as_texts(work.get("files")),
        branches=as_texts(saved.get("branches")),
        artifacts=as_texts(uploaded),
        warnings=warnings,
    )


def waiting_result(
    shown: query.RunDetails, questions: list[open_questions.RunQuestion]
) -> PipelineResult:
    """The result of a run that waits for people."""
    state = shown.state
    return PipelineResult(
        run=shown.id,
        status="waiting",
        reason="it waits for a person",
        context=state.context,
        completed=state.completed,
        outcomes=state.outcomes,
        questions=[each.question for each in questions],
        cost_usd=state.cost_usd,
        tokens=state.tokens,
        folder=shown.folder,
    )


def result_to_json(result: PipelineResult) -> dict[str, Json]:
    """As JSON. Each outcome has its status, which the encoder would omit for a success."""
    first: dict[str, Json] = {"run": result.run, "status": result.status}
    fields = as_object(msgspec.to_builtins(result))
    return {**first, **fields, "outcomes": outcomes(result.outcomes)}


def outcomes(found: dict[str, Outcome]) -> dict[str, Json]:
    return {
        node: {"status": outcome.status, **msgspec.to_builtins(outcome)}
        for node, outcome in found.items()
    }
