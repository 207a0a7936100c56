"""The table of agents in docs/agents.md, made of their records."""

from __future__ import annotations

from corral._agents.registry import all_agents

BEGIN, END = "<!-- made of the agents -->", "<!-- end -->"


def with_agents(page: str) -> str:
    """The page with the table between the two marks."""
    rows = ["| `--agent` | |", "|---|---|"]
    for each in all_agents():
        if each.notes:
            also = (
                f" (also {', '.join(f'`{name}`' for name in each.aliases)})" if each.aliases else ""
            )
            rows.append(f"| `{each.name}`{also} | {each.description}. {each.notes} |")
    before, _, rest = page.partition(BEGIN)
    table = "\n".join(rows)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"
