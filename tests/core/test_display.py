"""What a Python prompt and a notebook show of results, sessions, turns and policies."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.scripted_agent import scripted_options

import corral
from corral import Cost, FileChanged, Policy, Result, Usage, models, pipelines
from corral._core.display import Card, shorten
from corral._engine.batch.results import BatchError, BatchReport, BatchResult, Failures
from corral.events import Error
from corral.model_types import FinishReason, Response
from corral.models import Generation, Message, Step

HOSTILE = (
    '</pre><script>alert(1)</script><img src=x onerror="a()">\n```\n````\n[a](javascript:b) &amp;'
)

RESULT = Result(
    status="success",
    text=f"# Done\n{HOSTILE}\n" + "word " * 1000,
    agent="gemini-cli",
    model="gemini-2.5-flash",
    files=(FileChanged("/a", "created"), FileChanged("/b", "created")),
    usage=Usage(input=1000, output=234),
    cost=Cost(0.0123, "computed"),
    duration=3.42,
)
GENERATION = Generation(
    steps=(
        Step(
            Response(
                id="r",
                model=f"m{HOSTILE}",
                provider="gemini",
                message=Message.assistant(HOSTILE),
                finish_reason=FinishReason("stop"),
            )
        ),
    ),
    messages=(),
)
PIPELINE = pipelines.PipelineResult(
    run="review-1", status="success", completed=["a", "b"], context={"last_response": HOSTILE}
)
BATCH = BatchReport(
    name="b",
    total=20,
    succeeded=18,
    failed=2,
    failures=(Failures(code="timeout", count=2, tasks=("1",), message=HOSTILE),),
)
SHOWN = [RESULT, GENERATION, PIPELINE, BATCH]


@dataclass
class Review:
    verdict: str
    problems: list[str]


REVIEWS = BatchReport(
    name="reviews",
    total=2,
    succeeded=1,
    failed=1,
    results=(
        BatchResult(
            id="a.py",
            status="success",
            text=HOSTILE,
            _output=Review(HOSTILE, ["one"]),
            files=("a.py", "b.py"),
            cost_usd=0.5,
        ),
        BatchResult(
            id="b.py", status="failed", error=BatchError(code="timeout", message="too slow")
        ),
    ),
)


def test_a_batch_is_rows_for_tables() -> None:
    first, second = REVIEWS.rows()
    assert (first["output.verdict"], first["output.problems"]) == (HOSTILE, ["one"])
    assert (first["files"], first["cost_usd"], first["error"]) == ("a.py, b.py", 0.5, None)
    assert (second["id"], second["status"], second["error"]) == ("b.py", "failed", "too slow")
    assert REVIEWS.to_dicts()[0]["output"] == {"verdict": HOSTILE, "problems": ["one"]}
    json.dumps(REVIEWS.to_dicts())


def test_a_batch_is_a_table_in_a_notebook_without_html_of_answers() -> None:
    parser = Tags()
    parser.feed(REVIEWS._repr_html_())  # pyright: ignore[reportPrivateUsage]
    parser.close()
    assert set(parser.tags) == {"div", "b", "small", "pre", "table", "tr", "th", "td"}
    assert parser.tags.count("tr") == 3
    assert "output.verdict" in parser.text


def test_a_result_is_one_short_line() -> None:
    assert repr(RESULT) == (
        "<Result success: '# Done </pre><script>alert(1)</script><img src=x onerror=\"a…'"
        " (gemini-cli, gemini-2.5-flash, 2 files, 1,234 tokens, $0.0123, 3.4 s)>"
    )
    failed = Result(
        status="error",
        text="half",
        error=Error(code="rate_limit", message="too many requests", hint="Wait."),
    )
    assert repr(failed) == "<Result error: 'too many requests Wait.'>"


def test_other_results_are_short_too() -> None:
    assert repr(PIPELINE).endswith("(review-1, 2 finished nodes)>")
    assert repr(BATCH).startswith("<BatchReport b: '2 × timeout: ")
    assert repr(BATCH).endswith("(18 of 20 succeeded, 2 failed)>")
    assert all(len(repr(each)) < 250 and "\n" not in repr(each) for each in SHOWN)


@pytest.mark.parametrize(
    ("policy", "shown"),
    [
        (Policy(), "Policy()"),
        (Policy.edits(), "Policy.edits()"),
        (Policy.all(), "Policy.all()"),
        (Policy.reads(), "Policy.reads()"),
        (Policy.plan(), "Policy.plan()"),
        (Policy.native(), "Policy.native()"),
        (
            Policy(shell="ask", shell_rules=("allow git *",)),
            "Policy(shell='ask', shell_rules=('allow git *',))",
        ),
    ],
)
def test_a_policy_is_shown_as_it_is_written(policy: Policy, shown: str) -> None:
    assert repr(policy) == shown
    assert eval(shown) == policy


async def test_sessions_and_turns_show_their_state(workspace: Path) -> None:
    session = corral.session("gemini-cli", **scripted_options(workspace))
    assert repr(session) == "<Session gemini-cli (not open)>"
    async with session:
        assert repr(session) == f"<Session gemini-cli {session.id} (new)>"
        turn = session.prompt("init\ntext hello\nresult")
        assert repr(turn) == "<Turn gemini-cli new: 'init text hello result'>"
        await turn.collect()
        assert repr(turn).startswith("<Turn gemini-cli over: ")
        assert repr(session) == f"<Session gemini-cli {session.id} (1 turn)>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("shown", SHOWN, ids=lambda each: type(each).__name__)
def test_nothing_of_an_answer_is_html_in_a_notebook(shown: Result) -> None:
    parser = Tags()
    parser.feed(shown._repr_html_())  # pyright: ignore[reportPrivateUsage]
    parser.close()
    assert parser.tags == ["div", "b", "small", "pre"]
    assert HOSTILE in parser.text


@pytest.mark.parametrize("shown", SHOWN, ids=lambda each: type(each).__name__)
def test_an_answer_cannot_leave_its_code_fence_in_markdown(shown: Result) -> None:
    head, _, rest = shown._repr_markdown_().partition("\n\n")  # pyright: ignore[reportPrivateUsage]
    assert "<" not in head
    assert "[" not in head.replace("\\[", "")
    fence, *lines = rest.rstrip("\n").split("\n")
    marks = re.match("`+", fence)
    assert marks is not None
    assert fence == f"{marks[0]}text"
    assert lines[-1] == marks[0]
    assert not any(line.strip().startswith(marks[0]) for line in lines[:-1])


def test_long_texts_are_cut() -> None:
    assert shorten("a\n b") == "a b"
    assert shorten("x" * 61) == "x" * 59 + "…"
    assert shorten("x" * 60) == "x" * 60
    assert len(Card("T", (), "y " * 10_000_000).short()) < 100


def test_every_event_has_its_type() -> None:
    import typing

    from corral._pipelines.events import RunEvent

    for union in (corral.Event, models.StreamEvent, RunEvent):
        for kind in typing.get_args(union):
            assert kind.type == kind.__struct_config__.tag, kind
