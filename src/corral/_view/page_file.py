"""A run as one HTML file: the page of ``corral view``, with the answers of its server inside.

The file loads nothing. Its scripts and styles are inline, and its content security policy allows
exactly these, by their hashes: what an agent wrote can run nothing. The answers are made by the
same functions as those of the server, from a redacted copy of the log. Of a long log the middle is
left out, unless ``full`` is set, so that a browser can open the file.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import msgspec

from corral._core.terminal_text import json_bytes
from corral._pipelines.execution import run_dir
from corral._runs.log_windows import LogFile
from corral._runs.stored_run import LogReader, StoredRun, copy_log, visit_folder
from corral._sessions import store
from corral._system import fs, paths
from corral._view import diffs, log_pages, pipeline_view
from corral._view.live_runs import LiveRuns
from corral._view.records import PipelineEvents
from corral._view.session_logs import SessionLogs
from corral._view.session_view import SessionViews
from corral.errors import ConfigError
from corral.values import slug

MAX_LOG = 4 * 1024 * 1024
"""Bytes of a log that are in the file, unless ``full`` is set."""
MAX_BODIES = 8 * 1024 * 1024
"""Bytes of complete items in the file, unless ``full`` is set."""
MAX_RAW = 1024 * 1024
"""Bytes of a log whose raw events are in the file too, unless ``full`` is set."""
EVERYTHING = 1 << 62
ASKED = '"permission_'
"""What the page searches to list permissions."""
_IMPORT = re.compile(r'^import \{[\w\s,]+\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)

Write = Callable[[bytes], object]
Answer = tuple[str, msgspec.Struct]
"""The path of a request, and what is answered."""


def write(run: StoredRun, out: Write, *, full: bool = False, db: str | None = None) -> None:
    """Write the file. ``db`` is the database of a pipeline run. Raises ``ConfigError``."""
    if find_spec("markdown_it") is None or find_spec("starlette") is None:
        raise ConfigError(
            "--format html needs the page of corral view", hint="pip install 'corral[view]'."
        )
    with fs.temporary_folder("corral-export-") as folder:
        maker = _Answers(run, Path(folder), full=full)
        is_pipeline = run.kind == "pipeline"
        answers = maker.of_pipeline(db) if is_pipeline else maker.of_session()
        start = f"#/{'pipelines' if is_pipeline else 'sessions'}/{_part(maker.id)}"
        head, tail = _page()
        out(head)
        out(b'{"start":' + _safe(msgspec.json.encode(start)) + b',"answers":{')
        comma = b""
        for path, answer in answers:
            key = _safe(msgspec.json.encode(path))
            value = run.redactor.clean(msgspec.json.encode(answer))
            out(comma + key + b":" + _safe(value))
            comma = b",\n"
        out(b"}}" + tail)
        maker.report()


def _safe(data: bytes) -> bytes:
    """JSON that does not end the script element around it, and that a terminal shows as it is."""
    return json_bytes(data).replace(b"<", b"\\u003c")


def _part(text: str) -> str:
    """As the page encodes a part of a path."""
    return quote(text, safe="!'()*-._~")


class _Answers:
    """The answers that the page asks for."""

    def __init__(self, run: StoredRun, folder: Path, *, full: bool) -> None:
        self._run = run
        self._folder = folder
        self._full = full
        self._reader = LogReader(run.notices, run.redactor)
        self._left_out = 0
        self._bodies = EVERYTHING if full else MAX_BODIES
        self._bodies_left_out = 0
        allowed = slug(run.id, limit=100, allowed="_.-", default="run")
        self.id = run.id if run.kind == "pipeline" else allowed

    def report(self) -> None:
        """Add what was left out to the notices of the run."""
        if self._left_out:
            self._run.notices.more.append(
                f"{self._left_out:,} events in the middle were left out: --full includes them"
            )
        if self._bodies_left_out:
            self._run.notices.more.append(
                f"{self._bodies_left_out:,} long texts are cut: --full includes them"
            )

    def of_session(self) -> Iterator[Answer]:
        run, base = self._run, f"/api/sessions/{_part(self.id)}"
        log = self._copy(run.log, store.EVENTS)
        meta = run.meta or store.Meta(self.id, "", "", 0.0, title=run.title)
        record = store.SessionRecord(self._folder, meta)
        changed = {number: run.diff(number) for number in range(1, meta.turns + 1)}
        for number, text in changed.items():
            if text:
                paths.write_private(record.diff_file(number), text.encode("utf-8", "replace"))
        logs = SessionLogs()
        logs.facts(log, EVERYTHING)
        yield base, SessionViews(logs).detail(record, LiveRuns())
        for number, text in changed.items():
            if text:
                yield f"{base}/diff/{number}", diffs.side_by_side(text)
        yield from self._pages(log, f"{base}/items")
        yield from self._raw(log, f"{base}/events")

    def of_pipeline(self, db: str | None) -> Iterator[Answer]:
        """Raises ``ConfigError`` if the run has no graph."""
        from corral._engine.dbos.database import require

        run, base = self._run, f"/api/pipelines/{_part(self.id)}"
        if run.folder is None:
            raise ConfigError(
                "a file of events has no graph: --format html needs the run itself",
                hint="Give the id of the run, or use --format md.",
            )

        found = pipeline_view.read_folder(run.id, run.folder, is_live=False)
        if found is None:  # it is in a database
            require()
            found = asyncio.run(pipeline_view.read(run.id, db))
        yield base, asyncio.run(pipeline_view.detail(found, db))
        steps = [*pipeline_view.narrate(found.graph, found.events)]
        last = steps[-1].seq if steps else 0
        yield f"{base}/events?after=0", PipelineEvents(events=steps, next=last)
        for visit in dict.fromkeys(each.visit for each in steps if each.visit is not None):
            source = visit_folder(run.folder, visit) / run_dir.EVENTS
            if fs.is_file(source):
                log = self._copy(source, f"{run_dir.file_name(visit)}.ndjson")
                yield from self._pages(log, f"{base}/visits/{_part(visit)}/items")

    def _copy(self, source: Path, name: str) -> Path:
        target = self._folder / name
        limit = EVERYTHING if self._full else MAX_LOG
        with target.open("wb") as file:
            self._left_out += copy_log(source, file.write, self._reader, limit)
        if fs.exists(source):  # when the run wrote last
            modified = source.stat().st_mtime
            os.utime(target, (modified, modified))
        return target

    def _pages(self, path: Path, base: str) -> Iterator[Answer]:
        """The conversation, page by page, and its complete items."""
        with LogFile(path) as log:
            for number in range(max(1, log.pages)):
                page = log_pages.item_page(log, number)
                yield f"{base}?page={number}", page
                if number == max(0, log.pages - 1):
                    yield f"{base}?page=last", page
                for item in page.items:
                    if not item.more and not (item.tool is not None and item.tool.has_more):
                        continue
                    if self._bodies <= 0:
                        self._bodies_left_out += 1
                        continue
                    body = log_pages.item_body(log, item.key)
                    parts = (body.text, body.html, body.input, body.output, body.error)
                    self._bodies -= sum(len(part or "") for part in parts)
                    yield f"{base}/{item.key}", body

    def _raw(self, path: Path, base: str) -> Iterator[Answer]:
        """Events as they are stored, and the permissions among them."""
        with LogFile(path) as log:
            number: int | None = 0
            while number is not None:
                hits = log_pages.raw_page(log, number, ASKED)
                yield f"{base}?page={number}&q={_part(ASKED)}", hits
                number = hits.next
            if self._full or log.size <= MAX_RAW:
                for each in range(max(1, log.pages)):
                    yield f"{base}?page={each}", log_pages.raw_page(log, each, None)


# The page.


def _page() -> tuple[bytes, bytes]:
    """The page before and after its data."""
    static = Path(__file__).parent / "static"

    def read(name: str) -> str:
        return fs.read_text(static / name)

    script, style = joined_modules(read), read("style.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    icon = base64.b64encode(read("icon.svg").encode()).decode()
    page = read("index.html")
    for old, new in (
        (
            '<meta charset="utf-8">',
            '<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        ),
        ('href="icon.svg"', f'href="data:image/svg+xml;base64,{icon}"'),
        ('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>"),
        (
            '<script type="module" src="app.js"></script>',
            f'<script type="module">{script}</script>',
        ),
    ):
        if page.count(old) != 1:
            raise RuntimeError(f"the page has changed: {old}")
        page = page.replace(old, new)
    data = '<script type="application/json" id="corral-data">'
    head, body, tail = page.partition("<body>\n")
    return f"{head}{body}{data}".encode(), f"</script>\n{tail}".encode()


def _hash(code: str) -> str:
    return f"'sha256-{base64.b64encode(sha256(code.encode()).digest()).decode()}'"


def joined_modules(read: Callable[[str], str], first: str = "app") -> str:
    """The modules of the page as one script: each after those that it imports. Top-level names
    are unique."""
    done: dict[str, str] = {}
    path: list[str] = []

    def add(name: str) -> None:
        if name in done or name in path:
            return
        path.append(name)
        text = read(f"{name}.js")
        for other in _IMPORT.findall(text):
            add(other)
        path.pop()
        done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(first)
    script = "\n".join(done.values())
    if "</script" in script.lower():
        raise RuntimeError("a module of the page contains </script")
    return script
