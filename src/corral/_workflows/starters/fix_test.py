"""Fix a failing test.

corral workflow run fix_test.py --arg test="pytest -q tests/test_login.py"
"""

import corral
from corral.workflows import Flow


@corral.workflow
async def fix_test(
    flow: Flow, test: str, all_tests: str = "", agent: str = "gemini-cli", rounds: int = 5
) -> str:
    """Let an agent change the code until a test succeeds.

    ``test``: the command that fails. ``all_tests``: a command that must succeed as well; what it
    finds is fixed too. ``rounds``: how often the agent gets the output of a test that still fails.
    """
    before = await flow.command(test, name="before")
    if before.ok:
        return "the test does not fail"
    work = await flow.run(
        agent,
        f"`{test}` fails. Find the cause and fix the code. Do not change the test.\n\n"
        f"{before.stdout[-4000:]}{before.stderr[-4000:]}",
        policy="edits",
        until=test,
        rounds=rounds,
        thread_id="work",
        name="fix",
    )
    if all_tests and not (check := await flow.command(all_tests, name="check")).ok:
        work = await flow.run(
            agent,
            f"Your change breaks `{all_tests}`:\n\n{check.stdout[-4000:]}{check.stderr[-4000:]}",
            policy="edits",
            until=f"{test} && {all_tests}",
            rounds=rounds,
            thread_id="work",
            name="repair",
        )
    return work.text
