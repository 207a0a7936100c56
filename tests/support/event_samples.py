"""Event streams for the tests of exports: a session with everything, a pipeline run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from corral._pipelines.events import (
    InterviewCompleted,
    InterviewStarted,
    PipelineCompleted,
    PipelineStarted,
    RunEvent,
    StepCompleted,
    StepFailed,
    StepRetrying,
    StepStarted,
    to_json,
)
from corral._sessions import store
from corral._system import paths
from corral.events import (
    Done,
    Error,
    Event,
    FileChange,
    Init,
    PermissionDecision,
    Plan,
    PlanEntry,
    Text,
    Thinking,
    ToolOutput,
    ToolResult,
    ToolUse,
    UsageReport,
    Vendor,
)
from corral.values import Cost, FileChanged, Usage

START = 1_700_000_000.0
SESSION = "20261117-040000-abc123"


def _numbered(events: Sequence[Event], run_id: str, start: float) -> Iterator[Event]:
    for number, event in enumerate(events, 1):
        yield replace(
            event, seq=number, ts=start + number, run_id=run_id, agent="codex-cli", session_id="v1"
        )


def first_turn() -> list[Event]:
    """Thinking, a plan, two tool calls at once, a sub-agent with a sub-agent, a denied call."""
    return [
        Init(model="gpt-5", agent_version="1.2.3", cwd="/workspace", tools=("shell", "task")),
        Vendor("prompt", "Fix the **parser**"),
        Vendor("prompt_files", {"image": ["shots/before.png"], "audio": [], "file": []}),
        Thinking("I should "),
        Thinking("look first."),
        Text("Let me look."),
        Plan((PlanEntry("look", "completed"), PlanEntry("fix", "in_progress"))),
        ToolUse("a", "shell", kind="execute", title="ls -l", input={"command": "ls -l"}),
        ToolUse("b", "read", kind="read", title="read x.py", input={"path": "x.py"}),
        ToolOutput("a", "x.py\n"),
        ToolResult("a", "success", output="x.py\n", duration_ms=12),
        ToolResult("b", "success", output="import y\n"),
        UsageReport(Usage(input=100, output=20), cost=Cost(0.01, "reported")),
        ToolUse("t", "task", kind="think", title="ask an expert", input={"prompt": "why?"}),
        Text("It is a comma.", parent="t"),
        ToolUse("t1", "shell", kind="execute", input="grep ,", parent="t"),
        ToolResult("t1", "error", error="exit code 1", parent="t"),
        ToolUse("t2", "task", kind="think", input=None, parent="t"),
        Text("Innermost.", parent="t2"),
        ToolResult("t2", "success", output="inner answer", parent="t"),
        Text("So: a comma.", parent="t"),
        ToolResult("t", "success", output="a comma"),
        UsageReport(Usage(input=250, output=60), cost=Cost(0.03, "reported")),
        ToolUse("d", "shell", kind="execute", title="rm -rf /", input={"command": "rm -rf /"}),
        PermissionDecision("r1", "deny", "policy", call_id="d", rule="shell: deny"),
        ToolResult("d", "denied", error="the policy denies it"),
        Text("Fixed: <script>alert(1)</script> and `<b>`"),
        FileChange("/workspace/x.py", "modified"),
        UsageReport(Usage(input=300, output=80), cost=Cost(0.04, "reported")),
        Done(
            status="success",
            stop_reason="end_turn",
            model="gpt-5-2026",
            usage=Usage(input=300, output=80, reasoning=10, cache_read=50, coverage="complete"),
            cost=Cost(0.04, "reported"),
            files=(FileChanged("/workspace/x.py", "modified"),),
            duration_ms=28_000,
            text="Fixed",
        ),
    ]


def second_turn() -> list[Event]:
    """A turn that was interrupted while a tool ran."""
    error = Error(
        "interrupted", "the run was cancelled", facts={"stderr": "warning: token expires soon"}
    )
    return [
        Init(model="gpt-5", agent_version="1.2.3", resumed=True),
        Vendor("prompt", "And now?"),
        ToolUse("a", "shell", kind="execute", title="sleep 9", input={"command": "sleep 9"}),
        ToolResult("a", "cancelled"),
        error,
        Done(status="interrupted", usage=Usage(input=40, output=2), error=error, duration_ms=900),
    ]


def session_events() -> list[Event]:
    return [
        *_numbered(first_turn(), f"{SESSION}.1", START),
        *_numbered(second_turn(), f"{SESSION}.2", START + 100),
    ]


def pipeline_events() -> list[RunEvent]:
    """A run with a command that is retried, an agent with a sub-agent, and a gate."""
    agent = [replace(event, node="build") for event in _numbered(first_turn(), "node-1.1", START)]
    events: list[RunEvent] = [
        PipelineStarted("ship", goal="Ship it"),
        StepStarted("test.1", "tool", node="test"),
        StepRetrying("test.1", 1, 0.1, "exit 1", node="test"),
        StepCompleted("test.1", notes="ok", attempts=2, node="test"),
        StepStarted("build.1", "codergen", node="build"),
        *agent,
        StepCompleted("build.1", notes="built", node="build"),
        StepStarted("ask.1", "wait.human", node="ask"),
        InterviewStarted("ask.1", "Ship it?", ("Yes", "No"), node="ask"),
        InterviewCompleted("ask.1", "Yes", by="ada", node="ask"),
        StepFailed("ask.1", "nobody", node="ask"),
        PipelineCompleted(),
    ]
    return [
        event
        if event.node == "build" and event.run_id
        else replace(event, seq=number, ts=START + number, run_id="ship-1a2b")
        for number, event in enumerate(events, 1)
    ]


def write_events(path: Path, events: Sequence[RunEvent]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(to_json(event) + b"\n" for event in events))
    return path


def stored_session(events: Sequence[Event] | None = None, *, cwd: str = "/workspace") -> str:
    """Store a session in corral's home; returns its id."""
    record = store.create("codex-cli", cwd)
    paths.make_dir(record.folder)
    record.meta.updated, record.meta.turns = time.time(), 2
    record.meta.title, record.meta.status = "Fix the parser", "success"
    record.append_events(list(session_events() if events is None else events))
    record.save()
    record.close(keep=True)
    return record.meta.id


def stored_pipeline(folder: Path) -> Path:
    """A run folder, with the events of its agent where the agent's visit is."""
    events = pipeline_events()
    ours = [event for event in events if event.run_id == "ship-1a2b"]
    agents = [event for event in events if event.run_id != "ship-1a2b"]
    write_events(folder / "events.ndjson", ours)
    write_events(folder / "visits" / "build.1" / "events.ndjson", agents)
    (folder / "visits" / "build.1" / "prompt.md").write_text("Build it")
    manifest = '{"name": "ship", "goal": "Ship it", "run_id": "ship-1a2b"}'
    (folder / "manifest.json").write_text(manifest)
    return folder
