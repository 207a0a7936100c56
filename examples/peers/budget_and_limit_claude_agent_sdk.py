"""``budget_and_limit.py`` with claude-agent-sdk: the budget is that of each query, and a limit is
found in the messages."""

import asyncio
import sys
import time

from claude_agent_sdk import ClaudeAgentOptions, RateLimitEvent, ResultMessage, query

BUDGET = 0.05


async def ask(task: str, session: str | None, left: float) -> tuple[ResultMessage, float]:
    options = ClaudeAgentOptions(resume=session, max_budget_usd=left)
    resets_at = 0.0
    last = None
    async for message in query(prompt=task, options=options):
        if isinstance(message, RateLimitEvent):
            if message.rate_limit_info.status == "rejected":
                resets_at = message.rate_limit_info.resets_at or time.time() + 60
        elif isinstance(message, ResultMessage):
            last = message
    if last is None:
        sys.exit("no result")
    return last, resets_at


async def main() -> None:
    left, session = BUDGET, None
    for task in sys.argv[1:]:
        while True:
            result, resets_at = await ask(task, session, left)
            left, session = left - (result.total_cost_usd or 0), result.session_id
            if not result.is_error or not resets_at:
                break
            print(f"waiting for {resets_at - time.time():.0f} s", file=sys.stderr)
            await asyncio.sleep(resets_at - time.time())
        print(f"{result.subtype}, ${BUDGET - left:.4f} spent: {result.result}")
        if result.subtype == "error_max_budget_usd" or left <= 0:
            sys.exit(f"stopped at the budget; the session is {session}")
        if result.is_error:
            sys.exit(f"failed: {result.subtype} {result.result}")


asyncio.run(main())
