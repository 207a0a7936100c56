"""Review a pull request by three agents; a fourth step removes what is wrong or said twice.

corral workflow run review_pull_request.py --arg base=origin/main
corral workflow run review_pull_request.py --arg agents:='["gemini-cli", "claude", "codex"]'
"""

import shlex
from dataclasses import dataclass

import corral
from corral.workflows import Flow

VIEWS = (
    "correctness: wrong results, crashes, races, forgotten cases",
    "security: untrusted input, secrets, permissions",
    "tests and upkeep: what is not tested, hard to read, or there already",
)


@dataclass
class Finding:
    file: str
    line: int
    problem: str


@dataclass
class Review:
    findings: list[Finding]


@corral.workflow
async def review_pull_request(
    flow: Flow, base: str = "main", head: str = "HEAD", agents: list[str] | None = None
) -> Review:
    """Review what a branch changes, from three points of view at once.

    ``base`` and ``head``: the change is what ``head`` adds to ``base``. ``agents``: who looks at
    correctness, at security, and at tests.
    """
    agents = agents or ["gemini-cli"]
    change = shlex.quote(f"{base}...{head}")
    diff = (await flow.command(f"git diff {change}", check=True, name="diff")).stdout

    prompt = "Review this diff. Look only at {}. Read the files around it.\n\n{}"
    reviews = await flow.parallel([
        flow.run(agents[number % len(agents)], prompt.format(view, diff),
                 policy="reads", output=Review, name="review")
        for number, view in enumerate(VIEWS)
    ])  # fmt: skip
    found = [finding for each in reviews for finding in each.findings]
    if not found:
        return Review([])
    listed = "\n".join(f"{each.file}:{each.line}: {each.problem}" for each in found)
    prompt = (
        "Check each of these findings in the code. Keep the ones that are right, each once,"
        f" the most important first:\n\n{listed}"
    )
    return await flow.run(agents[0], prompt, policy="reads", output=Review, name="check")
