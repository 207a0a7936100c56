"""Recorded agents over ACP, replayed without the program, the key or any server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.recordings import RECORDINGS
from support.stream_checks import check_stream

import corral
from corral import Policy
from corral.events import FileChange, ToolUse
from corral.result import result_from_events
from corral.values import Usage

KEY_REDACTED = "Done, and [{} redacted]."


@pytest.mark.parametrize(
    ("agent", "prompt", "options", "text", "calls", "denied", "usage"),
    [
        (
            "antigravity",
            "Look at here.txt, then write.",
            {"retries": 0},
            "I look.\n\nDone.",
            "view_file:read create_file:edit create_file:edit view_file:read",
            "create_file view_file",
            Usage(input=120, output=10, reasoning=3, cache_read=20, coverage="complete"),
        ),
        (
            "cline",
            "Read here.txt, then write.",
            {"model": "scripted"},
            KEY_REDACTED.format("CLINE_API_KEY"),
            "read_files:read editor:edit editor:edit run_commands:execute",
            "editor run_commands",
            Usage(),
        ),
        (
            "goose",
            "Look at here.txt, then write.",
            {"model": "scripted"},
            "I look.\n\n" + KEY_REDACTED.format("OPENAI_API_KEY"),
            "tree:search write:edit write:edit tree:search",
            "write tree",
            Usage(input=120, output=7, coverage="partial"),  # of the last model call only
        ),
    ],
)
async def test_the_recording_becomes_calls_changes_and_denials(
    workspace: Path,
    agent: str,
    prompt: str,
    options: Any,
    text: str,
    calls: str,
    denied: str,
    usage: Usage,
) -> None:
    cassette = RECORDINGS / agent / "work.ndjson"
    assert b"canary" not in cassette.read_bytes()
    async with corral.session(
        agent, cwd=workspace, policy=Policy.edits(), replay=cassette, **options
    ) as session:
        events = check_stream([event async for event in session.prompt(prompt)])
    result = result_from_events(events)
    uses = [event for event in events if isinstance(event, ToolUse)]
    assert result.text == text
    assert [f"{use.name}:{use.kind}" for use in uses] == calls.split()
    if agent == "cline":
        assert uses[0].paths == (str(workspace / "here.txt"),)
    changes = [event.path for event in events if isinstance(event, FileChange)]
    assert changes == [str(workspace / "probe.txt")]
    assert [refusal.name for refusal in result.denied] == denied.split()
    assert result.usage == usage
