"""A run as a Markdown document."""

from __future__ import annotations

from pathlib import Path

from support.event_samples import session_events, stored_pipeline, write_events

from corral._export import document as markdown
from corral._runs import stored_run
from corral.events import Event, Init, Text, ToolResult, ToolUse


def document(path: Path) -> str:
    pieces: list[str] = []
    markdown.write(stored_run.at(path), pieces.append)
    return "".join(pieces)


def test_a_session_has_thinking_plan_sub_agents_permissions_and_costs(tmp_path: Path) -> None:
    text = document(write_events(tmp_path / "log.ndjson", session_events()))
    parts = [
        "# log.ndjson\n",
        "codex-cli 1.2.3 · 2023-11-14 22:13:21 UTC",
        "## Prompt 1\n\n```text\nFix the **parser**\n```",
        "<details><summary>Thinking</summary>\n\n```text\nI should look first.\n```",
        "Let me look.\n",
        "- [x] look\n- [~] fix\n",
        "**ls -l** (success)\n\n```text\nx.py\n```",
        "**ask an expert** (success)",
        "<details><summary>Sub-agent</summary>\n\nIt is a comma.",
        "<details><summary>Sub-agent</summary>\n\nInnermost.",
        "```text\na comma\n```",
        "**rm -rf /** (denied: the policy denies it)",
        "Permission: deny by policy, rule `shell: deny`",
        "Fixed: &lt;script>alert(1)&lt;/script> and `<b>`",
        "- modified `/workspace/x.py`",
        "*success · gpt-5-2026 · 28.0 s · 300 tokens in, 80 out · $0.0400 (reported)*",
        "## Prompt 2",
        "*interrupted · gpt-5 · 0.9 s · 40 tokens in, 2 out · the run was cancelled*",
        "## Total\n\n*2 turns · gpt-5 · 28.9 s · 340 tokens in, 82 out · $0.0400 (reported)*",
    ]
    at = 0
    for part in parts:
        assert part in text[at:], part
        at = text.index(part, at)


def test_a_pipeline_run_has_its_nodes_and_answers(tmp_path: Path) -> None:
    text = document(stored_pipeline(tmp_path / "run"))
    for part in (
        "# Ship it\n",
        "`test`: attempt 1 failed: exit 1",
        "## test (tool)\n\n```text\nok\n```\n\n*success, 2 attempts*",
        "## build (codergen)\n",
        "### Prompt 1",
        "**Question** at `ask`\n\n```text\nShip it?\n```",
        "**Answer** by ada\n\n```text\nYes\n```",
        "*failed*",
    ):
        assert part in text, part


def test_no_text_leaves_its_fence(tmp_path: Path) -> None:
    hostile = "```\n# not a heading\n````\n"
    events: list[Event] = [
        Init(run_id="s.1"),
        ToolUse("1", "shell", title="a\n# title"),
        ToolResult("1", "success", output=hostile),
        Text("<img src=x onerror=alert(1)>\n```html\n<b>\n```"),
    ]
    text = document(write_events(tmp_path / "log.ndjson", events))
    assert f"`````text\n{hostile.rstrip()}\n`````" in text
    assert "**a # title**" in text
    assert "&lt;img src=x" in text
    assert "```html\n<b>\n```" in text


def test_a_run_that_has_not_ended_says_so(tmp_path: Path) -> None:
    text = document(write_events(tmp_path / "log.ndjson", session_events()[:9]))
    assert "*unfinished · gpt-5*" in text
    assert "**read x.py** (unfinished)" in text


def test_long_output_is_cut(tmp_path: Path) -> None:
    events: list[Event] = [
        Init(),
        ToolUse("1", "shell"),
        ToolResult("1", "success", output="x" * 5_000),
    ]
    text = document(write_events(tmp_path / "log.ndjson", events))
    assert "… 3,000 more characters" in text
