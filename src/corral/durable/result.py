"""What a run of a pipeline came to, as its caller sees it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from corral.events import Json
from corral.pipelines.execution.memory_runner import RunResult
from corral.pipelines.execution.run_dir import file_name
from corral.pipelines.scheduler.commands import Question
from corral.pipelines.scheduler.outcome import Outcome

if TYPE_CHECKING:
    from corral.durable.open_questions import OpenQuestion
    from corral.durable.payloads import RunOutput
    from corral.durable.query import Shown


class PipelineResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    run: str
    """Its id."""
    status: Literal["success", "fail", "cancelled", "waiting"]
    """``waiting``: for people, and there was nobody to ask; it can be answered and resumed."""
    reason: str = ""
    context: dict[str, Json] = {}
    completed: list[str] = []
    """Nodes, in the order of their ends."""
    outcomes: dict[str, Outcome] = {}
    questions: list[Question] = []
    """Where it waits."""
    cost_usd: float = 0.0
    tokens: int = 0
    folder: str = ""
    branch: str = ""
    """With ``repository``: where its work is, unless nothing was changed."""
    commit: str = ""
    files: list[str] = []
    """That are changed there: the first 1,000."""
    artifacts: list[str] = []
    """With ``artifacts``: what was put there."""
    warnings: list[str] = []
    """What could not be kept at the end, and where it is."""

    @property
    def ok(self) -> bool:
        return self.status == "success"

    @property
    def text(self) -> str:
        """The last answer of an agent or a model, whole where the run folder is at hand."""
        for node in reversed(self.completed):
            try:
                return (Path(self.folder) / file_name(node) / "response.md").read_text("utf-8")
            except (OSError, UnicodeDecodeError):
                continue
        return str(self.context.get("last_response", ""))


def ended(name: str, came: RunOutput | RunResult, folder: Path) -> PipelineResult:
    left = {} if isinstance(came, RunResult) else came.left
    return PipelineResult(
        run=name,
        status=cast("Any", came.status),
        reason=came.reason,
        context=came.context,
        completed=came.completed,
        outcomes=came.outcomes,
        cost_usd=came.cost_usd or 0.0,
        tokens=came.tokens or 0,
        folder=str(folder),
        **kept(left),
    )


def kept(left: dict[str, Json]) -> dict[str, Any]:
    """What a run has left, as fields of its result."""
    work, put = cast("dict[str, Any]", left.get("workspace", {})), left.get("artefacts", [])
    warnings: list[str] = []
    if "error" in work:
        warnings.append(f"its work could not be kept: {work['error']}; see {work['folder']}")
    if isinstance(put, str):
        warnings.append(put)
    return {
        "branch": work.get("branch", ""),
        "commit": work.get("commit", ""),
        "files": work.get("files", []),
        "artifacts": put if isinstance(put, list) else [],
        "warnings": warnings,
    }


def waiting(shown: Shown, asked: list[OpenQuestion]) -> PipelineResult:
    """Of a run that waits for people."""
    state = shown.state
    return PipelineResult(
        run=shown.id,
        status="waiting",
        reason="waits for a person",
        context=state.context,
        completed=state.completed,
        outcomes=state.outcomes,
        questions=[each.question for each in asked],
        cost_usd=state.cost_usd,
        tokens=state.tokens,
        folder=shown.folder,
    )


def plain(result: PipelineResult) -> dict[str, Json]:
    """As JSON, each outcome with its status: that of a success would be left out."""
    whole = cast("dict[str, Json]", msgspec.to_builtins(result))
    whole["outcomes"] = outcomes(result.outcomes)
    return whole


def outcomes(found: dict[str, Outcome]) -> dict[str, Json]:
    return {
        node: {"status": outcome.status, **msgspec.to_builtins(outcome)}
        for node, outcome in found.items()
    }
