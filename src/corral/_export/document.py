"""A run as a Markdown document to read and to share.

The texts of agents are hostile input: they are put into code fences that are longer than any run of
backticks inside them, except for answers, which are Markdown themselves and in which HTML is
escaped. Terminal sequences are removed, because the document may be printed at a terminal. Thinking
and sub-agents are folded (``<details>``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from corral._core.receipt_text import receipt_markdown
from corral._core.steps import CutText, ModelStep, StepCall, StepTracker
from corral._core.terminal_text import clean, counted, plain
from corral._pipelines.events import (
    InterviewCompleted,
    InterviewStarted,
    PipelineCompleted,
    PipelineEvent,
    PipelineFailed,
    PipelineStarted,
    RunEvent,
    StepCompleted,
    StepFailed,
    StepRetrying,
    StepStarted,
)
from corral._runs.stored_run import StoredRun
from corral._runs.transcript import TurnRecord, begin, fence, finish, summary
from corral.events import Done, Event, Init, Vendor

MAX_OUTPUT = 2_000
"""Characters of a tool's output."""
MAX_SUBAGENT = 100_000
"""Characters of all that a sub-agent did."""
CODE = re.compile(r"(```.*?(?:```|\Z)|`[^`\n]*`)", re.DOTALL)
HTML_BEGIN = re.compile(r"<(?=[A-Za-z/!?])")
_PLAN_MARKS = {"completed": "x", "in_progress": "~"}

Write = Callable[[str], object]


def write(run: StoredRun, out: Write, *, diff: bool = False) -> None:
    """Write the document. ``diff``: also how each turn of a session changed files."""
    out = _cleaned(out)
    out(f"# {_line(run.title)}\n")
    writer = _PipelineWriter(out) if run.kind == "pipeline" else _SessionWriter(out, run, diff=diff)
    for event in run.events():
        writer.add(event)
    writer.end()
    for sentence in run.notices.sentences():
        out(f"\n> {sentence}\n")


def write_session(title: str, events: Iterable[Event], out: Write) -> None:
    """Write the document of these events of agents."""
    out = _cleaned(out)
    out(f"# {_line(title)}\n")
    writer = _SessionWriter(out)
    for event in events:
        writer.add(event)
    writer.end()


class _SessionWriter:
    """The turns of an agent."""

    def __init__(
        self, out: Write, run: StoredRun | None = None, *, diff: bool = False, level: int = 2
    ) -> None:
        self._out = out
        self._run = run
        self._diff = diff
        self._marks = "#" * level
        self._tracker = StepTracker()
        self._turn: TurnRecord | None = None
        self._turns = 0
        self._subagents: dict[str, CutText] = {}
        """What sub-agents did, by the call that started them, until that call is written."""
        self._totals = _TurnTotals()

    def add(self, event: RunEvent) -> None:
        if isinstance(event, PipelineEvent):
            return
        self._write_steps(self._tracker.add(event))
        match event:
            case Init():
                if self._turn is not None:
                    self._out(f"\n*{_line(summary(self._turn))}*\n")  # it was cut off
                self._turns += 1
                self._turn = begin(event)
                if event.agent and self._turns == 1:
                    name = f"{event.agent} {event.agent_version or ''}"
                    when = f" · {_time(event.ts)}" if event.ts else ""
                    self._out(f"\n{_line(name)}{when}\n")
            case Vendor(name="prompt", data=str(data)) if self._turn is not None:
                self._turn.prompt = data
                self._out(f"\n{self._marks} Prompt {self._turns}\n\n{_fenced(data)}\n")
            case Done() if self._turn is not None:
                turn, self._turn = self._turn, None
                self._end_turn(turn, event)
            case _:
                pass

    def end(self) -> None:
        self._write_steps(self._tracker.end())
        if self._turn is not None:
            self._out(f"\n*{_line(summary(self._turn))}*\n")
        if self._turns > 1:
            self._out(f"\n{self._marks} Total\n\n*{self._totals.sentence(self._turns)}*\n")

    def _end_turn(self, turn: TurnRecord, done: Done) -> None:
        finish(turn, done)
        self._totals.add(turn)
        if turn.files:
            self._out("\n" + "".join(f"- {file.kind} {_code(file.path)}\n" for file in turn.files))
        if self._diff and self._run is not None and (text := self._run.diff(turn.number)):
            self._out(f"\n{_fenced(text, 'diff')}\n")
        if done.usage_by_model and len(done.usage_by_model) > 1:
            for model, usage in done.usage_by_model.items():
                tokens = f"{usage.input or 0:,} tokens in, {usage.output or 0:,} out"
                self._out(f"\n- {_line(model)}: {tokens}")
            self._out("\n")
        self._out(f"\n*{_line(summary(turn))}*\n")
        if done.receipt is not None:
            self._out(f"\n{receipt_markdown(done.receipt)}")
        elif self._run is not None and (stored := self._run.receipt(turn.number)) is not None:
            self._out(f"\n{self._run.redactor.clean_text(receipt_markdown(stored))}")

    def _write_steps(self, steps: list[ModelStep]) -> None:
        for step in steps:
            parts: list[str] = []
            if thinking := str(step.thinking).strip():
                parts.append(_folded("Thinking", _fenced(thinking)))
            if answer := str(step.text).strip():
                # The answer of a model without HTML; code in fences and backticks stays as it is.
                pieces = CODE.split(plain(answer))
                pieces[::2] = [HTML_BEGIN.sub("&lt;", piece) for piece in pieces[::2]]
                parts.append("".join(pieces))
            if step.text.cut:
                parts.append(f"… {step.text.cut:,} more characters")
            if step.plan is not None:
                marks = (
                    (_PLAN_MARKS.get(entry.status or "", " "), entry) for entry in step.plan.entries
                )
                parts.append("\n".join(f"- [{mark}] {_line(each.content)}" for mark, each in marks))
            parts += [self._call(call) for call in step.calls]
            text = "".join(f"\n{part}\n" for part in parts)
            if step.parent is None:
                self._out(text)
                continue
            inner = self._subagents.setdefault(step.parent, CutText(limit=MAX_SUBAGENT))
            inner.add(text)

    def _call(self, call: StepCall) -> str:
        error = call.result.error if call.result is not None else None
        why = f": {_line(error)}" if error else ""
        lines = [f"**{_line(call.use.title or call.use.name)}** ({call.status}{why})"]
        if call.decision is not None:
            rule = f", rule {_code(call.decision.rule)}" if call.decision.rule else ""
            lines.append(f"\nPermission: {call.decision.decision} by {call.decision.by}{rule}")
        inner = self._subagents.pop(call.use.call_id, None)
        if inner is not None:
            text = str(inner).strip("\n")
            if inner.cut:
                text += f"\n\n… {inner.cut:,} more characters"
            lines.append("\n" + _folded("Sub-agent", text))
        if output := str(call.output):
            rest = len(output) - MAX_OUTPUT + call.output.cut
            shown = output if rest <= 0 else f"{output[:MAX_OUTPUT]}\n… {rest:,} more characters"
            lines.append(f"\n{_fenced(shown)}")
        return "\n".join(lines)


class _TurnTotals:
    """Tokens, cost and time of all turns."""

    def __init__(self) -> None:
        self.record = TurnRecord(status="", duration_ms=0)

    def add(self, turn: TurnRecord) -> None:
        record = self.record
        record.usage = record.usage + turn.usage
        record.duration_ms = (record.duration_ms or 0) + (turn.duration_ms or 0)
        record.model = turn.model or record.model
        if turn.cost.usd is not None:
            record.cost = type(turn.cost)(
                (record.cost.usd or 0.0) + turn.cost.usd, turn.cost.source
            )

    def sentence(self, turns: int) -> str:
        self.record.status = counted(turns, "turn")
        return _line(summary(self.record))


class _PipelineWriter:
    """The nodes of a pipeline run, with what their agents did."""

    def __init__(self, out: Write) -> None:
        self._out = out
        self._kinds: dict[str, str] = {}
        self._agents: dict[str, tuple[_SessionWriter, CutText]] = {}
        """Node → what its agent did; it is written when the node has ended."""

    def add(self, event: RunEvent) -> None:
        match event:
            case PipelineStarted():
                goal = f"\n{_fenced(event.goal)}\n" if event.goal else ""
                self._out(f"\nPipeline {_line(event.name)} · {_time(event.ts)}\n{goal}")
            case StepStarted():
                self._kinds[event.visit] = event.kind
            case StepRetrying():
                why = f": {_line(event.reason)}" if event.reason else ""
                self._out(f"\n{_code(event.node or '')}: attempt {event.attempt} failed{why}\n")
            case StepCompleted():
                label = f" → {event.preferred_label}" if event.preferred_label else ""
                self._node(event, f"{event.status}{label}", event.notes)
            case StepFailed():
                self._node(event, "failed", event.reason)
            case PipelineCompleted():
                self._out(f"\n*success · {_time(event.ts)}*\n")
            case PipelineFailed():
                how = "cancelled" if event.cancelled else "failed"
                self._out(f"\n*{how}: {_line(event.reason)} · {_time(event.ts)}*\n")
            case InterviewStarted():
                node = _code(event.node or "")
                self._out(f"\n**Question** at {node}\n\n{_fenced(event.question)}\n")
            case InterviewCompleted():
                by = f" by {_line(event.by)}" if event.by else ""
                self._out(f"\n**Answer**{by}\n\n{_fenced(event.answer)}\n")
            case _:
                if not isinstance(event, PipelineEvent):
                    node = event.node or ""
                    if node not in self._agents:
                        text = CutText()
                        self._agents[node] = (_SessionWriter(text.add, level=3), text)
                    self._agents[node][0].add(event)

    def end(self) -> None:
        for node in list(self._agents):
            self._out(f"\n## {_line(node)}\n{self._agent_text(node)}\n*unfinished*\n")

    def _agent_text(self, node: str) -> str:
        found = self._agents.pop(node, None)
        if found is None:
            return ""
        writer, text = found
        writer.end()
        more = f"\n… {text.cut:,} more characters\n" if text.cut else ""
        return f"{text}{more}"

    def _node(self, event: StepCompleted | StepFailed, how: str, notes: str) -> None:
        kind = self._kinds.pop(event.visit, "node")
        node = event.node or ""
        attempts = f", {event.attempts} attempts" if event.attempts > 1 else ""
        self._out(f"\n## {_line(node)} ({_line(kind)})\n{self._agent_text(node)}")
        if notes:
            self._out(f"\n{_fenced(notes)}\n")
        self._out(f"\n*{_line(how)}{attempts}*\n")


def _cleaned(out: Write) -> Write:
    """Whatever the document consists of, nothing in it is obeyed by a terminal."""
    return lambda text: out(clean(text))


def _fenced(text: str, language: str = "text") -> str:
    # Cleaned first: what is removed may stand between two backticks.
    return fence(plain(text), language)


def _code(text: str) -> str:
    """A name of an agent in a line."""
    return "`" + " ".join(plain(text).split()).replace("`", "'") + "`"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _line(text: str) -> str:
    return HTML_BEGIN.sub("&lt;", " ".join(plain(text).split()))


def _time(ts: float) -> str:
    return datetime.fromtimestamp(ts, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
