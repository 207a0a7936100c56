"""The result of a pipeline run, as its caller sees it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from corral.pipelines.execution.memory_runner import RunResult
from corral.pipelines.execution.run_dir import file_name
from corral.pipelines.scheduler.commands import Question
from corral.pipelines.scheduler.outcome import Outcome
from corral.values import Json

if TYPE_CHECKING:
    from corral.durable.open_questions import OpenQuestion
    from corral.durable.payloads import RunOutput
    from corral.durable.query import Shown


class PipelineResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    run: str
    """The id of the run."""
    status: Literal["success", "fail", "cancelled", "waiting"]
    """``waiting``: the run waits for people and nobody was there to ask; it can be answered and
    resumed."""
    reason: str = ""
    context: dict[str, Json] = {}
    completed: list[str] = []
    """Nodes, in the order in which they ended."""
    outcomes: dict[str, Outcome] = {}
    questions: list[Question] = []
    """The open questions of a waiting run."""
    cost_usd: float = 0.0
    tokens: int = 0
    folder: str = ""
    branch: str = ""
    """With ``repository``: the branch with the changes; empty if nothing was changed."""
    commit: str = ""
    files: list[str] = []
    """Files that were changed on the branch: the first 1,000."""
    artifacts: list[str] = []
    """With ``artifacts``: the names of the uploaded files."""
    warnings: list[str] = []
    """What could not be saved at the end, and where it is."""

    @property
    def ok(self) -> bool:
        return self.status == "success"

    @property
    def text(self) -> str:
        """The last answer of an agent or a model; possibly shortened if the run directory is not on
        this machine."""
        for node in reversed(self.completed):
            try:
                return (Path(self.folder) / file_name(node) / "response.md").read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
        return str(self.context.get("last_response", ""))


def result_from_output(name: str, output: RunOutput | RunResult, folder: Path) -> PipelineResult:
    saved = {} if isinstance(output, RunResult) else output.saved
    return PipelineResult(
        run=name,
        status=cast("Any", output.status),
        reason=output.reason,
        context=output.context,
        completed=output.completed,
        outcomes=output.outcomes,
        cost_usd=output.cost_usd or 0.0,
        tokens=output.tokens or 0,
        folder=str(folder),
        **saved_fields(saved),
    )


def saved_fields(saved: dict[str, Json]) -> dict[str, Any]:
    """The saved branch and artifacts of a run, as fields of its result."""
    work, uploaded = cast("dict[str, Any]", saved.get("workspace", {})), saved.get("artifacts", [])
    warnings: list[str] = []
    if "error" in work:
        warnings.append(f"its work could not be saved: {work['error']}; see {work['folder']}")
    if isinstance(uploaded, str):
        warnings.append(uploaded)
    return {
        "branch": work.get("branch", ""),
        "commit": work.get("commit", ""),
        "files": work.get("files", []),
        "artifacts": uploaded if isinstance(uploaded, list) else [],
        "warnings": warnings,
    }


def waiting_result(shown: Shown, open_questions: list[OpenQuestion]) -> PipelineResult:
    """The result of a run that waits for people."""
    state = shown.state
    return PipelineResult(
        run=shown.id,
        status="waiting",
        reason="it waits for a person",
        context=state.context,
        completed=state.completed,
        outcomes=state.outcomes,
        questions=[each.question for each in open_questions],
        cost_usd=state.cost_usd,
        tokens=state.tokens,
        folder=shown.folder,
    )


def result_to_json(result: PipelineResult) -> dict[str, Json]:
    """As JSON. Each outcome has its status, which the encoder would omit for a success."""
    fields = cast("dict[str, Json]", msgspec.to_builtins(result))
    fields["outcomes"] = outcomes(result.outcomes)
    return fields


def outcomes(found: dict[str, Outcome]) -> dict[str, Json]:
    return {
        node: {"status": outcome.status, **msgspec.to_builtins(outcome)}
        for node, outcome in found.items()
    }
