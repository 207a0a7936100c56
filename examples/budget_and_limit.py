"""Stop at a budget, and wait at a limit of the service: several prompts in one session.

    python budget_and_limit.py 'Write tests for the parser' 'Fix what fails'

The built-in agent and Claude Code stop a prompt at ``max_cost``. The Gemini CLI reports no
cost: there ``max_turns`` is the limit. Short waits are part of every call; if the service still
refuses, this program waits for as long as it says, and asks again in the same session.

Lines of code: 19; with claude-agent-sdk: 34 (peers/budget_and_limit_claude_agent_sdk.py)
"""

import sys
import time

import corral
from corral.errors import BudgetExceeded, RateLimited

MODEL, BUDGET = "gemini:gemini-2.5-flash", 0.05
spent, session, tasks = 0.0, None, sys.argv[1:]
while tasks and spent < BUDGET:
    limits = {"resume": session, "max_cost": BUDGET - spent, "check": True}
    try:
        result = corral.run_sync(MODEL, tasks[0], **limits)
        print(f"{tasks.pop(0)}: {result.text}")
    except RateLimited as error:
        result = error.result
        print(f"waiting: {error}", file=sys.stderr)
        time.sleep(error.retry_after or 60)
    except BudgetExceeded as error:
        sys.exit(f"{error}\ncorral run --resume {error.result.resume_token} continues")
    spent, session = spent + (result.cost.usd or 0), result.resume_token or session
print(f"${spent:.4f} spent, {len(tasks)} prompts left")
