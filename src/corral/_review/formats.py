"""A review as text for people, Markdown, SARIF, JUnit XML, workflow commands of GitHub, and JSON.

Each function takes a finished ``Review`` and returns a text. Everything in it that comes from the
diff or from an agent passes through ``corral._core.neutral``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from urllib.parse import quote

import msgspec

from corral._core.neutral import (
    log_text,
    markdown_code,
    markdown_name,
    markdown_text,
    workflow_data,
    workflow_property,
    xml_text,
)
from corral._core.spending import dollars
from corral._core.terminal_text import counted, json_line, one_line, visible
from corral._review.findings import SEVERITIES, Finding, Severity, count_by_severity
from corral._review.result import Review
from corral.values import Json, JsonObject, path_from_printable
from corral.version import __version__

MAX_MARKDOWN = 60_000
"""Characters of a comment: GitHub accepts 65,536."""
_MAX_NOTE = 200
"""Characters of a note in Markdown: the author of a change chooses the paths."""
_SARIF_LEVELS: dict[Severity, str] = {
    "critical": "error",
    "high": "error",
    "medium": "warning",
    "low": "note",
}
_COMMANDS: dict[Severity, str] = {**_SARIF_LEVELS, "low": "notice"}
_SCORES: dict[Severity, str] = {"critical": "9.5", "high": "8.0", "medium": "5.0", "low": "2.0"}
"""``security-severity``, by which GitHub names the severity of an alert."""


def text(review: Review) -> str:
    """For people and CI logs."""
    lines: list[str] = []
    for each in review.findings:
        lines.append(_title(each))
        for body in (each.explanation, each.suggestion and f"Suggestion:\n{each.suggestion}"):
            lines += [f"    {line}" for line in body.split("\n")] if body else []
    lines += summary_lines(review)
    return log_text("\n".join(lines)) + "\n"


def summary_lines(review: Review) -> list[str]:
    """What was reviewed, by whom, what was found, and what was not reviewed."""
    lines = [headline(review)]
    lines += [f"{run.agent}, part {run.part}: {run.error}" for run in review.runs if run.error]
    if review.dropped:
        lines.append(
            f"{counted(review.dropped, 'finding')} about files that are not in the diff, or too"
            " many, dropped"
        )
    lines += [f"not reviewed ({why}): {one_line(path)}" for path, why in review.left_out]
    return lines


def headline(review: Review) -> str:
    """One line with what was found."""
    if review.status == "nothing":
        return f"{review.title}: nothing to review"
    counts = count_by_severity(review.findings)
    shown = ", ".join(f"{number} {name}" for name, number in counts.items()) or "no findings"
    agents = ", ".join(dict.fromkeys(run.agent for run in review.runs))
    cost = "" if review.cost_usd is None else f", {dollars(review.cost_usd)}"
    files = counted(len(review.files), "file")
    state = " INCOMPLETE:" if review.status == "incomplete" else ""
    return f"{review.title}:{state} {shown} in {files} ({agents}{cost})"


def _title(each: Finding) -> str:
    return f"{one_line(each.file)}:{each.lines}: {each.severity}: {each.title}{_notes(each)}"


def _notes(finding: Finding) -> str:
    outside = "" if finding.in_diff else " [outside of the diff]"
    several = f" [{', '.join(finding.agents)}]" if len(finding.agents) > 1 else ""
    return outside + several


def markdown(review: Review) -> str:
    """For a comment or a job summary, of at most ``MAX_MARKDOWN`` characters."""
    first, *notes = summary_lines(review)
    head = f"### Review\n\n{markdown_text(first)}\n"
    for summary in review.summaries:
        head += f"\n{markdown_text(summary)}\n"
    head = head[: MAX_MARKDOWN // 4]
    end = _fitting([markdown_text(_cut(note)) for note in notes], MAX_MARKDOWN // 4, "note")
    room = MAX_MARKDOWN - len(head) - len(end)  # at least half is for the findings
    return head + _fitting([*map(_markdown_finding, review.findings)], room, "finding") + end


def _cut(note: str) -> str:
    return note if len(note) <= _MAX_NOTE else f"{note[:_MAX_NOTE]}…"


def _fitting(parts: Sequence[str], room: int, noun: str) -> str:
    """Those that fit, and how many do not. A long one does not hide the shorter ones after it."""
    room -= 100  # for the last line
    shown: list[str] = []
    for part in parts:
        if len(part) + 2 <= room:
            shown.append(f"\n{part}\n")
            room -= len(part) + 2
    if left := len(parts) - len(shown):
        shown.append(f"\n{counted(left, f'more {noun}')} not shown\n")
    return "".join(shown)


def _markdown_finding(each: Finding) -> str:
    place = markdown_name(f"{each.file}:{each.lines}")
    lines = [f"- **{each.severity}** {place} {markdown_text(each.title + _notes(each))}"]
    body = markdown_text(each.explanation)
    lines += [f"  {line}".rstrip() for line in ("", *body.split("\n"))] if body else []
    if each.suggestion:
        lines += ["", markdown_code(each.suggestion, "  ")]
    return "\n".join(lines)


def github(review: Review) -> str:
    """Workflow commands of GitHub, which become annotations of the lines."""
    return "".join(f"{line}\n" for line in _github_lines(review))


def _github_lines(review: Review) -> Iterator[str]:
    for each in review.findings:
        properties = {
            "file": each.file,
            "line": str(each.line),
            "endLine": str(each.end_line),
            "title": f"{each.severity}: {each.title}",
        }
        listed = ",".join(f"{name}={workflow_property(v)}" for name, v in properties.items())
        message = workflow_data(each.explanation or each.title)
        yield f"::{_COMMANDS[each.severity]} {listed}::{message}"
    for line in summary_lines(review):
        yield f"::notice::{workflow_data(line)}"


def sarif(review: Review) -> str:
    """SARIF 2.1.0, for code scanning."""
    rules: list[Json] = [
        {
            "id": f"review/{name}",
            "shortDescription": {"text": f"A finding of {name} severity by an agent"},
            "defaultConfiguration": {"level": _SARIF_LEVELS[name]},
            "properties": {"security-severity": _SCORES[name], "tags": ["review"]},
        }
        for name in SEVERITIES
    ]
    run: JsonObject = {
        "tool": {"driver": {"name": "corral review", "version": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(each) for each in review.findings],
        "invocations": [
            {
                "executionSuccessful": review.status != "incomplete",
                "toolExecutionNotifications": [
                    {"level": "note", "message": {"text": _sarif_text(line)}}
                    for line in summary_lines(review)
                ],
            }
        ],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    log: JsonObject = {"$schema": schema, "version": "2.1.0", "runs": [run]}
    return _json(log)


def _sarif_result(each: Finding) -> JsonObject:
    message = "\n\n".join(filter(None, (each.title + _notes(each), each.explanation)))
    path = path_from_printable(each.file).encode("utf-8", "surrogateescape")
    digest = blake2b(f"{each.file}\0{each.title}".encode(), digest_size=16).hexdigest()
    return {
        "ruleId": f"review/{each.severity}",
        "level": _SARIF_LEVELS[each.severity],
        "message": {"text": _sarif_text(message)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(path), "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": each.line, "endLine": each.end_line},
                }
            }
        ],
        "partialFingerprints": {"review/v1": digest},
    }


def _sarif_text(plain: str) -> str:
    """In a message, ``[text](target)`` is a link."""
    escaped = visible(plain).replace("\\", "\\\\")
    return escaped.replace("[", "\\[").replace("]", "\\]")


def junit(review: Review) -> str:
    """JUnit XML: a test case for each file, which fails with its findings."""
    lines: list[str] = []
    failures = 0
    for file in review.files:
        found = [each for each in review.findings if each.file == file]
        failures += bool(found)
        name = xml_text(file)
        lines.append(f'  <testcase classname="review" name="{name}" file="{name}">')
        if found:
            worst = f"{found[0].severity}: {found[0].title}"
            body = "\n\n".join(f"{_title(each)}\n{each.explanation}" for each in found)
            lines.append(
                f'    <failure type="{found[0].severity}" message="{xml_text(worst)}">'
                f"{xml_text(body)}</failure>"
            )
        lines.append("  </testcase>")
    errors = [run for run in review.runs if run.error]
    for run in errors:
        name = xml_text(f"{run.agent}, part {run.part}")
        lines.append(f'  <testcase classname="review" name="{name}">')
        lines.append(f'    <error message="{xml_text(run.error)}"/>')
        lines.append("  </testcase>")
    total = len(review.files) + len(errors)
    head = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="corral review" tests="{total}" failures="{failures}"'
        f' errors="{len(errors)}">'
    )
    return "\n".join((head, *lines, "</testsuite>")) + "\n"


def json(review: Review) -> str:
    """The review as one JSON object."""
    return _json(review)


def _json(value: object) -> str:
    """JSON of which neither a terminal nor a CI log obeys anything."""
    return json_line(msgspec.json.encode(value).decode()).replace("##", "#\\u0023") + "\n"


FORMATS: dict[str, Callable[[Review], str]] = {
    "text": text,
    "markdown": markdown,
    "github": github,
    "sarif": sarif,
    "junit": junit,
    "json": json,
}
