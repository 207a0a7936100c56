"""Upgrade a dependency, fix what breaks, and ask before it is committed.

corral workflow run upgrade_dependency.py --arg package=httpx \\
    --arg upgrade="uv lock --upgrade-package httpx && uv sync" --arg test="uv run pytest -q"
"""

import shlex

import corral
from corral.workflows import Flow


@corral.workflow
async def upgrade_dependency(
    flow: Flow, package: str, upgrade: str, test: str, agent: str = "gemini-cli", rounds: int = 5
) -> str:
    """Upgrade a package, and let an agent fix the code that it breaks.

    ``upgrade``: the command that upgrades it. ``test``: the command that must succeed before and
    after it. ``rounds``: how often the agent gets the output of a test that still fails.
    """
    await flow.command(test, check=True, name="test_before")
    await flow.command(upgrade, check=True, name="upgrade")
    after = await flow.command(test, name="test_after")
    if not after.ok:
        await flow.run(
            agent,
            f"{package} was upgraded, and `{test}` fails since then. Read what has changed in"
            f" {package}, and fix our code. Do not go back to the old version.\n\n"
            f"{after.stdout[-4000:]}{after.stderr[-4000:]}",
            policy="edits",
            until=test,
            rounds=rounds,
            name="fix",
        )
    diff = await flow.command("git diff --stat", name="diff")
    if await flow.ask(f"{diff.stdout}\nCommit the upgrade of {package}?", ["yes", "no"]) == "no":
        return "upgraded, and not committed"
    message = shlex.quote(f"Upgrade {package}")
    await flow.command(f"git commit -qam {message}", check=True, name="commit")
    return "upgraded and committed"
