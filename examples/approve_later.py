"""Plan, implement, review; then a person decides, hours or days later: approve_later.dot in Python.

corral workflow run approve_later.py --approve edits --arg goal="Add a --quiet flag"
corral runs answer last yes     # or no: the work is done again
corral runs resume last

Lines of code: 11; with langgraph: 38 (peers/approve_later_langgraph.py)
Lines of code: 11; with prefect: 25 (peers/approve_later_prefect.py)
"""

import corral
from corral.workflows import Flow


@corral.workflow
async def approve_later(flow: Flow, goal: str, agent: str = "gemini-cli") -> str:
    """Work until a person says that it is good."""
    await flow.run(agent, f"Make a short plan in PLAN.md. Goal: {goal}", name="plan")
    while True:
        await flow.run(agent, f"Carry out PLAN.md; see REVIEW.md. Goal: {goal}", name="implement")
        prompt = f"Review the changes; write REVIEW.md. Goal: {goal}"
        review = await flow.run(agent, prompt, name="review")
        if await flow.ask(f"Is it good?\n{review.text}", ["yes", "no"]) == "yes":
            return review.text
