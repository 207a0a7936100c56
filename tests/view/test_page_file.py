"""A run as one HTML file: complete, without a network, and without any code but its own."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.event_samples import session_events, stored_pipeline, stored_session, write_events

from corral._runs import stored_run
from corral._system import paths
from corral._view import page_file
from corral.errors import ConfigError
from corral.events import Done, Event, Init, Text, ToolResult, ToolUse, Vendor, to_json
from corral.values import JsonObject


class Page(HTMLParser):
    """The elements of a page, and the texts of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        if tag in ("script", "style"):
            self._inside = given.get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[self._inside] = self.texts.get(self._inside, "") + data

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.texts["corral-data"])
        return found


def exported(run: stored_run.StoredRun, *, full: bool = False) -> str:
    pieces: list[bytes] = []
    page_file.write(run, pieces.append, full=full)
    return b"".join(pieces).decode()


def answers(text: str) -> dict[str, Any]:
    found: dict[str, Any] = Page(text).data["answers"]
    return found


def test_the_file_has_what_the_page_asks_for() -> None:
    name = stored_session()
    diff = paths.sessions() / name / "diffs" / "1.patch"
    diff.parent.mkdir()
    diff.write_text("--- a/x.py\n+++ b/x.py\n@@ -1,1 +1,1 @@\n-a\n+b\n")
    page = Page(exported(stored_run.find(name)))
    assert page.data["start"] == f"#/sessions/{name}"
    base = f"/api/sessions/{name}"
    found = page.data["answers"]
    assert {key for key in found if not re.search(r"/items/\d+$", key)} == {
        base,
        f"{base}/diff/1",
        f"{base}/items?page=0",
        f"{base}/items?page=last",
        f"{base}/events?page=0&q=%22permission_",
        f"{base}/events?page=0",
    }
    assert found[base]["summary"]["title"] == "Fix the parser"
    assert [turn["has_diff"] for turn in found[base]["turns"]] == [True, False]
    kinds = [item["kind"] for item in found[f"{base}/items?page=0"]["items"]]
    assert kinds.count("tool") == 7
    assert found[f"{base}/events?page=0&q=%22permission_"]["events"]


def test_the_page_shows_how_the_policy_was_enforced(tmp_path: Path) -> None:
    row: JsonObject = {"capability": "shell", "verdict": "deny", "enforcer": "native"}
    events: list[Event] = [
        Init(run_id="s.1"),
        Vendor("prompt", "Hi"),
        Vendor("prompt_files", {"image": ["x.png"]}),
        Vendor("run_facts", {"policy": [row, {"capability": "read"}]}),
    ]
    found = answers(exported(stored_run.at(write_events(tmp_path / "log.ndjson", events))))
    facts = found["/api/sessions/s"]["facts"]
    assert facts["policy_report"] == "shell: deny (native)\nread"
    kinds = [item["kind"] for item in found["/api/sessions/s/items?page=0"]["items"]]
    assert kinds == ["init", "prompt", "vendor"]


def test_only_the_code_of_the_page_may_run_and_nothing_is_loaded() -> None:
    page = Page(exported(stored_run.find(stored_session())))
    ((_, policy),) = [
        each for each in page.elements if each[1].get("http-equiv") == "Content-Security-Policy"
    ]
    for kind in ("script", "style"):
        digest = base64.b64encode(sha256(page.texts[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in str(policy["content"])
    assert "default-src 'none'" in str(policy["content"])
    loaded = [
        value
        for _, given in page.elements
        for key, value in given.items()
        if key in ("src", "href") and not str(value).startswith("data:")
    ]
    assert loaded == []
    assert not re.search(r"^\s*(import|export)\b", page.texts["script"], re.MULTILINE)


def test_a_hostile_transcript_stays_data(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><!-- <script> \u2028 javascript:alert(1)"
    events: list[Event] = [
        Init(run_id="s.1", agent=hostile),
        ToolUse("1", "shell", title=hostile),
        ToolResult("1", "success", output=hostile * 100),
        Text(hostile),
    ]
    page = Page(exported(stored_run.at(write_events(tmp_path / "log.ndjson", events))))
    assert [tag for tag, _ in page.elements].count("script") == 2
    items = page.data["answers"]["/api/sessions/s/items?page=0"]["items"]
    (text,) = [item for item in items if item["kind"] == "text"]
    assert "<script" not in text["html"]
    body = page.data["answers"][f"/api/sessions/s/items/{items[1]['key']}"]
    assert body["output"].count("</script>") == 200


def test_secrets_are_redacted_before_they_are_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "canary&<b>0123456789")
    events: list[Event] = [Init(run_id="s.1"), Text("It is canary&<b>0123456789 here")]
    text = exported(stored_run.at(write_events(tmp_path / "log.ndjson", events)))
    assert "canary" not in text
    assert "SERVICE_TOKEN redacted" in text


@pytest.mark.deep
def test_a_run_of_100_000_events_gives_a_file_that_a_browser_opens(tmp_path: Path) -> None:
    log = tmp_path / "log.ndjson"
    write_events(log, [Init(run_id="s.1"), Text("The beginning."), ToolUse("1", "shell")])
    text = replace(Text("word " * 20), run_id="s.1", session_id="v" * 36, agent="codex-cli")
    line = to_json(text) + b"\n"
    with log.open("ab") as file:
        file.write(line * 100_000)
        last: list[Event] = [
            ToolResult("1", "success"),
            Text("The end.", message_id="9"),
            Done(status="success"),
        ]
        file.write(b"".join(to_json(event) + b"\n" for event in last))
    run = stored_run.at(log)
    found = exported(run)
    assert len(found) < 25_000_000
    assert any("--full includes them" in each for each in run.notices.sentences())
    pages = [each for key, each in answers(found).items() if "/items?page=" in key]
    texts = " ".join(item.get("html") or "" for page in pages for item in page["items"])
    assert "The beginning." in texts
    assert "The end." in texts
    assert "events are left out here" in found


def test_a_full_file_has_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_file, "MAX_LOG", 2_000)
    monkeypatch.setattr(page_file, "MAX_BODIES", 1)
    events: list[Event] = [Init(run_id="s.1")]
    output = "x" * 5000
    for number in range(20):
        events += [ToolUse(str(number), "shell"), ToolResult(str(number), "success", output=output)]
    run = stored_run.at(write_events(tmp_path / "log.ndjson", events))
    assert exported(run).count('"output":"xxx') < 3
    assert len(run.notices.sentences()) >= 1
    full_run = stored_run.at(run.log)
    assert exported(full_run, full=True).count('"output":"xxx') == 20
    assert full_run.notices.sentences() == []


def test_an_empty_or_unfinished_log_gives_a_page(tmp_path: Path) -> None:
    (tmp_path / "empty.ndjson").touch()
    assert "/api/sessions/empty" in answers(exported(stored_run.at(tmp_path / "empty.ndjson")))
    path = write_events(tmp_path / "log.ndjson", session_events()[:9])
    path.write_bytes(path.read_bytes() + b'{"type":"te')
    run = stored_run.at(path)
    assert answers(exported(run))
    assert "ends in the middle of a line" in " ".join(run.notices.sentences())


def test_a_pipeline_run_that_is_in_no_database_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run 'ship-1a2b'"):
        exported(stored_run.at(stored_pipeline(tmp_path / "run")))


def test_a_missing_extra_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    run = stored_run.find(stored_session())

    def find_nothing(name: str) -> None:
        del name

    monkeypatch.setattr(page_file, "find_spec", find_nothing)
    with pytest.raises(ConfigError, match=r"pip install 'corral\[view\]'"):
        exported(run)
