"""The reports of many agents side by side: scenarios down, agents across, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from corral.system import config
from corral.testing.conformance.check import MARKS, Report, Row
from corral.testing.conformance.scenarios import SCENARIOS
from corral.testing.markdown import markdown_table

NOT_RUN = "?"
KINDS = {
    "acp": "Persistent agents (ACP)",
    "stream": "One process per prompt",
    "builtin": "The built-in agent",
}
"""One table per transport, because one table would be too wide."""


def markdown(reports: Iterable[Report], not_run: Iterable[str] = ()) -> str:
    """A table for each kind of agent, and below them the reasons why scenarios were skipped."""
    columns = {report.agent: {row.scenario: row for row in report.rows} for report in reports}
    columns.update({name: {} for name in not_run})
    reasons: list[str] = []
    tables: list[str] = []
    for transport, title in KINDS.items():
        names = [name for name in columns if config.find_agent(name).transport.kind == transport]
        if names:
            rows = [
                (each.name, *(_cell(columns[name].get(each.name), reasons) for name in names))
                for each in SCENARIOS
            ]
            tables.append(markdown_table((title, *names), rows))
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n\n".join([*tables, "\n".join(notes)]).strip()


def _cell(row: Row | None, reasons: list[str]) -> str:
    if row is None:
        return NOT_RUN
    if row.outcome != "skip":
        return MARKS[row.outcome]
    if row.seen not in reasons:
        reasons.append(row.seen)
    return f"{MARKS['skip']} {reasons.index(row.seen) + 1}"
