"""Writes sessions as corral stores them: short ones, long ones, and one with hostile text."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from corral import events
from corral._sessions.store import DIFFS, EVENTS, META, Meta
from corral.events import Event
from corral.values import Cost, FileChanged, Usage

HOSTILE = "hostile-session"
MARKER = "corral_page_was_attacked"
"""The global that every attack in the hostile transcript would set."""
OTHER_HOST = "http://other-host.invalid"


def write_session(
    home: Path, meta: Meta, transcript: Iterable[Event], patches: Sequence[str] = ()
) -> Path:
    """Write a session into corral's home and return its folder."""
    folder = home / "sessions" / meta.id
    folder.mkdir(parents=True, mode=0o700)
    (folder / META).write_bytes(msgspec.json.encode(meta))
    with open(folder / EVENTS, "wb") as log:
        for event in transcript:
            log.write(events.to_json(event) + b"\n")
    os.utime(folder / EVENTS, (meta.updated, meta.updated))
    for number, patch in enumerate(patches, 1):
        (folder / DIFFS).mkdir(exist_ok=True)
        (folder / DIFFS / f"{number}.patch").write_text(patch)
    return folder


class Transcript:
    """Builds the events of a session; each takes a little time."""

    def __init__(self, agent: str = "gemini-cli", started: float | None = None) -> None:
        self.agent = agent
        self.now = time.time() - 3600 if started is None else started
        self.events: list[Event] = []

    def add(self, event: Event, seconds: float = 0.4) -> Transcript:
        self.now += seconds
        seq = len(self.events) + 1
        self.events.append(
            msgspec.structs.replace(event, seq=seq, ts=self.now, agent=self.agent, run_id="r-1")
        )
        return self

    def prompt(self, text: str) -> Transcript:
        return self.add(events.Vendor(name="prompt", data=text))

    def init(self, model: str = "gemini-2.5-pro", cwd: str = "/work/app") -> Transcript:
        return self.add(events.Init(model=model, cwd=cwd, agent_version="0.61.0", auth="api_key"))

    def text(self, text: str, parent: str | None = None) -> Transcript:
        for start in range(0, len(text), 60):
            self.add(events.Text(delta=text[start : start + 60], parent=parent), 0.05)
        return self

    def tool(self, use: events.ToolUse, result: events.ToolResult) -> Transcript:
        return self.add(use).add(result, (result.duration_ms or 100) / 1000)

    def done(
        self, usage: Usage, usd: float | None = None, status: events.Status = "success"
    ) -> Transcript:
        cost = Cost(usd=usd, source="computed" if usd is not None else "unknown")
        files = tuple(
            FileChanged(event.path, event.kind, event.lines_added, event.lines_removed)
            for event in self.events
            if isinstance(event, events.FileChange)
        )
        duration = int((self.now - self.events[0].ts) * 1000)
        return self.add(
            events.Done(status=status, usage=usage, cost=cost, files=files, duration_ms=duration)
        )


def long_transcript(count: int) -> Transcript:
    """A session of about this many events: text, tool calls and thinking."""
    found = Transcript().init().prompt("Go through all files")
    for number in range(count // 4):
        call = f"call-{number}"
        found.add(events.Thinking(delta=f"Step {number}: which file is next?"))
        found.add(
            events.ToolUse(
                call_id=call, name="read_file", kind="read", paths=(f"src/module_{number}.py",)
            )
        )
        output = f"line of file {number}\n" * (number % 7 + 1)
        found.add(
            events.ToolResult(call_id=call, status="success", output=output, duration_ms=number)
        )
        found.add(events.Text(delta=f"File {number} is **done**. ", message_id=f"m-{number}"))
    return found.done(Usage(input=count * 3, output=count, coverage="complete"), 1.25)


ATTACKS = (
    f"<script>globalThis.{MARKER} = 1</script>",
    f'<img src="x" onerror="globalThis.{MARKER} = 2">',
    f"[a link](javascript:globalThis.{MARKER}=3)",
    f"![an image]({OTHER_HOST}/pixel.png)",
    f"<iframe srcdoc='<script>parent.{MARKER} = 4</script>'></iframe>",
    f'<svg onload="globalThis.{MARKER} = 5"><a xlink:href="javascript:alert(1)">x</a></svg>',
    f"<style>@import url({OTHER_HOST}/style.css); body {{ display: none }}</style>",
    f'<a href="data:text/html,<script>alert(1)</script>">data</a> <{OTHER_HOST}/auto>',
    "\x1b[31mred\x1b[0m \x1b]8;;http://other-host.invalid\x07terminal link\x1b]8;;\x07 \x07\x00",
    "safe \u202etxt.exe\u202c \u2066isolated\u2069",
    f"<meta http-equiv=refresh content='0;url={OTHER_HOST}'><base href='{OTHER_HOST}'>",
    f"<form action='{OTHER_HOST}'><button autofocus onfocus='globalThis.{MARKER}=6'>b</button>",
    "| a | b |\n|---|---|\n| <b onclick=alert(1)>x</b> | `</code><script>alert(1)</script>` |",
    "x" * 200_000,
    "word " * 20_000,
)


def write_hostile_session(home: Path) -> None:
    """A session in which every text that an agent can write is an attack."""
    found = Transcript().init(model=ATTACKS[1], cwd=ATTACKS[2]).prompt(ATTACKS[0])
    for number, attack in enumerate(ATTACKS):
        call = f"call-{number}"
        found.add(events.Text(delta=attack, message_id=f"m{number}"))
        found.add(events.Thinking(delta=attack))
        use = events.ToolUse(
            call_id=call, name=attack, title=attack, kind="execute", input={"command": attack}
        )
        result = events.ToolResult(call_id=call, status="error", error=attack, output=attack)
        found.tool(use, result)
        found.add(events.PermissionRequest(request_id=call, title=attack, input={"x": attack}))
        decision = events.PermissionDecision(
            request_id=call, decision="deny", by="policy", rule=attack
        )
        found.add(decision)
        found.add(events.Plan(entries=(events.PlanEntry(attack, "in_progress"),)))
        found.add(events.FileChange(path=attack[:300], kind="modified"))
        found.add(events.Log(text=attack)).add(events.Error(code="agent_error", message=attack))
        found.add(events.Vendor(name=attack, data=attack)).add(events.Unknown(frame=attack))
    found.done(Usage(input=1, output=1))
    patch = (
        "diff --git a/<b>x</b>.html b/<b>x</b>.html\n--- a/<b>x</b>.html\n+++ b/<b>x</b>.html\n"
        f"@@ -1 +1 @@\n-{ATTACKS[0]}\n+{ATTACKS[1]}\u202e\n"
    )
    meta = Meta(
        id=HOSTILE,
        agent=found.agent,
        cwd=ATTACKS[2],
        created=found.now - 60,
        updated=found.now,
        status="success",
        title=ATTACKS[0] + ATTACKS[9],
        label=ATTACKS[1],
        model=ATTACKS[0],
        turns=1,
    )
    write_session(home, meta, found.events, [patch])
