"""Plan a task, ask a person, implement the plan, have it reviewed, and ask a person again.

corral workflow run plan_review.py --arg task="Add a --version option" --repository .
"""

from dataclasses import dataclass

import corral
from corral.workflows import Flow


@dataclass
class Review:
    ok: bool
    problems: str = ""


@corral.workflow
async def plan_review(
    flow: Flow, task: str, agent: str = "gemini-cli", reviewer: str = "", rounds: int = 3
) -> str:
    """Plan, implement, review and approve a task.

    ``reviewer``: another agent than the one that works. ``rounds``: how often its review leads to
    a correction before a person decides.
    """
    plan = await flow.run(agent, f"Plan this. Change no files: {task}", policy="reads", name="plan")
    answer = await flow.ask(f"{plan.text}\n\nIs the plan good?", ["yes", "no"], name="approve_plan")
    if answer == "no":
        return "the plan was rejected"
    work = f"Carry out the plan of this task: {task}\n\n{plan.text}\n\n{answer.comment}"
    while True:
        for _ in range(rounds):
            await flow.run(agent, work, policy="edits", thread_id="work", name="implement")
            prompt = f"Review what was changed in this folder (git diff) for this task: {task}"
            review = await flow.run(
                reviewer or agent, prompt, policy="reads", output=Review, name="review"
            )
            if review.ok:
                break
            work = f"Fix what a review has found:\n{review.problems}"
        answer = await flow.ask("Is the result good?", ["yes", "no", "change"], name="accept")
        if answer != "change":
            return "accepted" if answer == "yes" else "rejected"
        work = f"Change this: {answer.comment}"
